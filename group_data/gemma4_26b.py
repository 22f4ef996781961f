"""Gemma-4-26B-A4B-NVFP4: 4B active, one Spark, vLLM 0.28 or newer; not known to run there."""

profile = dict(
    # Commit and size (two files, 18.79 GB): ArtificialAnalysis/aa-agentperf-local,
    # model-candidates-v2.json, which lists the sha256 of every file.
    model="nvidia/Gemma-4-26B-A4B-NVFP4",
    revision="a19cfe00be84568a6867111c9a68c9c44fdcffe6",
    # vLLM 0.27.1 can't read its head_dim (vllm-project/vllm#53836).
    engine=">=0.28",
    port=8002,
    # Context, batches, loading, parsers: vllm-project/recipes#916 for one Spark, tested on a dated
    # ARM64 community image ("the generic nightly fails there"). Whether a stock release serves it
    # on a GB10 is unknown.
    max_model_len=262144,
    # 0.8 there. But the BF16 model froze a host at 0.70 while vLLM measured its memory: 112 GiB in
    # use, 48 of them weights, with 83 for all (vllm-project/vllm#46307, open; BF16 cache,
    # TRITON_ATTN). The share bounds the cache, not that peak; beside these weights it is 82 GiB.
    gpu_memory_utilization=0.5,
    # #916 leaves the type to the engine, and what this checkpoint asks for is not known here; there
    # is room for the one that costs no accuracy.
    kv_cache_dtype="bfloat16",
    max_num_seqs=8,
    max_num_batched_tokens=8192,
    load_format="fastsafetensors",
    # Heads of two sizes, 256 and 512: FLASHINFER refuses them (vllm-project/vllm#40677).
    attention_backend="TRITON_ATTN",
    reasoning_parser="gemma4",
    tool_call_parser="gemma4",
    # google/gemma-4-26B-A4B-it, the base model (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["Gemma4ForConditionalGeneration"],
        model_type="gemma4",
        text_config=dict(
            model_type="gemma4_text",
            hidden_size=2816,
            num_hidden_layers=30,
            num_attention_heads=16,
            num_key_value_heads=8,
            head_dim=256,
            global_head_dim=512,
            num_global_key_value_heads=2,
            num_kv_shared_layers=0,
            attention_k_eq_v=True,
            sliding_window=1024,
            layer_types=(["sliding_attention"] * 5 + ["full_attention"]) * 5,
            max_position_embeddings=262144,
            dtype="bfloat16",
        ),
    ),
    # Speed with this vLLM: unknown. 29.8 tokens/s after 4,096 tokens with vLLM 0.20
    # (djangodevreng/dgx-spark-benchmarks), 50 elsewhere (tgmerritt.com).
    expects=dict(weights_gib=17.5),
)
