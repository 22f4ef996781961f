"""Qwen3.6-35B-A3B-NVFP4: mixture of experts with 3B active, one Spark, room for a second model."""

profile = dict(
    model="nvidia/Qwen3.6-35B-A3B-NVFP4",
    revision="1355db6a052410cfd62085d94b58866fd0f2c3c5",
    quantization="nvfp4",
    port=8001,
    # NVIDIA's own playbook for one Spark (dgx-spark-playbooks, agent-ready profile). Others give it
    # more memory (0.5: vllm-project/recipes); with 0.4 a second model fits beside it.
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
    # Its config.json (ai-dynamo/aiconfigurator, model_configs).
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
            mtp_num_hidden_layers=1,
            max_position_embeddings=262144,
            dtype="bfloat16",
        ),
    ),
    # 87 tokens/s, one stream with these options (jschmied/dgx-spark-setup-guide, vllm-switch); 97.7
    # with vLLM 0.28.0 after 8,192 tokens (vllm-project/recipes#918). Three files of
    # 23.42 GB in all at this commit (ArtificialAnalysis/aa-agentperf-local,
    # model-candidates-v2.json); a community guide's "about 18 GB" is too low.
    expects=dict(tokens_per_s=87, weights_gib=21.82),
)
