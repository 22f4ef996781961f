"""A tiny Qwen3 with random weights, made by the lab: the whole path on any machine."""

profile = dict(
    model="/srv/models/tiny-qwen3",
    served_names=("tiny",),
    load_format="dummy",
    max_model_len=1024,
    max_num_seqs=4,
    # Without it torch.compile adds half a minute to each start on a CPU.
    enforce_eager=True,
    # Of the lab host's memory, to be free before a start: the engine takes 1.75 GB in all. Without
    # a size for its KV cache the CPU build wants nearly all that is free.
    gpu_memory_utilization=0.1,
    kv_cache_memory_bytes=64 * 1024**2,
    env=dict(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1"),
    ready_timeout_s=600,
    shutdown_timeout_s=30,
    # Two cores, bytecode compiled (docs/quick-start.md has a real run).
    expects=dict(warm_start_s=50, cold_start_s=120),
)
