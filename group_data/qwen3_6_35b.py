"""Qwen3.6-35B-A3B-NVFP4: mixture of experts with 3B active, one Spark, room for a second model."""

profile = dict(
    model="nvidia/Qwen3.6-35B-A3B-NVFP4",
    revision="1355db6a052410cfd62085d94b58866fd0f2c3c5",
    quantization="nvfp4",
    port=8001,
    # NVIDIA's own playbook for one Spark (dgx-spark-playbooks, agent-ready profile).
    max_model_len=262144,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.4,
    max_num_seqs=4,
    max_num_batched_tokens=8192,
    attention_backend="FLASHINFER",
    moe_backend="marlin",
    load_format="fastsafetensors",
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_xml",
    speculative_config=dict(method="mtp", num_speculative_tokens=3, moe_backend="triton"),
    # 87 tokens/s, one stream with MTP (jschmied/dgx-spark-setup-guide, vllm-switch);
    # ~18 GB, three shards.
    expects=dict(tokens_per_s=87, weights_gib=20),
)
