"""Qwen3-235B-A22B-NVFP4: mixture of experts with 22B active, two Sparks."""

profile = dict(
    # Commit: ytworks/kairyu, bench/g4_ma1_qwen3_235b_nvfp4_*, which pins this checkpoint, and a
    # public vLLM benchmark script. Size (134 GB): the design document of that bench.
    model="nvidia/Qwen3-235B-A22B-NVFP4",
    revision="21cfa2c9e152032eb60647ee7b46a2bbcd8d76d2",
    tensor_parallel_size=2,
    # The model's own context without stretching is 40,960, of which 8,192 are meant for the answer.
    max_model_len=32768,
    # KV type and attention: conselara.dev, two Sparks, 2026-05-03 (GPTQ checkpoint, 0.87 of the
    # memory). 0.8 leaves more for the hosts, which have frozen at less in long prefills
    # (NVIDIA/dgx-spark-playbooks#97).
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.8,
    # The most that conselara.dev measured at once; eugr/spark-vllm-docker's rule is 4 to 12.
    max_num_seqs=4,
    attention_backend="TRITON_ATTN",
    # The safe path for FP4 experts on a GB10 (vllm-project/vllm#30163).
    moe_backend="marlin",
    # vllm-project/recipes, Qwen3-30B-A3B (the same chat format).
    reasoning_parser="qwen3",
    tool_call_parser="hermes",
    # Its config.json (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["Qwen3MoeForCausalLM"],
        model_type="qwen3_moe",
        hidden_size=4096,
        num_hidden_layers=94,
        num_attention_heads=64,
        num_key_value_heads=4,
        head_dim=128,
        max_position_embeddings=40960,
        torch_dtype="bfloat16",
    ),
    # Speed and start of this set: unknown. NVIDIA has 11.73 tokens/s for NVFP4 on two Sparks with
    # TensorRT-LLM; 17.0 with vLLM, Ray and GPTQ, first start 15 minutes (conselara.dev).
    expects=dict(weights_gib=124.8),
)
