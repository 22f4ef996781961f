"""Your Sparks, and which model each of them serves: edit this file, delete what you don't have.

A group named like a file in group_data/ is the choice of a model: a host in two such groups serves
both. Everything else about a model is in that file.

    sparkwright plan inventory/sparks.py         check it, see what fits
    pyinfra inventory/sparks.py deploy.py        do it
"""

# One Spark, one model.
qwen3_5_122b = [
    "spark-1.local",
]

# One Spark, two models: their ports differ, their budgets fit together.
qwen3_6_35b = [
    "spark-2.local",
]
qwen3_5_35b = [
    "spark-2.local",
]

# Two Sparks that serve one model together: the same pair name; the first is the head.
qwen3_235b = [
    ("spark-3.local", {"pair": "left"}),
    ("spark-4.local", {"pair": "left"}),
]

# A fleet, all alike.
qwen3_6_27b = [f"rack-{n}.local" for n in range(1, 9)]
