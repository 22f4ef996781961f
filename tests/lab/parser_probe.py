"""Runs on a lab host, under the interpreter of its vLLM: what the real parser makes of files.

Reads {name: {"yaml": text, "engine": bool}} as JSON from standard input; writes a JSON object by
name: the values of the namespace, or the error. The parser is built as `vllm` builds it: `serve`
is a subcommand, so its options are parsed by a subparser. With "engine" the configuration of the
engine is made as well, which refuses some of the names that the parser lets pass.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import tempfile
from typing import Any


def plain(value: Any) -> Any:
    try:
        json.dumps(value)
    except TypeError:
        return repr(value)
    return value


def main() -> dict[str, Any]:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser()
    (serve,) = cmd_init()
    serve.subparser_init(parser.add_subparsers(required=False, dest="subparser"))
    answers: dict[str, Any] = {}
    for name, case in json.load(sys.stdin).items():
        said = io.StringIO()
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(case["yaml"])
            file.flush()
            try:
                with contextlib.redirect_stderr(said):
                    namespace = parser.parse_args(["serve", "--config", file.name])
                if case["engine"]:
                    namespace.model = namespace.model_tag
                    AsyncEngineArgs.from_cli_args(namespace).create_engine_config()
            except SystemExit as end:
                last = said.getvalue().strip().splitlines()[-1:]
                answers[name] = {"error": f"exit {end.code}: {''.join(last)}"}
            except Exception as error:
                answers[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            else:
                answers[name] = {"values": {k: plain(v) for k, v in vars(namespace).items()}}
    return answers


if __name__ == "__main__":
    with contextlib.redirect_stdout(sys.stderr):
        result = main()
    print(json.dumps(result))
