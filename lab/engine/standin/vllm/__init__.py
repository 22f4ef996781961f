"""A stand-in for vLLM's server: same command line, endpoints, log lines and exit behaviour.

For tests in which the engine is not the point: it starts in a second and needs 30 MB. It takes
vLLM 0.32.0's options from ``options.txt`` and its log lines from a real start on the CPU.
Environment variables make it misbehave; unset, it behaves:

STANDIN_START_SECONDS   how long a start takes, spread over its phases (0.5)
STANDIN_DIE_AT          phase at whose end the start fails with a traceback (see below)
STANDIN_HANG_AT         phase at whose end the start stops making progress
STANDIN_EXIT_CODE       exit status of a start that fails by STANDIN_DIE_AT (1)
STANDIN_GENERATE        hang: requests never finish. empty: an end of turn at once, no text.
                        none: as empty, and usage counts no token. garbage: only "!".
                        error: 500
                        queue: one request at a time, the others wait
STANDIN_SWITCH          file; while it is there, its text stands for STANDIN_GENERATE. It may also
                        say unhealthy: /health says 503 though the engine lives
STANDIN_TOKEN_SECONDS   time for each token (0)
STANDIN_IGNORE_API_KEY  1: answers without the key too

Like vLLM 0.32.0 it does not obey SIGTERM while it starts: a hanging start ends by SIGKILL only.
Phases in order: config, engine, load, warmup, kv. The first is of the API server, the others are
of the engine process.
"""

from __future__ import annotations

from importlib.metadata import version

__version__ = version("vllm")
PHASES = ("config", "engine", "load", "warmup", "kv")
