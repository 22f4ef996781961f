"""The tables of fields in docs/, made from the models: `python -m sparkwright.reference` rewrites.

A test fails when a table in docs/ is not what this module makes.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le
from pydantic.fields import FieldInfo

from sparkwright.fabric import Fabric
from sparkwright.plan import ROOT
from sparkwright.releases import EngineRelease
from sparkwright.settings import Expects, ModelProfile, Platform, Setting

MODELS: dict[str, type[Setting]] = {
    "profile": ModelProfile,
    "expects": Expects,
    "release": EngineRelease,
    "platform": Platform,
    "fabric": Fabric,
}
_NAMES = {str: "text", int: "whole number", float: "number", bool: "True or False"}


def table(model: type[Setting]) -> str:
    """Markdown: field, type and limits, default, meaning."""
    lines = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for name, field in model.model_fields.items():
        kind = " ".join([_type(field.annotation), *_limits(field)])
        meaning = field.description or ""
        lines.append(f"| `{name}` | {kind} | {_default(field)} | {meaning} |")
    return "\n".join(lines)


def profiles() -> str:
    """Markdown: the profiles of group_data/, one a line."""
    lines = ["| profile | model | Sparks | context | budget | for |", "|---|---|---|---|---|---|"]
    for file in sorted((ROOT / "group_data").glob("*.py")):
        names = runpy.run_path(str(file))
        if "profile" not in names:
            continue
        profile = ModelProfile.model_validate(names["profile"])
        context = f"{profile.max_model_len:,}" if profile.max_model_len else "the model's"
        cells = (
            f"`{file.stem}`",
            profile.model,
            str(profile.tensor_parallel_size),
            context,
            f"{profile.gpu_memory_utilization:g}",
            (names["__doc__"] or "").split("\n")[0].partition(": ")[2],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """A page with each table between `<!-- fields: NAME -->` and `<!-- end -->` made anew."""
    text = re.sub(
        r"(<!-- profiles -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{profiles()}\n{found[2]}",
        text,
        flags=re.S,
    )
    return re.sub(
        r"(<!-- fields: (\w+) -->\n).*?(<!-- end -->)",
        lambda found: f"{found[1]}{table(MODELS[found[2]])}\n{found[3]}",
        text,
        flags=re.S,
    )


def _type(annotation: Any) -> str:
    if isinstance(annotation, type) and issubclass(annotation, Setting):
        return "dict, see below"
    origin = get_origin(annotation)
    if origin in (UnionType, Union):
        return " or ".join(_type(a) for a in get_args(annotation) if a is not type(None))
    if origin is tuple:
        return f"list of {_type(get_args(annotation)[0])}s"
    if origin is dict:
        return "dict"
    if origin is Literal:
        return " or ".join(f"`{word!r}`" for word in get_args(annotation))
    return _NAMES[annotation] if annotation in _NAMES else _type(get_args(annotation)[0])


def _limits(field: FieldInfo) -> list[str]:
    said = []
    for limit in field.metadata:
        if isinstance(limit, Ge):
            said.append(f"≥ {limit.ge}")
        elif isinstance(limit, Gt):
            said.append(f"> {limit.gt}")
        elif isinstance(limit, Le):
            said.append(f"≤ {limit.le}")
    return said


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "**required**"
    value = field.default
    return "" if value in (None, (), {}) or isinstance(value, Setting) else f"`{value!r}`"


def main() -> None:
    """Rewrite the tables of every page in docs/."""
    for page in Path(ROOT / "docs").glob("*.md"):
        page.write_text(rewritten(page.read_text()))


if __name__ == "__main__":
    main()
