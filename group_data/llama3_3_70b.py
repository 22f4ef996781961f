"""Llama-3.3-70B-Instruct-NVFP4: dense, one Spark, slow by nature."""

profile = dict(
    # No public file was found that names a whole commit of this checkpoint, and a made-up one
    # would be worse than none. Look it up on the model's page (Files, History; NVIDIA/
    # dgx-spark-playbooks#91 measured one that begins with f79) and fetch it on the Spark:
    #   hf download nvidia/Llama-3.3-70B-Instruct-NVFP4 --revision COMMIT \
    #       --local-dir /srv/models/Llama-3.3-70B-Instruct-NVFP4
    # Or write model="nvidia/Llama-3.3-70B-Instruct-NVFP4", revision="COMMIT": it is then fetched.
    model="/srv/models/Llama-3.3-70B-Instruct-NVFP4",
    served_names=("nvidia/Llama-3.3-70B-Instruct-NVFP4",),
    # Context: measured with it (NVIDIA/dgx-spark-playbooks#79); a community guide's table for one
    # Spark has 8,192. Memory and users (5 to 10): that guide. KV type: vllm-project/recipes.
    max_model_len=16384,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.85,
    max_num_seqs=8,
    # Tools: vLLM's docs have tool_call_parser="llama3_json" and a chat template of theirs.
    # meta-llama/Llama-3.3-70B-Instruct, the base model (ai-dynamo/aiconfigurator, model_configs).
    config=dict(
        architectures=["LlamaForCausalLM"],
        model_type="llama",
        hidden_size=8192,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        torch_dtype="bfloat16",
    ),
    # 4.0 to 4.2 tokens/s (issue 79; reproduced in 91, where 6.7 follows as the most that the
    # memory's 273 GB/s allow): the guide's 15 to 20 can't be reached by one stream. 38.5 GB in FP4,
    # 2.1 GB for the output layer (91) and as much for the embedding: 42.7 GB.
    expects=dict(tokens_per_s=4.0, weights_gib=39.8),
)
