"""The lab's stand-in engine: starts in a second, and misbehaves as STANDIN_* variables say."""

import os

profile = dict(
    model="/srv/models/tiny-qwen3",
    served_names=("tiny",),
    max_model_len=1024,
    gpu_memory_utilization=0.02,
    env={name: value for name, value in os.environ.items() if name.startswith("STANDIN_")},
    ready_timeout_s=30,
    shutdown_timeout_s=2,
)
