"""Qwen3-30B-A3B-Instruct-2507: BF16 weights, quantized to FP8 while loading, one Spark."""

profile = dict(
    # Commit: named in many public projects, for one the model card's licence link of
    # mlx-community/Qwen3-30B-A3B-Instruct-2507-4bit.
    model="Qwen/Qwen3-30B-A3B-Instruct-2507",
    revision="0d7cf23991f47feeb3a57ecb4c9cee8ea4a17bfe",
    # For models without a quantized checkpoint. For this one there is a ready FP8 checkpoint,
    # which loads half the bytes.
    online_quantization="fp8",
    port=8003,
    # Half of the model's own 262,144: 6 GiB of KV cache for a sequence of full length (48 KiB a
    # token), so that several fit even if all weights were in memory as BF16.
    max_model_len=131072,
    kv_cache_dtype="fp8",
    # As spark-arena/recipe-registry has it for FP8 models of this class.
    gpu_memory_utilization=0.7,
    # Small batches: eugr/spark-vllm-docker's rule for a Spark (4 to 12).
    max_num_seqs=8,
    # CUTLASS FP8 kernels for experts do not run on a GB10 (vllm-project/vllm#43507).
    moe_backend="triton",
    # vllm-project/recipes, Qwen3-30B-A3B.
    tool_call_parser="hermes",
    # Qwen/Qwen3-30B-A3B, the same shape (ai-dynamo/aiconfigurator, model_configs); the context is
    # from the model card of Instruct-2507.
    config=dict(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        hidden_size=2048,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=262144,
        torch_dtype="bfloat16",
    ),
    # 16 files, 61.07 GB in BF16 (the hub's metadata). FP8 takes about half of it once loaded; how
    # much it is meanwhile is unknown, so the plan counts all of it. Speed and start: unknown.
    expects=dict(weights_gib=56.87),
)
