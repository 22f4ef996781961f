"""Qwen3.6-27B-NVFP4: dense, one Spark."""

profile = dict(
    model="unsloth/Qwen3.6-27B-NVFP4",
    revision="890bdef7a42feba6d83b6e17a03315c694112f2a",
    quantization="nvfp4",
    # Context, KV type and figures: measured on a GB10 with vLLM 0.27.1, 2026-08-26
    # (flashinfer-ai/flashinfer#3170): 21.34 GiB of weights after the load, cold start 425 s,
    # warm 255 s. Its share of the memory is not said there; 0.85 is this project's default.
    max_model_len=65536,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.85,
    # vllm-project/recipes, Qwen3.6-27B on DGX Spark.
    max_num_seqs=8,
    reasoning_parser="qwen3",
    tool_call_parser="qwen3_coder",
    # nvidia/Qwen3.6-27B-NVFP4, same base model (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["Qwen3_5ForConditionalGeneration"],
        model_type="qwen3_5",
        text_config=dict(
            model_type="qwen3_5_text",
            hidden_size=5120,
            num_hidden_layers=64,
            num_attention_heads=24,
            num_key_value_heads=4,
            head_dim=256,
            layer_types=(["linear_attention"] * 3 + ["full_attention"]) * 16,
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=48,
            linear_value_head_dim=128,
            mamba_ssm_dtype="float32",
            max_position_embeddings=262144,
            dtype="bfloat16",
        ),
    ),
    # One stream without speculation, as here: 11.8 tokens/s (jschmied/dgx-spark-setup-guide), which
    # also has 24.0, 25.9 and 28.6 with MTP of 2, 3 and 4 tokens. The recipe has 3, for nvidia/
    # Qwen3.6-27B-NVFP4: speculative_config=dict(method="mtp", num_speculative_tokens=3), with
    # mtp_num_hidden_layers=1 in text_config above. Whether this checkpoint carries the weights for
    # it is unknown.
    expects=dict(tokens_per_s=11.8, cold_start_s=425, warm_start_s=255, weights_gib=21.34),
)
