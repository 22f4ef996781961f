"""Mistakes of users: each is one problem with place, field, value and fix, never a traceback.

Mistakes in whole files (no Python, no hosts) are in test_plan_command.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from sparkwright.errors import Problem, together
from sparkwright.plan import RawHost, make_plan

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LOCK = {"lock": "releases/vllm-0.27.1-aarch64.txt"}
MODEL = {"model": "/srv/models/tiny"}
HUB = {"model": "org/name", "revision": COMMIT}
NAN, INF = float("nan"), float("inf")

TOKENS, BYTES, SECONDS = "a number of tokens: 65536, '64K'", "a number of bytes: 3", "'15min' or"
SHARE, FOLDER, ADDRESS = "0.85 or '85%'", "into /srv/models", "write an address: 127.0.0.1"
PATH, PIN, PLAIN = "or an absolute path", "pin the commit of org/name, 40 hex", "write numbers, tex"
MEETS = "holds vLLM 0.27.1; releases that meet it: releases/vllm-0.33.0-aarch64.txt"
REFUSED = ("max_model_len", "8192", "was made for 4096 (max_position_embeddings)")
KEY, LONG, NAME = "'generate' or 'env:NAME'", "write the long name without dashes", "is no name for"
CONTROL = "A holds a line break or another control character"

# (changes to a valid profile, field, value as it is shown, part of the fix)
PROFILES: list[tuple[dict[str, Any], str, str, str]] = [
    ({"model": "tiny"}, "model", "'tiny'", PATH),
    ({"model": "srv/models/tiny"}, "model", "'srv/models/tiny'", PATH),
    ({"model": "./tiny"}, "model", "'./tiny'", PATH),
    ({"model": "~/models/tiny"}, "model", "'~/models/tiny'", PATH),
    ({"model": "/srv/../etc"}, "model", "'/srv/../etc'", PATH),
    ({"model": "/"}, "model", "'/'", PATH),
    ({"model": ""}, "model", "''", PATH),
    ({"model": "/srv/models/a\n"}, "model", r"'/srv/models/a\n'", PATH),
    ({"model": "org/name/file"}, "model", "'org/name/file'", PATH),
    ({"model": "https://hub/org/name"}, "model", "'https://hub/org/name'", "org/name"),
    ({"model": 7}, "model", "7", "write a text"),
    ({"model": None}, "model", "None", "write a text"),
    ({"model": "/home/me/model"}, "model", "'/home/me/model'", FOLDER),
    ({"model": "/root/model"}, "model", "'/root/model'", "can't see /home/, /root/"),
    ({"model": "/tmp/model"}, "model", "'/tmp/model'", FOLDER),
    ({"model": "/var/tmp/m"}, "model", "'/var/tmp/m'", FOLDER),
    ({"model": "/run/user/1000/m"}, "model", "'/run/user/1000/m'", FOLDER),
    ({"revision": COMMIT}, "revision", f"'{COMMIT}'", "belongs to a Hugging Face id"),
    ({"model": "org/name"}, "revision", "None", PIN),
    ({**HUB, "revision": "main"}, "revision", "'main'", PIN),
    ({**HUB, "revision": "v1.0"}, "revision", "'v1.0'", PIN),
    ({**HUB, "revision": "0123456"}, "revision", "'0123456'", PIN),
    ({**HUB, "revision": COMMIT.upper()}, "revision", f"'{COMMIT.upper()}'", PIN),
    ({**HUB, "revision": COMMIT + "0"}, "revision", f"'{COMMIT}0'", PIN),
    ({**HUB, "revision": 1234567}, "revision", "1234567", "write a text"),
    ({"model": "/home"}, "model", "'/home'", FOLDER),
    ({"model": "/tmp"}, "model", "'/tmp'", FOLDER),
    ({"served_names": "tiny"}, "served_names", "'tiny'", "write a list"),
    ({"served_names": [""]}, "served_names", "['']", NAME),
    ({"served_names": ["-a"]}, "served_names", "['-a']", NAME),
    ({"served_names": [" a"]}, "served_names", "[' a']", NAME),
    ({"served_names": [7]}, "served_names.0", "7", "write a text"),
    ({"served_names": ["a", "b", "a"]}, "served_names", "('a', 'b', 'a')", "twice: write it once"),
    ({"host": None}, "host", "None", "write a text"),
    ({"host": ""}, "host", "''", ADDRESS),
    ({"host": "http://spark"}, "host", "'http://spark'", ADDRESS),
    ({"host": "0.0.0.0:8000"}, "host", "'0.0.0.0:8000'", ADDRESS),
    ({"host": "10.0.0.0/24"}, "host", "'10.0.0.0/24'", ADDRESS),
    ({"host": "300.1.1.1"}, "host", "'300.1.1.1'", ADDRESS),
    ({"host": "*"}, "host", "'*'", ADDRESS),
    ({"host": "a b"}, "host", "'a b'", ADDRESS),
    ({"host": "-spark"}, "host", "'-spark'", ADDRESS),
    ({"host": 'a"b'}, "host", "'a\"b'", ADDRESS),
    ({"host": "spark\n"}, "host", r"'spark\n'", ADDRESS),
    ({"port": 80}, "port", "80", "greater than or equal to 1024"),
    ({"port": 65536}, "port", "65536", "less than or equal to 65535"),
    ({"port": "eight"}, "port", "'eight'", "whole number"),
    ({"port": 8000.5}, "port", "8000.5", "whole number"),
    ({"port": True}, "port", "True", "write a number"),
    ({"port": None}, "port", "None", "whole number"),
    ({"api_key": "sk-1"}, "api_key", "", KEY),
    ({"api_key": "env:"}, "api_key", "", KEY),
    ({"api_key": "env:A B"}, "api_key", "", KEY),
    ({"api_key": "ENV:KEY"}, "api_key", "", KEY),
    ({"api_key": ""}, "api_key", "", KEY),
    ({"api_key": True}, "api_key", "", "write a text"),
    ({"api_key": "env:MY_KEY"}, "api_key", "'env:MY_KEY'", "MY_KEY is not set where you run this"),
    ({"engine": "newest"}, "engine", "'newest'", "such as '>=0.28'"),
    ({"engine": "0.28"}, "engine", "'0.28'", "such as '>=0.28'"),
    ({"engine": ">=0.28,<"}, "engine", "'>=0.28,<'", "such as '>=0.28'"),
    ({"engine": 28}, "engine", "28", "write a text"),
    ({"engine": ">=0.33"}, "engine", "'>=0.33'", MEETS),
    ({"engine": ">=99"}, "engine", "'>=99'", "none of those in releases/: make one, `sparkwright"),
    ({"quantization": 4}, "quantization", "4", "write a text"),
    ({"quantization": ""}, "quantization", "''", "is empty"),
    ({"online_quantization": 8}, "online_quantization", "8", "write a text"),
    ({"online_quantization": ""}, "online_quantization", "''", "is empty"),
    ({"quantization": "fp8", "online_quantization": "fp8"}, "online_quantization", "'fp8'", "one"),
    ({"kv_cache_dtype": 8}, "kv_cache_dtype", "8", "write a text"),
    ({"max_model_len": 0}, "max_model_len", "0", "greater than or equal to 1"),
    ({"max_model_len": "64 parsecs"}, "max_model_len", "'64 parsecs'", TOKENS),
    ({"max_model_len": "lots"}, "max_model_len", "'lots'", TOKENS),
    ({"max_model_len": "-3"}, "max_model_len", "'-3'", TOKENS),
    ({"max_model_len": "1.5"}, "max_model_len", "'1.5'", TOKENS),
    ({"max_model_len": ""}, "max_model_len", "''", TOKENS),
    ({"max_model_len": "1e5"}, "max_model_len", "'1e5'", TOKENS),
    ({"max_model_len": "٦٤K"}, "max_model_len", "'٦٤K'", TOKENS),
    ({"max_model_len": "9" * 70}, "max_model_len", f"'{'9' * 70}'", TOKENS),
    ({"max_model_len": True}, "max_model_len", "True", TOKENS),
    ({"max_model_len": 1.5}, "max_model_len", "1.5", "whole number"),
    ({"max_model_len": NAN}, "max_model_len", "nan", "finite number"),
    ({"max_model_len": INF}, "max_model_len", "inf", "finite number"),
    ({"gpu_memory_utilization": "most"}, "gpu_memory_utilization", "'most'", SHARE),
    ({"gpu_memory_utilization": "-3"}, "gpu_memory_utilization", "'-3'", SHARE),
    ({"gpu_memory_utilization": "85 percent"}, "gpu_memory_utilization", "'85 percent'", SHARE),
    ({"gpu_memory_utilization": "110%"}, "gpu_memory_utilization", "1.1", "less than or"),
    ({"gpu_memory_utilization": 85}, "gpu_memory_utilization", "85", "memory: 0.85 or '85%'"),
    ({"gpu_memory_utilization": 0}, "gpu_memory_utilization", "0", "greater than 0"),
    ({"gpu_memory_utilization": NAN}, "gpu_memory_utilization", "nan", "finite number"),
    ({"gpu_memory_utilization": True}, "gpu_memory_utilization", "True", "write a number"),
    ({"gpu_memory_utilization": None}, "gpu_memory_utilization", "None", "a number"),
    ({"kv_cache_memory_bytes": -1}, "kv_cache_memory_bytes", "-1", "greater than or equal to 1"),
    ({"kv_cache_memory_bytes": "32GiBs"}, "kv_cache_memory_bytes", "'32GiBs'", BYTES),
    ({"kv_cache_memory_bytes": "32gib"}, "kv_cache_memory_bytes", "'32gib'", BYTES),
    ({"kv_cache_memory_bytes": "0.3"}, "kv_cache_memory_bytes", "'0.3'", BYTES),
    ({"kv_cache_memory_bytes": "85%"}, "kv_cache_memory_bytes", "'85%'", BYTES),
    ({"kv_cache_memory_bytes": True}, "kv_cache_memory_bytes", "True", BYTES),
    ({"max_num_seqs": 0}, "max_num_seqs", "0", "greater than or equal to 1"),
    ({"max_num_seqs": 1.5}, "max_num_seqs", "1.5", "whole number"),
    ({"max_num_seqs": "many"}, "max_num_seqs", "'many'", "whole number"),
    ({"max_num_batched_tokens": 0}, "max_num_batched_tokens", "0", "greater than or equal to 1"),
    ({"max_num_batched_tokens": True}, "max_num_batched_tokens", "True", TOKENS),
    ({"max_num_batched_tokens": 4, "max_num_seqs": 8}, "max_num_batched_tokens", "4", "seqs (8)"),
    ({"tensor_parallel_size": 0}, "tensor_parallel_size", "0", "greater than or equal to 1"),
    ({"tensor_parallel_size": 3}, "tensor_parallel_size", "3", "less than or equal to 2"),
    ({"tensor_parallel_size": "two"}, "tensor_parallel_size", "'two'", "whole number"),
    ({"load_format": 1}, "load_format", "1", "write a text"),
    ({"enforce_eager": "maybe"}, "enforce_eager", "'maybe'", "True or False"),
    ({"enforce_eager": 2}, "enforce_eager", "2", "True or False"),
    ({"attention_backend": 1}, "attention_backend", "1", "write a text"),
    ({"moe_backend": 1}, "moe_backend", "1", "write a text"),
    ({"linear_backend": 1}, "linear_backend", "1", "write a text"),
    ({"reasoning_parser": 1}, "reasoning_parser", "1", "write a text"),
    ({"reasoning_parser": ""}, "reasoning_parser", "''", "is empty"),
    ({"tool_call_parser": True}, "tool_call_parser", "True", "write a text"),
    ({"tool_call_parser": ""}, "tool_call_parser", "''", "is empty"),
    ({"runtime_gib": 0}, "runtime_gib", "0", "greater than 0"),
    ({"runtime_gib": "6 GiB"}, "runtime_gib", "'6 GiB'", "a number"),
    ({"accept_freeze_risk": True}, "accept_freeze_risk", "True", "write a text"),
    ({"accept_freeze_risk": "yes"}, "accept_freeze_risk", "'yes'", "say in a few words why"),
    ({"ready_timeout_s": 29}, "ready_timeout_s", "29", "greater than or equal to 30"),
    ({"ready_timeout_s": "10s"}, "ready_timeout_s", "10", "greater than or equal to 30"),
    ({"ready_timeout_s": "soon"}, "ready_timeout_s", "'soon'", SECONDS),
    ({"ready_timeout_s": "15m"}, "ready_timeout_s", "'15m'", SECONDS),
    ({"ready_timeout_s": "2 days"}, "ready_timeout_s", "'2 days'", SECONDS),
    ({"ready_timeout_s": True}, "ready_timeout_s", "True", "write a number"),
    ({"shutdown_timeout_s": 0}, "shutdown_timeout_s", "0", "greater than or equal to 1"),
    ({"shutdown_timeout_s": "2h"}, "shutdown_timeout_s", "7200", "less than or equal to 3600"),
    ({"expects": 3}, "expects", "3", "dictionary"),
    ({"expects": None}, "expects", "None", "dictionary"),
    ({"expects": {"weights_gib": 0}}, "expects.weights_gib", "0", "greater than 0"),
    ({"expects": {"weights_gib": True}}, "expects.weights_gib", "True", "write a number"),
    ({"expects": {"tokens_per_s": NAN}}, "expects.tokens_per_s", "nan", "finite number"),
    ({"expects": {"cold_start_s": "7min"}}, "expects.cold_start_s", "'7min'", "whole number"),
    ({"expects": {"weight_gib": 1}}, "expects.weight_gib", "1", "did you mean 'weights_gib'?"),
    ({"expects": {"cold_start_s": 9, "warm_start_s": 10}}, "expects.cold_start_s", "9", "(10 s)"),
    ({"expects": {"cold_start_s": 4000}}, "ready_timeout_s", "3600", "is expected (4000 s)"),
    ({"config": "config.json"}, "config", "'config.json'", "write a dict"),
    ({"config": {"text_config": 3}}, "config.text_config", "3", "dict(...)"),
    ({"config": {"a": {1}}}, "config", "{'a': {1}}", PLAIN),
    ({"tool_call_parser": "hermes", "extra_args": {"enable-auto-tool-choice": False}},
     "extra_args.enable-auto-tool-choice", "False", "take one of the two out"),
    ({"tool_call_parser": "hermes", "extra_args": {"no-enable-auto-tool-choice": True}},
     "extra_args.no-enable-auto-tool-choice", "True", "is the same option as enable-auto-tool"),
    ({"max_model_len": 9, "max_num_batched_tokens": 8,
      "extra_args": {"enable-chunked-prefill": False}},
     "max_num_batched_tokens", "8", "without chunked prefill a prompt of max_model_len (9) must"),
    ({"config": {"num_key_value_head": 8}}, "config.num_key_value_head", "8", "did you mean"),
    ({"extra_args": {"--a-b": 1}}, "extra_args", "", "such as 'a-b'"),
    ({"dtype": "auto"}, "dtype", "", "is an option of vLLM: extra_args={'dtype': ...}"),
    ({"VLLM_USE_V1": "1"}, "VLLM_USE_V1", "", "variables go into env={'VLLM_USE_V1': ...}"),
    ({"config": {"a": [NAN]}}, "config", "{'a': [nan]}", PLAIN),
    ({"config": {"num_attention_heads": "9"}}, "config.num_attention_heads", "'9'", "whole number"),
    ({"config": {"max_position_embeddings": 4096}, "max_model_len": "8K"}, *REFUSED),
    ({"speculative_config": "mtp"}, "speculative_config", "", "write a dict"),
    ({"speculative_config": {}}, "speculative_config", "{}", "name a method, such as method='mtp'"),
    ({"max_model_length": 9}, "max_model_length", "9", "did you mean 'max_model_len'?"),
    ({"gpu_memory_utilisation": 1}, "gpu_memory_utilisation", "1", "mean 'gpu_memory_util"),
    ({"tensor_parallel": 2}, "tensor_parallel", "2", "did you mean 'tensor_parallel_size'?"),
    ({"prot": 8000}, "prot", "8000", "did you mean 'port'?"),
    ({"serve_names": ["a"]}, "serve_names", "", "did you mean 'served_names'?"),
    ({"xyzzy": 1}, "xyzzy", "1", "no such field; known: accept_freeze_risk, api_key, "),
    ({"extra_args": ["--seed"]}, "extra_args", "", "write a dict"),
    ({"extra_args": {1: 2}}, "extra_args.1.[key]", "", "write a text"),
    ({"extra_args": {"a": {1}}}, "extra_args", "", PLAIN),
    ({"env": ["A=1"]}, "env", "", "write a dict"),
    ({"env": {"A-B": "1"}}, "env", "", "'A-B' is no name"),
    ({"env": {"": "1"}}, "env", "", "'' is no name"),
    ({"env": {"A": "1\n2"}}, "env", "", CONTROL),
    ({"env": {"A": "1\x1b[0m"}}, "env", "", CONTROL),
    ({"env": {"A": "\x00"}}, "env", "", CONTROL),
    ({"env": {"A": 1}}, "env.A", "", "write a text"),
    ({"env": {"A": True}}, "env.A", "", "write a text"),
    ({"env": {"HF_TOKEN": "x"}}, "env", "", "HF_TOKEN is a secret"),
    ({"env": {"VLLM_API_KEY": "x"}}, "env", "", "use api_key"),
    ({"env": {"PATH": "/x"}}, "env", "", "PATH is set by sparkwright"),
]  # fmt: skip

# (extra_args, option that is named or "" when it is about the whole, part of the fix)
EXTRA: list[tuple[dict[str, Any], str, str]] = [
    ({"--seed": 1}, "", "'--seed': " + LONG),
    ({"--port": 1}, "", "'--port': " + LONG),
    ({"-q": "fp8"}, "", "'-q': " + LONG),
    ({"max_logprobs": 1}, "", "'max_logprobs': " + LONG),
    ({"": 1}, "", "'': " + LONG),
    ({"API-KEY": "x"}, "", "'API-KEY': " + LONG),
    ({"api-key": "x"}, "", "use the field api_key"),
    ({"hf-token": "x"}, "", "would show a secret"),
    ({"db-password": "x"}, "", "would show a secret"),
    ({"config": "/x.yaml"}, "", "take the server out of sparkwright's hands"),
    ({"headless": True}, "", "take the server out of sparkwright's hands"),
    ({"port": 8001}, "", "is the field port: set that one"),
    ({"max-model-len": 1}, "", "is the field max_model_len"),
    ({"enforce-eager": True}, "", "is the field enforce_eager"),
    ({"tensor-parallel-size": 2}, "", "is the field tensor_parallel_size"),
    ({"served-model-name": "x"}, "", "is the field served_names"),
    ({"shutdown-timeout": 0}, "", "is the field shutdown_timeout_s"),
    ({"spec-model": "/x"}, "spec-model", "'model' of the field speculative_config"),
    ({"spec-tokens": 2}, "spec-tokens", "'num_speculative_tokens' of the field"),
    ({"enable-auto-tool-choice": True}, "enable-auto-tool-choice = True", "set tool_call_parser"),
    ({"data-parallel-size": 2}, "data-parallel-size = 2", "a Spark has one GPU"),
    ({"pipeline-parallel-size": 2}, "pipeline-parallel-size = 2", "a pair of Sparks, or ray="),
    ({"distributed-executor-backend": "ray"}, "", "is the field ray"),
    ({"tp": 2}, "tp = 2", "write the long name, 'tensor-parallel-size'"),
    ({"max-logprob": 5}, "max-logprob = 5", "did you mean 'max-logprobs'?"),
    ({"max-model": 5}, "max-model = 5", "did you mean 'max-model-len'?"),
    ({"swap-space": 4}, "swap-space = 4", "is no option of vLLM 0.27.1"),
    ({"seed": "seven"}, "seed = 'seven'", "takes a whole number"),
    ({"seed": True}, "seed = True", "takes a whole number"),
    ({"seed": NAN}, "", PLAIN),
    ({"seed": None}, "seed = None", "leave the option out"),
    ({"enable-prefix-caching": "yes"}, "enable-prefix-caching = 'yes'", "is a switch: True"),
    ({"dtype": "fp7"}, "dtype = 'fp7'", "allowed: auto, bfloat16"),
    ({"limit-mm-per-prompt": "image=1"}, "limit-mm-per-prompt = 'image=1'", "a dict, or JSON"),
    ({"middleware": "-x"}, "middleware = '-x'", "begins with a dash"),
    ({"api-keys": "x"}, "api-keys", "did you mean 'api-key'?"),
]

# (profile fields that only the release's vLLM can judge, field, value, part of the fix)
OF_THE_RELEASE: list[tuple[dict[str, Any], str, str, str]] = [
    ({"kv_cache_dtype": "fp9"}, "kv_cache_dtype", "'fp9'", "did you mean 'fp8'?"),
    ({"kv_cache_dtype": ""}, "kv_cache_dtype", "''", "allowed: auto, "),
    ({"attention_backend": "FLASHINFR"}, "attention_backend", "'FLASHINFR'", "mean 'FLASHINFER'?"),
    ({"moe_backend": "marlyn"}, "moe_backend", "'marlyn'", "did you mean 'marlin'?"),
    ({"linear_backend": "marlin2"}, "linear_backend", "'marlin2'", "did you mean 'marlin'?"),
    ({"load_format": "safetensor"}, "load_format", "'safetensor'", "did you mean 'safetensors'?"),
    ({"reasoning_parser": "qwen33"}, "reasoning_parser", "'qwen33'", "did you mean 'qwen3'?"),
    ({"tool_call_parser": "qwen3xml"}, "tool_call_parser", "'qwen3xml'", "mean 'qwen3_xml'?"),
    ({"quantization": "nvfp5"}, "quantization", "'nvfp5'", "is no method of vLLM 0.27.1"),
    ({"online_quantization": "int3"}, "online_quantization", "'int3'", "vLLM 0.27.1 can't"),
]

# (variable, value, part of the fix)
VARIABLES = [
    ("VLLM_ATTENTION_BACKEND", "FLASHINFER", 'attention_backend="FLASHINFER" took its place'),
    ("VLLM_NVFP4_GEMM_BACKEND", "marlin", 'linear_backend="marlin" took its place'),
    ("VLLM_USE_FLASHINFER_MOE_FP4", "1", 'moe_backend="flashinfer_cutlass" took its place'),
    ("VLLM_USE_V1", "1", "leave it out"),
    ("VLLM_LOGGING_LEVL", "DEBUG", "did you mean 'VLLM_LOGGING_LEVEL'?"),
    ("VLLM_XYZZY", "1", "reads no such variable"),
]

# (data of the host, what is said about it after "host spark-1: ")
HOSTS: list[tuple[dict[str, Any], str]] = [
    ({"release": None}, "release: write release = dict(lock='releases/...'), for all hosts in"),
    ({"release": "x.txt"}, "release = 'x.txt': write release = dict(lock="),
    ({"release": []}, "release = []: write release = dict(lock="),
    ({"release": {}}, "release: found none of lock, floating and nightly; write one: lock="),
    ({"release": {**LOCK, "floating": "vllm"}}, "release: found more than one of lock, floating"),
    ({"release": {**LOCK, "nightly": True}}, "release: found more than one of lock, floating"),
    ({"release": {"nightly": False}}, "release: found none of lock, floating and nightly"),
    ({"release": {"nightly": True}}, "release: nightly needs extra_index_url='https://...'"),
    ({"release": {"floating": "torch"}}, "release: floating = 'torch': write a requirement of v"),
    ({"release": {"floating": "vllm", "extra_index_url": "http://x"}}, "'http://x': write https://"),
    ({"release": {**LOCK, "extra_index_url": "https://x"}}, "is for floating and nightly"),
    ({"release": {**LOCK, "refresh": "x"}}, "release: refresh is for floating and nightly"),
    ({"release": {"lock": 1}}, "release: lock = 1: write a text"),
    ({"release": {"lock": "releases"}}, "release.lock = 'releases': can't be read: it is no file"),
    ({"release": {"lock": "releases/\0"}}, r"release.lock = 'releases/\x00': can't be read"),
    ({"release": {"lock": "releases/vllm-0.27.1-arch64.txt"}},
     "no such file; did you mean 'releases/vllm-0.27.1-aarch64.txt'?"),
    ({"release": {**LOCK, "python": "312"}}, "release: python = '312': write it like '3.12'"),
    ({"release": {**LOCK, "python": 3.12}}, "release: python = 3.12: write a text"),
    ({"release": {**LOCK, "cuda": 13}}, "release: cuda = 13: write a text"),
    ({"release": {**LOCK, "disk_gib": 0}}, "release: disk_gib = 0: input should be greater than"),
    ({"release": {**LOCK, "disk_gib": True}}, "release: disk_gib = True: write a number"),
    ({"release": {**LOCK, "find_links": "/a"}}, "release: find_links = '/a': write a list"),
    ({"release": {**LOCK, "packages": 1}}, "release: packages = 1: write a list"),
    ({"release": {**LOCK, "packages": ["Lib X"]}}, "'Lib X' is no name of a Debian package"),
    ({"release": {**LOCK, "lok": "a"}}, "release: lok: no such field; did you mean 'lock'?"),
    ({"platform": "spark"}, "platform = 'spark': write platform = dict(...)"),
    ({"platform": {"architecture": "arm64"}}, "architecture = 'arm64': allowed: aarch64, x86_64"),
    ({"platform": {"dgx_os": "perhaps"}}, "dgx_os = 'perhaps': write True or False"),
    ({"platform": {"driver_branch": "new"}}, "driver_branch = 'new': write a whole number"),
    ({"platform": {"driver_branch": True}}, "driver_branch = True: write a number"),
    ({"platform": {"cuda_major": 13.2}}, "cuda_major = 13.2: write a whole number"),
    ({"platform": {"compute_capability": 12.1}}, "compute_capability = 12.1: write a text"),
    ({"platform": {"compute_capability": "new"}}, "capability = 'new': write it like '12.1'"),
    ({"platform": {"architecture": "x86_64"}}, "was made for aarch64, this host is x86_64"),
    ({"release": {**LOCK, "python": "3.13"}}, "aarch64.txt was made for Python 3.12: write that"),
    ({"release": {"lock": ""}}, "release.lock = '': can't be read: it is no file"),
    ({"platform": {"memory_gib": -1}}, "memory_gib = -1: input should be greater than 0"),
    ({"platform": {"memory_gib": "119 GiB"}}, "memory_gib = '119 GiB': write a number"),
    ({"platform": {"memory_gib": NAN}}, "memory_gib = nan: input should be a finite number"),
    ({"platform": {"os_reserve_gib": -1}}, "os_reserve_gib = -1: input should be greater than or"),
    ({"platform": {"gpus": "x"}}, "gpus: no such field; did you mean 'gpu'?"),
    ({"ssh_port": "x"}, "ssh_port = 'x': write a number from 1 to 65535, such as 22"),
    ({"ssh_port": [22]}, "ssh_port = [22]: write a number from 1 to 65535, such as 22"),
    ({"ssh_hostname": 7}, "ssh_hostname = 7: write a name or an address, a text"),
    ({"ssh_user": ["me"]}, "ssh_user = ['me']: write the name of an account, a text"),
    ({"profile": MODEL}, "profile: belongs into a file: group_data/NAME.py"),
    ({"relase": LOCK}, "relase: no such setting; did you mean 'release'?"),
    ({"pairs": "a"}, "pairs: no such setting; did you mean 'pair'?"),
    ({"pair": ["b"]}, "pair = ['b']: write a name, the same for both Sparks"),
    ({"pair": " a"}, "pair = ' a': write a name"),
    ({"pair": "a\n"}, r"pair = 'a\n': write a name"),
    ({"pair": ""}, "pair = '': write a name"),
]  # fmt: skip


def found(
    hosts: Mapping[str, tuple[tuple[str, ...], dict[str, Any]]],
    profiles: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> list[Problem]:
    """What the plan says. hosts: groups and data by name; profiles: by group."""
    raw = [RawHost(n, ("all", *g), {"release": LOCK} | d, d) for n, (g, d) in hosts.items()]
    data = {"all": {}} | {group: {"profile": profile} for group, profile in profiles.items()}
    return together(make_plan(raw, data, environment=environment or {}).problems)


def one(profile: Any = None, /, **data: Any) -> str:
    (problem,) = found({"spark-1": (("tiny",), data)}, {"tiny": profile or MODEL})
    assert "\n" not in str(problem)
    return str(problem)


def test_what_the_cases_change_is_right_before() -> None:
    assert found({"spark-1": (("tiny",), {})}, {"tiny": MODEL}) == []
    assert found({"spark-1": (("tiny",), {})}, {"tiny": HUB}) == []


@pytest.mark.parametrize(("change", "field", "value", "fix"), PROFILES + OF_THE_RELEASE, ids=str)
def test_profile(change: dict[str, Any], field: str, value: str, fix: str) -> None:
    said = one({**MODEL, **change})
    shown = f"{field} = {value}" if value else field
    assert said.startswith(f"group_data/tiny.py: {shown}: "), said
    assert fix in said


@pytest.mark.parametrize(("extra", "option", "fix"), EXTRA, ids=str)
def test_extra_args(extra: dict[str, Any], option: str, fix: str) -> None:
    said = one({**MODEL, "extra_args": extra})
    field = f"extra_args.{option}" if option else "extra_args"
    assert said.startswith(f"group_data/tiny.py: {field}: "), said
    assert fix in said


@pytest.mark.parametrize(("name", "value", "fix"), VARIABLES)
def test_variable_that_the_release_does_not_read(name: str, value: str, fix: str) -> None:
    said = one({**MODEL, "env": {name: value}})
    assert said.startswith(f"group_data/tiny.py: env.{name}: ")  # its value may be a secret
    assert fix in said


@pytest.mark.parametrize(("data", "expected"), HOSTS, ids=str)
def test_host(data: dict[str, Any], expected: str) -> None:
    said = one(**data)
    assert said.startswith("host spark-1: ")
    assert expected in said
