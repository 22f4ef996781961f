"""Command line: ``vllm serve`` with the options of the real one, and ``vllm --version``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from vllm import __version__

_TYPES = {"int": int, "float": float, "": str}


def main() -> None:
    """Run as ``vllm``; exit as vLLM does (2 on a bad command line)."""
    parser = argparse.ArgumentParser(prog="vllm", allow_abbrev=False)
    parser.add_argument("-v", "--version", action="version", version=__version__)
    serve = parser.add_subparsers(dest="subcommand", metavar="{serve}").add_parser("serve")
    _add_options(serve)
    args = parser.parse_args(_with_config(sys.argv[1:], serve))
    if args.subcommand != "serve":
        parser.print_help()
        return
    from vllm.serve import serve as run

    sys.exit(run(args))


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?")
    for line in Path(__file__).with_name("options.txt").read_text().splitlines()[1:]:
        names, values, kind, choices = (line + "|||").split("|")[:4]
        flags = names.split()
        if values == "0":
            positive = [flag for flag in flags if not flag.startswith("--no-")]
            action: Any = argparse.BooleanOptionalAction
            if len(positive) == len(flags) or not positive:
                action, positive = "store_true", flags
            parser.add_argument(*positive, action=action, default=None)
            continue
        options: dict[str, Any] = {"type": _TYPES[kind]}
        if choices:
            options["choices"] = [_TYPES[kind](choice) for choice in choices.split(",")]
        if values in "+?":
            options["nargs"] = values
        elif values == "append":
            options = {"action": "append"}
        parser.add_argument(*flags, **options)


def _with_config(argv: list[str], serve: argparse.ArgumentParser) -> list[str]:
    """Return ``argv`` with the options of its ``--config`` file put before all others."""
    if "--config" not in argv or argv[0] != "serve":
        return argv
    index = argv.index("--config")
    path = Path(argv[index + 1])
    if path.suffix not in {".yaml", ".yml"}:
        raise ValueError(f"Config file must be of a yaml/yml type.              {path} provided")
    known = serve._option_string_actions
    config: list[str] = []
    for key, value in read_yaml(path.read_text()).items():
        if value is False:
            config += [f"--no-{key}"] if f"--no-{key}" in known else []
        elif value is True:
            config += [f"--{key}"]
        elif isinstance(value, list):
            config += [f"--{key}", *map(str, value)]
        else:
            config += [f"--{key}", json.dumps(value) if isinstance(value, dict) else str(value)]
    rest = argv[1:index] + argv[index + 2 :]
    model = [rest.pop(0)] if rest and not rest[0].startswith("-") else []
    if not model and "--model" not in config:
        raise ValueError(
            "No model specified! Please specify model either as a positional argument or "
            "in a config file."
        )
    return ["serve", *model, *config, *rest]


def read_yaml(text: str) -> dict[str, Any]:
    """Read the YAML that a serve.yaml is written in: ``key: scalar``, JSON, lists of scalars."""
    values: dict[str, Any] = {}
    key = ""
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith("#") or bare == "---":
            continue
        if bare.startswith("- "):
            values[key] = [*(values[key] or []), _scalar(bare[2:])]
            continue
        key, colon, rest = bare.partition(":")
        if not colon:
            raise ValueError(f"could not find expected ':' in {line!r}")
        values[key] = _scalar(rest) if rest.strip() else None
    return values


def _scalar(text: str) -> Any:
    text = text.strip()
    try:
        return json.loads(text)
    except ValueError:
        pass
    if text.startswith("'") and text.endswith("'"):
        return text[1:-1].replace("''", "'")
    return text.partition(" #")[0].rstrip()
