"""The lab's tiny model on two simulated Sparks: tensor parallel over two ranks."""

import runpy as _runpy
from pathlib import Path as _Path

# What the model and a lab host want is the same on two of them; what to expect was not measured.
profile = _runpy.run_path(str(_Path(__file__).with_name("tiny_qwen3.py")))["profile"] | dict(
    served_names=("tiny-qwen3",),
    tensor_parallel_size=2,
    expects={},
)
