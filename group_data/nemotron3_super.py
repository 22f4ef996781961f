"""Nemotron-3-Super-120B-A12B-NVFP4: hybrid Mamba and experts, 12B active, fills one Spark."""

profile = dict(
    # Commit and size (17 files, 80.32 GB): ArtificialAnalysis/aa-agentperf-local,
    # model-candidates-v2.json, which lists the sha256 of every file.
    model="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    revision="ff433f5493e25d631c9f12b5d55c674229923d02",
    # Context, memory, batches, Mamba cache, parsers: tuned and verified on one GB10
    # (vllm-project/recipes, Nemotron-3-Super, DGX Spark) and in NVIDIA/local-ai-inference-recipes.
    # NVIDIA's playbook has 0.90 and 1,000,000: the safer is taken.
    max_model_len=262144,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.8,
    max_num_seqs=8,
    max_num_batched_tokens=16384,
    attention_backend="FLASHINFER",
    load_format="fastsafetensors",
    # NVIDIA's playbook (dgx-spark-playbooks, nemotron). vLLM's recipe leaves the choice to the
    # engine, which is faster; but FP4 kernels of other kinds have answered with garbage on a GB10
    # (flashinfer-ai/flashinfer#3294). The playbook's VLLM_NVFP4_GEMM_BACKEND=marlin is not carried
    # over: linear_backend="marlin" would hold for this checkpoint's FP8 layers too, and 0.27.1 has
    # no Marlin for those on a GPU as new as this (vllm/.../linear/scaled_mm/marlin.py).
    moe_backend="marlin",
    speculative_config=dict(method="mtp", num_speculative_tokens=3, moe_backend="triton"),
    # Sends nothing while the model thinks: clients with a time-out of a minute give up
    # (eugr/spark-vllm-docker, docs/NEMOTRON-3-SUPER-SOLO.md); then leave it out.
    reasoning_parser="nemotron_v3",
    tool_call_parser="qwen3_xml",
    extra_args={
        "enable-prefix-caching": True,
        "mamba-cache-mode": "align",
        "mamba-ssm-cache-dtype": "float32",
        # Runs the Python files of this commit; both sources do.
        "trust-remote-code": True,
    },
    # Its config.json (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["NemotronHForCausalLM"],
        model_type="nemotron_h",
        hidden_size=4096,
        num_hidden_layers=88,
        num_attention_heads=32,
        num_key_value_heads=2,
        head_dim=128,
        mamba_ssm_cache_dtype="float32",
        mamba_num_heads=128,
        mamba_head_dim=64,
        n_groups=8,
        ssm_state_size=128,
        conv_kernel=4,
        hybrid_override_pattern="MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*"
        "EMEMEMEMEM*EMEMEMEM*EMEMEMEME",
        num_nextn_predict_layers=1,
        mtp_hybrid_override_pattern="*E",
        max_position_embeddings=262144,
        dtype="bfloat16",
    ),
    # 22.7 to 23.7 tokens/s without MTP (vLLM's blog on DGX Spark, 2026-06-01); first start 7 to 10
    # minutes (eugr, as above). A guide's "about 60 GB" of weights is too low.
    expects=dict(tokens_per_s=22.7, cold_start_s=600, weights_gib=74.8),
)
