"""Environment variables of guides that vLLM no longer reads, and what took their place.

None of them is read by 0.27.1 or later (the one exception is named below); vLLM only logs
"Unknown vLLM environment variable". Sources: vllm-project/vllm#43148 (experts), #39538 (linear
layers), #27798 (VLLM_USE_V1).
"""

from __future__ import annotations

from collections.abc import Mapping

from sparkwright.flags.values import Option, problem

# Variable -> profile field. A value of the variable is one of the option, spelled nearly the same.
_SAME_VALUES = {
    "VLLM_ATTENTION_BACKEND": "attention_backend",
    "VLLM_FLASHINFER_MOE_BACKEND": "moe_backend",
    "VLLM_NVFP4_GEMM_BACKEND": "linear_backend",
}
# Of vLLM's own table; `latency` meant TRT-LLM kernels on capability 10.x and CUTLASS elsewhere, a
# GB10 too (vllm/model_executor/layers/quantization/utils/flashinfer_utils.py before 0.23).
_OLD_VALUES = {
    "throughput": "flashinfer_cutlass",
    "latency": "flashinfer_cutlass",
    "masked_gemm": "flashinfer_cutedsl",
}
# Switches: variable -> profile field and its value for "1".
_SWITCHES = {
    **{
        f"VLLM_USE_FLASHINFER_MOE_{kind}": ("moe_backend", "flashinfer_cutlass")
        for kind in ("FP16", "FP8", "FP4", "MXFP4_BF16", "MXFP4_MXFP8", "MXFP4_MXFP8_CUTLASS")
    },
    "VLLM_MXFP4_USE_MARLIN": ("moe_backend", "marlin"),
    "VLLM_USE_FBGEMM": ("linear_backend", "fbgemm"),
    "VLLM_USE_NVFP4_CT_EMULATIONS": ("linear_backend", "emulation"),
    # Read by 0.27.1 still, for FP8 layers and experts; gone in 0.32.0.
    "VLLM_TEST_FORCE_FP8_MARLIN": ("moe_backend", "marlin"),
}


def replacement(
    variable: str, value: str, options: Mapping[str, Option], names: Mapping[str, tuple[str, ...]]
) -> str | None:
    """What to do instead of setting a variable that is gone; None for a variable not known here.

    options, names: of the version that is asked.
    """
    gone = "vLLM no longer reads it: "
    if variable == "VLLM_USE_V1":
        return gone + "there is one engine now, leave it out"
    if variable in _SWITCHES:
        field, backend = _SWITCHES[variable]
        if value.strip().lower() in ("0", "false", ""):
            return gone + f'leave it out; {field} chooses, such as {field}="marlin"'
        return gone + f'{field}="{backend}" took its place'
    field = _SAME_VALUES.get(variable, "")
    if not field:
        return None
    option = field.replace("_", "-")
    if option in names:
        word = value.upper().removesuffix("_VLLM_V1")
        known = word in names[option]
    else:
        word = _OLD_VALUES.get(value.lower(), value.lower()).replace("-", "_")
        known = problem(options[option], word) is None
    return gone + (f'{field}="{word}" took its place' if known else f"{field} took its place")
