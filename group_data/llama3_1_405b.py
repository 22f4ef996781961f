"""Llama-3.1-405B-Instruct, 4 bits: dense, two Sparks; to show that it runs, not to work with."""

profile = dict(
    # NVFP4 (234 GB) does not fit into two Sparks. NVIDIA's playbook takes the AWQ checkpoint of the
    # same maker; a commit was found for this one only (three public benchmark scripts that name its
    # snapshot folder), of the same size.
    model="hugging-quants/Meta-Llama-3.1-405B-Instruct-GPTQ-INT4",
    revision="ba9e738385d74a19443cc38235a8f647b208d938",
    tensor_parallel_size=2,
    # NVIDIA's playbook for two Sparks (dgx-spark-playbooks, vllm, step 11): 0.9, one sequence, 64
    # tokens, "insufficient memory headroom for production". A public guide (in Korean) for two
    # Sparks got to 256 with an FP8 KV cache and no CUDA graphs.
    max_model_len=256,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.9,
    max_num_seqs=1,
    max_num_batched_tokens=256,
    enforce_eager=True,
    # Without graphs, 256 tokens a step: that it starts at all (the guide, as above) says that cache
    # and runtime take less than the 5.2 GiB that 0.9 leaves beside the weights.
    runtime_gib=4,
    # meta-llama/Meta-Llama-3.1-405B, the base model (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=16384,
        num_hidden_layers=126,
        num_attention_heads=128,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        torch_dtype="bfloat16",
    ),
    # 205 GiB in the hub's cache on disk (public reports of a vLLM benchmark on 16 V100).
    expects=dict(weights_gib=205),
)
