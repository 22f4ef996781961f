"""Qwen3.5-122B-A10B-NVFP4: mixture of experts with 10B active, fills one Spark."""

profile = dict(
    # Commit and size (nine files, 83.49 GB): ArtificialAnalysis/aa-agentperf-local,
    # model-candidates-v2.json, which lists the sha256 of every file.
    model="nvidia/Qwen3.5-122B-A10B-NVFP4",
    revision="98915d837c4e7c87ac8296d02e89de19b3207e6d",
    # Options: NVIDIA's recipe for one Spark (NVIDIA/local-ai-inference-recipes,
    # qwen3.5-122b-a10b/dgx-spark, quoted in the same file). Memory: 0.8 there, 0.85 in a community
    # guide, 0.88 in a report of a working setup: the lowest. The guide's context of 8,192 is not
    # needed: only 12 of the 48 layers keep a KV cache, 12 KiB a token.
    max_model_len=262144,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.8,
    # Small batches: eugr/spark-vllm-docker's rule, and that report.
    max_num_seqs=8,
    max_num_batched_tokens=8192,
    attention_backend="FLASHINFER",
    moe_backend="marlin",
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_xml",
    speculative_config=dict(method="mtp", num_speculative_tokens=3, moe_backend="triton"),
    extra_args={"enable-prefix-caching": True},
    # Its config.json (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"],
        model_type="qwen3_5_moe",
        text_config=dict(
            model_type="qwen3_5_moe_text",
            hidden_size=3072,
            num_hidden_layers=48,
            num_attention_heads=32,
            num_key_value_heads=2,
            head_dim=256,
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 12,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=64,
            linear_value_head_dim=128,
            mamba_ssm_dtype="float32",
            mtp_num_hidden_layers=1,
            max_position_embeddings=262144,
            dtype="bfloat16",
        ),
    ),
    # Speed and starts of this set: unknown. This commit with vLLM 0.24 and MTP of two tokens: 20.6
    # to 22.4 tokens/s, starts of about 10 and 3 minutes (the report above, July 2026). A guide's 25
    # to 30 and conselara.dev's "up to 51" are of other checkpoints or builds.
    expects=dict(weights_gib=77.76),
)
