"""gpt-oss-120b (MXFP4): mixture of experts with 5.1B active, one Spark."""

profile = dict(
    # Commit: ArtificialAnalysis/aa-agentperf-local, model-candidates-v2.json; also the reference
    # implementation of mlcommons/inference. The repository holds the weights three times (original/
    # and metal/ are not used here): 130 GiB on disk.
    # Its chat format needs the vocabulary o200k_base.tiktoken, which the engine fetches from
    # openaipublic.blob.core.windows.net. On a Spark without internet put that file and
    # cl100k_base.tiktoken into a folder and name it: env=dict(TIKTOKEN_ENCODINGS_BASE="/srv/models/
    # harmony"); without it requests fail after a healthy start (NVIDIA/dgx-spark-playbooks#17).
    model="openai/gpt-oss-120b",
    revision="b5c939de8f754692c1647ca79fbf85e8c1e70f8a",
    # Backends, KV type, parsers: conselara.dev, DGX Spark benchmarks, 2026-05-02 (vLLM 0.19, with
    # 0.87 of the memory). spark-arena/recipe-registry has 0.70, for another build, and its issue 17
    # saw these backends take far more than their share: the lower is taken.
    max_model_len=131072,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.7,
    # Small batches: eugr/spark-vllm-docker's rule for a Spark (4 to 12).
    max_num_seqs=8,
    max_num_batched_tokens=8192,
    attention_backend="TRITON_ATTN",
    moe_backend="marlin",
    reasoning_parser="openai_gptoss",
    tool_call_parser="openai",
    # Its config.json (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["GptOssForCausalLM"],
        model_type="gpt_oss",
        hidden_size=2880,
        num_hidden_layers=36,
        num_attention_heads=64,
        num_key_value_heads=8,
        head_dim=64,
        sliding_window=128,
        layer_types=["sliding_attention", "full_attention"] * 18,
        max_position_embeddings=131072,
    ),
    # 57 to 60 tokens/s (conselara.dev); 58.8 and 59.5 (recipe-registry, issue 17). 65.2 GB are
    # loaded.
    expects=dict(tokens_per_s=57, weights_gib=60.7),
)
