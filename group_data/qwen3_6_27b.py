"""Qwen3.6-27B-NVFP4: dense, one Spark."""

profile = dict(
    model="unsloth/Qwen3.6-27B-NVFP4",
    revision="890bdef7a42feba6d83b6e17a03315c694112f2a",
    quantization="nvfp4",
    # Context, KV type and figures: measured on a GB10 with vLLM 0.27.1, 2026-08-26
    # (flashinfer-ai/flashinfer#3170): 21.34 GiB of weights, cold start 425 s, warm 255 s.
    max_model_len=65536,
    kv_cache_dtype="fp8",
    gpu_memory_utilization=0.85,
    reasoning_parser="qwen3",
    expects=dict(cold_start_s=425, warm_start_s=255, weights_gib=22),
)
