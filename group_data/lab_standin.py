"""The lab's stand-in engine (docs/lab.md): starts in seconds, and fails as it is told to."""

from os import environ as _environ

profile = dict(
    model="/srv/models/tiny-qwen3",
    served_names=("tiny",),
    max_model_len=1024,
    gpu_memory_utilization=0.02,
    ready_timeout_s=60,
    shutdown_timeout_s=2,
    # STANDIN_DIE_AT=load pyinfra ... deploys a setting with which the engine dies.
    env={name: value for name, value in _environ.items() if name.startswith("STANDIN_")},
)
