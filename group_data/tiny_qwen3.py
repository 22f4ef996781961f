"""A tiny Qwen3 with random weights, made by the lab: the whole path on any machine."""

profile = dict(
    model="/srv/models/tiny-qwen3",
    served_names=("tiny",),
    load_format="dummy",
    max_model_len=1024,
    max_num_seqs=4,
    # Without it torch.compile adds half a minute to each start on a CPU.
    enforce_eager=True,
    # Of the lab host's memory; what the CPU build takes for its KV cache is set below, in GiB.
    gpu_memory_utilization=0.15,
    env=dict(
        VLLM_CPU_KVCACHE_SPACE="1",
        VLLM_CPU_OMP_THREADS_BIND="nobind",
        OMP_NUM_THREADS="1",
    ),
    ready_timeout_s=600,
    shutdown_timeout_s=30,
    # Two cores, bytecode compiled (docs/quick-start.md has a real run).
    expects=dict(warm_start_s=50, cold_start_s=120),
)
