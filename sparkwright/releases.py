"""Engine releases: what a user writes of one, and what it becomes on a host."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Self

from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator, model_validator

from sparkwright import paths
from sparkwright.settings import Setting

_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")


class EngineRelease(Setting):
    """The engine and everything it needs. Exactly one kind: `lock`, `floating` or `nightly`."""

    lock: str | None = Field(
        None, description="requirement file with hashes, relative to the project: the default kind"
    )
    floating: str | None = Field(
        None, description="requirement that the host resolves when it builds the release: `vllm`"
    )
    nightly: bool = Field(False, description="newest build of the index `extra_index_url`")
    extra_index_url: str | None = Field(
        None, description="https address of a further index, for `floating` and `nightly`"
    )
    refresh: str = Field(
        "", description="free text; another one builds a floating or nightly release anew"
    )
    python: Annotated[str, Field(pattern=r"^3\.\d+$")] = Field(
        "3.12", description="of the host; DGX OS has 3.12"
    )
    cuda: str | None = Field(
        "13",
        pattern=r"^\d+$",
        description="major CUDA version that torch must be built for; None: a CPU build",
    )
    find_links: tuple[str, ...] = Field((), description="folders on the host that hold wheels")
    packages: tuple[str, ...] = Field((), description="further Debian packages that it needs")
    disk_gib: float = Field(
        16,
        gt=0,
        description="free disk for download and venv (0.33.0: 4.4 GB and 9.1 GB, then bytecode)",
    )

    @field_validator("packages")
    @classmethod
    def _packages_are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not _PACKAGE.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a Debian package")
        return value

    @field_validator("floating")
    @classmethod
    def _floating_is_vllm(cls, value: str | None) -> str | None:
        if value is None:
            return None
        try:
            wanted = Requirement(value)
        except InvalidRequirement:
            wanted = None
        if wanted is None or wanted.name.lower() != "vllm" or wanted.url or wanted.marker:
            raise ValueError("write a requirement of vllm: 'vllm', 'vllm>=0.33' or 'vllm==0.33.0'")
        wanted.name = "vllm"
        return str(wanted)

    @field_validator("extra_index_url")
    @classmethod
    def _index_is_https(cls, value: str | None) -> str | None:
        if value is None:
            return None
        if not re.fullmatch(r"https://[^\s@/?#]+(/[^\s@?#]*)?", value):
            raise ValueError(
                "write https://HOST/PATH; a name and password for it go into root's .netrc on the "
                "host, never into a file here"
            )
        return value

    @field_validator("refresh")
    @classmethod
    def _refresh_is_one_line(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("write one line of text, a date for example")
        return value

    @model_validator(mode="after")
    def _is_of_one_kind(self) -> Self:
        kinds = [self.lock is not None, self.floating is not None, self.nightly]
        if sum(kinds) != 1:
            found = "found none" if not any(kinds) else "found more than one"
            raise ValueError(
                f"{found} of lock, floating and nightly; write one: "
                "lock='releases/....txt' (with hashes), floating='vllm' or nightly=True"
            )
        if self.nightly and not self.extra_index_url:
            raise ValueError(
                "nightly needs extra_index_url='https://...', the address of the nightly index "
                "(vLLM's installation page names it)"
            )
        if self.lock is not None and (self.extra_index_url or self.refresh):
            field = "extra_index_url" if self.extra_index_url else "refresh"
            raise ValueError(
                f"{field} is for floating and nightly, and lock decides every file by its hash: "
                "remove it, or make another lock (sparkwright lock)"
            )
        return self

    @property
    def unlocked_text(self) -> str:
        """Requirement file of a floating or nightly release: all that it is made of."""
        # The specifier admits development builds of vLLM itself; `--pre` would take those of its
        # 200 dependencies too.
        wanted = self.floating or "vllm>=0.dev0"
        index = [f"--extra-index-url {self.extra_index_url}"] if self.extra_index_url else []
        made_of = [f"# refresh: {self.refresh}", *(f"# wheels: {f}" for f in self.find_links)]
        head = "# Not locked: the host resolved it when the release was built."
        return "\n".join([head, *made_of, *index, wanted, ""])


@dataclass(frozen=True)
class Release:
    """An engine release, identified by what it is made of."""

    settings: EngineRelease
    lock_text: str = field(repr=False)
    """Content of the lock; of a floating or nightly release, its requirement file."""

    @cached_property
    def id(self) -> str:
        """Names the folder on the host: another lock or another Python is another release."""
        made_of = f"{self.settings.python} {self.settings.cuda}\n{self.lock_text}"
        digest = hashlib.sha256(made_of.encode()).hexdigest()
        kind = "vllm-nightly" if self.settings.nightly else "vllm-floating"
        name = kind if self.settings.lock is None else Path(self.settings.lock).stem
        return f"{name}-{digest[:10]}"

    @property
    def path(self) -> str:
        return f"{paths.RELEASES}/{self.id}"

    @cached_property
    def engine_version(self) -> str | None:
        """The vLLM in it, without a local part such as `+cpu`; None when only the host can say."""
        return version_in(self.lock_text)

    @property
    def reproducible(self) -> bool:
        """Whether another host, or a later day, gets the same: hashes decide every file of it."""
        return self.settings.lock is not None and not self.unhashed

    @cached_property
    def unhashed(self) -> tuple[str, ...]:
        """Packages of a lock without a whole hash, which an install refuses."""
        return _unhashed(self.lock_text) if self.settings.lock else ()


@cache
def _unhashed(text: str) -> tuple[str, ...]:
    pins = re.finditer(r"(?m)^([A-Za-z0-9][\w.-]*)(?:\[.*\])?==.*(?:\n[ \t]+.*)*", text)
    whole = re.compile(r"--hash=sha256:[0-9a-f]{64}\b")
    return tuple(pin[1] for pin in pins if not whole.search(pin[0]))


@cache
def version_in(lock_text: str) -> str | None:
    """The version of vLLM that a lock names, without a local part."""
    pin = r"^vllm(?:-cpu)?(?:\[[^\]]*\])?==(\d[\w.]*)(?=[\s;,+\\]|$)"
    found = re.search(pin, lock_text, re.M)
    try:
        return str(Version(found[1])) if found else None
    except InvalidVersion:
        return None
