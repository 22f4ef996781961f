"""Qwen3.5-35B-A3B-NVFP4: mixture of experts with 3B active, one Spark, room for a second model."""

profile = dict(
    # Guides name nvidia/Qwen3.5-35B-A3B-NVFP4, which the hub does not show to the public. This
    # checkpoint was made with NVIDIA's Model Optimizer, and is the one of vllm-project/vllm#35519.
    # Commit and size (25.42 GB by its safetensors headers): a public table of NVFP4 checkpoints
    # that was captured from the hub in 2026; seen in no second place.
    model="txn545/Qwen3.5-35B-A3B-NVFP4",
    revision="63ffbd1d5ca18043b67ea5302238afe3929fddb2",
    port=8004,
    # Context: a community guide's table for one Spark. Memory: a part of it, so that a second model
    # fits beside it; as its only model, give it 0.85.
    max_model_len=32768,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.45,
    # Batches: vllm-project/recipes, Qwen3.6-35B-A3B on DGX Spark, the same shape. The default of
    # 2,048 tokens is less than a block of 2,096, which its states fill with prefix caching, and
    # stops the start.
    max_num_seqs=8,
    max_num_batched_tokens=8192,
    attention_backend="FLASHINFER",
    # FP4 kernels of early releases stopped it in mid-answer (vllm-project/vllm#35519, #39761).
    moe_backend="marlin",
    # vllm-project/recipes, Qwen3.5-35B-A3B.
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_coder",
    # Qwen/Qwen3.5-35B-A3B, the base model (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        model_type="qwen3_5_moe",
        text_config=dict(
            model_type="qwen3_5_moe_text",
            hidden_size=2048,
            num_hidden_layers=40,
            num_attention_heads=16,
            num_key_value_heads=2,
            head_dim=256,
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 10,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            linear_value_head_dim=128,
            mamba_ssm_dtype="float32",
            max_position_embeddings=262144,
            dtype="bfloat16",
        ),
    ),
    # Speed of this set: unknown. The guide has 47 to 50 tokens/s, with 0.90 and backends that it
    # leaves to the engine.
    expects=dict(weights_gib=23.67),
)
