"""Nemotron-3-Super-120B-A12B-NVFP4: hybrid Mamba and experts, 12B active, fills one Spark."""

profile = dict(
    # Commit and size (17 files, 80.32 GB): ArtificialAnalysis/aa-agentperf-local,
    # model-candidates-v2.json, which lists the sha256 of every file.
    model="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
    revision="ff433f5493e25d631c9f12b5d55c674229923d02",
    # All of it: vllm-project/recipes, Nemotron-3-Super, "tuned end-to-end on DGX Spark" with vLLM
    # 0.24.0; whether it runs with 0.27 or newer is unknown. NVIDIA's playbook has 0.90 of memory
    # and 1,000,000 of context: the safer is taken.
    # Experts: no backend is named there; vLLM selects FLASHINFER_CUTLASS, "faster than the Marlin
    # fallback" (vllm-project/recipes#632). NVIDIA's playbook forces Marlin, and so does
    # spark-arena/recipe-registry#19, which ran with 0.23.1rc1 and 0.26.1rc1. For that add
    # moe_backend="marlin", and in speculative_config moe_backend="triton". Not
    # linear_backend="marlin": it would hold for this checkpoint's FP8 layers too, and 0.27.1 has no
    # Marlin for those on a GPU as new as this (vllm/.../linear/scaled_mm/marlin.py).
    max_model_len=262144,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.8,
    max_num_seqs=8,
    # Not less: a state fills a block of more than 8,192 tokens, and "in Mamba cache align mode"
    # vLLM wants a block to fit into a step.
    max_num_batched_tokens=16384,
    # Unknown for this model. It is 5.5 with 2,048 tokens a step (docs/memory.md); activations that
    # grow as DeepSeek-V4-Flash's did, 3.9 for 6,176 tokens more, make it 14.6.
    runtime_gib=14.6,
    attention_backend="FLASHINFER",
    load_format="fastsafetensors",
    speculative_config=dict(method="mtp", num_speculative_tokens=3),
    # Sends nothing while the model thinks: clients with a time-out of a minute give up
    # (eugr/spark-vllm-docker, docs/NEMOTRON-3-SUPER-SOLO.md); then leave it out.
    reasoning_parser="nemotron_v3",
    tool_call_parser="qwen3_xml",
    extra_args={
        "enable-prefix-caching": True,
        "mamba-cache-mode": "align",
        "mamba-ssm-cache-dtype": "float32",
        # Runs the Python files of this commit.
        "trust-remote-code": True,
    },
    env=dict(VLLM_FLOAT32_MATMUL_PRECISION="high"),
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
    # Speed and starts of this set: unknown. 22.7 to 23.7 tokens/s without MTP (vLLM's blog on DGX
    # Spark, 2026-06-01); 23.6 with Marlin and MTP, first start 7 minutes with 0.23 and 18 with 0.26
    # (recipe-registry#19). A guide's "about 60 GB" of weights is too low.
    expects=dict(weights_gib=74.8),
)
