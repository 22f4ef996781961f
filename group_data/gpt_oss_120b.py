"""gpt-oss-120b (MXFP4): 5.1B active, one Spark; not known to run on this vLLM, read its file."""

profile = dict(
    # Whether stock vLLM 0.27 or newer serves it on a Spark is unknown. On a nightly of June 2026
    # vLLM chose Marlin and TRITON_ATTN by itself; with CUDA graphs "the launch hung for 44 minutes
    # pinning the GPU, which on unified memory freezes the whole desktop", with enforce_eager it
    # "balloons to ~118 GB regardless of --gpu-memory-utilization" (spark-arena/recipe-registry#17).
    # vLLM 0.21.1rc1 to 0.22.1rc1 were killed while loading (vllm-project/vllm#43969); 0.20.0 gave
    # empty answers with Marlin and failed with the other fast backends (#41477); 0.23.1rc1 answered
    # right in July 2026 (#37030, its backend is not known here). Seen to work: NVIDIA's containers
    # (26.02: NVIDIA/dgx-spark-playbooks#79; 26.04 with Marlin and TRITON_ATTN: conselara.dev,
    # 2026-05-02), and a build with CUTLASS kernels for this GPU (recipe-registry#17). So no backend
    # is forced here, and no speed expected. Try it on a Spark whose power you can cut.
    #
    # Commit: ArtificialAnalysis/aa-agentperf-local, model-candidates-v2.json; also the reference
    # implementation of mlcommons/inference.
    # Its chat format needs the vocabulary o200k_base.tiktoken, which the engine fetches from
    # openaipublic.blob.core.windows.net. On a Spark without internet put that file and
    # cl100k_base.tiktoken into a folder and name it: env=dict(TIKTOKEN_ENCODINGS_BASE="/srv/models/
    # harmony"); without it requests fail after a healthy start (NVIDIA/dgx-spark-playbooks#17).
    model="openai/gpt-oss-120b",
    revision="b5c939de8f754692c1647ca79fbf85e8c1e70f8a",
    # KV type, memory, tokens a step, parsers: spark-arena/recipe-registry, openai-gpt-oss-120b, for
    # another build. conselara.dev has 0.87: the lower is taken.
    max_model_len=131072,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.7,
    # Small batches: eugr/spark-vllm-docker's rule for a Spark (4 to 12).
    max_num_seqs=8,
    max_num_batched_tokens=8192,
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
    # 65.2 GB are loaded. The repository holds them three times, in original/ and metal/ again
    # (exo-explore/exo#1800: "3x the model size"), and all of it is fetched.
    expects=dict(weights_gib=60.7, disk_gib=182.2),
)
