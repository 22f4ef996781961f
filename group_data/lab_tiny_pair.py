"""The lab's tiny model on two simulated Sparks: tensor parallel over two ranks."""

profile = dict(
    model="/srv/models/tiny-qwen3",
    served_names=("tiny-qwen3",),
    load_format="dummy",
    max_model_len=1024,
    max_num_seqs=4,
    enforce_eager=True,
    tensor_parallel_size=2,
    # As in tiny_qwen3.py.
    gpu_memory_utilization=0.1,
    kv_cache_memory_bytes=64 * 1024**2,
    env=dict(VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1"),
    ready_timeout_s=600,
    shutdown_timeout_s=30,
)
