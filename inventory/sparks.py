"""Your Sparks, and which model each of them serves: edit this file.

A group named like a file in group_data/ is the choice of a model: a host in two such groups serves
both. Everything else about a model is in that file.

    pyinfra inventory/sparks.py deploy.py
"""

qwen3_6_27b = [
    "spark-1.local",
]
