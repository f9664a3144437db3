"""A mechanism before its heads are known: a name and options, as a value with a text form.

    recipe := word [ "(" [ name "=" value ("," name "=" value)* ] ")" ]
    value  := integer | decimal | true | false | none | word

Models, saved folders and the command line name mechanisms so; ``make`` builds the module.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from torch import nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.mechanisms.additive import Additive
from eyeline.mechanisms.exact import Exact
from eyeline.mechanisms.extra import ExtraKeys
from eyeline.mechanisms.fewer.compressed import By, Compressed
from eyeline.mechanisms.fewer.linformer import Linformer, Sharing
from eyeline.mechanisms.linear.attention import LinearAttention
from eyeline.mechanisms.routed.buckets import By as LSHBy
from eyeline.mechanisms.routed.clustered import ClusteredQueries
from eyeline.mechanisms.routed.kmeans import KMeans
from eyeline.mechanisms.routed.lsh import LSH
from eyeline.mechanisms.routed.picking import Threshold, TopK
from eyeline.mechanisms.routed.sinkhorn import Network, Sinkhorn
from eyeline.patterns import Pattern

# How each mechanism is made for a layer: its name, and the module for a pattern and heads.


@dataclass(frozen=True)
class Heads:
    """What a mechanism works on: so many heads of queries, of keys, and their width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int


Make = Callable[..., nn.Module]
"""(pattern, heads, *, dropout, **options) to a module that is called as ``Exact`` is."""


def _exact(pattern: Pattern, heads: Heads, *, dropout: float) -> nn.Module:
    return Exact(pattern, dropout=dropout)


def _additive(
    pattern: Pattern, heads: Heads, *, dropout: float, hidden: int | None = None
) -> nn.Module:
    return Additive(
        heads.num_heads, heads.head_dim, hidden=hidden, pattern=pattern, dropout=dropout
    )


def _extra_keys(pattern: Pattern, heads: Heads, *, dropout: float, count: int) -> nn.Module:
    exact = Exact(pattern, dropout=dropout)
    return ExtraKeys(exact, count, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim)


def _linformer(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    length: int,
    k: int,
    sharing: Sharing | None = "heads",
) -> nn.Module:
    return Linformer(
        length, k, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim,
        sharing=sharing if sharing is not None else "none",  # the word none reads as None
        pattern=pattern, dropout=dropout,
    )  # fmt: skip


def _compressed(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    factor: int,
    by: By = "conv",
    local: bool = False,
    rounds: int = 5,
) -> nn.Module:
    return Compressed(
        factor, by=by, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim,
        pattern=pattern, local=local, rounds=rounds, dropout=dropout,
    )  # fmt: skip


def _linear(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    feature_map: str = "elu",
    features: int | None = None,
    seed: int = 0,
) -> nn.Module:
    if dropout:
        raise NotSupported(f"dropout={dropout:g}: linear attention has no weights to leave out")
    return LinearAttention(
        heads.num_heads, heads.head_dim,
        feature_map=feature_map, pattern=pattern, features=features, seed=seed,
    )  # fmt: skip


def _topk(pattern: Pattern, heads: Heads, *, dropout: float, k: int) -> nn.Module:
    return TopK(k, pattern=pattern, dropout=dropout)


def _threshold(pattern: Pattern, heads: Heads, *, dropout: float, t: float) -> nn.Module:
    return Threshold(t, pattern=pattern, dropout=dropout)


def _lsh(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    bucket_size: int = 64,
    rounds: int = 4,
    by: LSHBy = "chunks",
    buckets: int | None = None,
    seed: int = 0,
) -> nn.Module:
    return LSH(
        bucket_size, rounds, pattern=pattern, by=by, buckets=buckets, seed=seed, dropout=dropout
    )


def _kmeans(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    clusters: int,
    window: int,
    decay: float = 0.999,
    commitment: float = 1e-4,
    seed: int = 0,
) -> nn.Module:
    return KMeans(
        clusters, window, num_heads=heads.num_heads, head_dim=heads.head_dim,
        pattern=pattern, decay=decay, commitment=commitment, seed=seed, dropout=dropout,
    )  # fmt: skip


def _clustered(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    clusters: int,
    topk: int,
    rounds: int = 10,
) -> nn.Module:
    return ClusteredQueries(clusters, topk, pattern=pattern, rounds=rounds, dropout=dropout)


def _sinkhorn(
    pattern: Pattern,
    heads: Heads,
    *,
    dropout: float,
    block: int,
    network: Network = "pairs",
    blocks: int | None = None,
    iterations: int = 8,
    temperature: float = 0.75,
    noise: float = 0.0,
) -> nn.Module:
    return Sinkhorn(
        block, num_kv_heads=heads.num_kv_heads, head_dim=heads.head_dim,
        network=network, blocks=blocks, iterations=iterations, temperature=temperature,
        noise=noise, pattern=pattern, dropout=dropout,
    )  # fmt: skip


TABLE: Mapping[str, Make] = {
    "exact": _exact,
    "additive": _additive,
    "extra_keys": _extra_keys,
    "topk": _topk,
    "threshold": _threshold,
    "lsh": _lsh,
    "kmeans": _kmeans,
    "clustered": _clustered,
    "sinkhorn": _sinkhorn,
    "linear": _linear,
    "linformer": _linformer,
    "compressed": _compressed,
}
"""Mechanisms by name."""


Option = int | float | bool | str | None

MAX_CHARACTERS = 500
_RECIPE = re.compile(r"\s*([a-z_][a-z_0-9]*)\s*(?:\((.*)\))?\s*", re.DOTALL)
_OPTION = re.compile(r"\s*([a-z_][a-z_0-9]*)\s*=\s*([A-Za-z_0-9.+-]+)\s*")
_WORDS: Mapping[str, Option] = {"true": True, "false": False, "none": None}


@final
@dataclass(frozen=True)
class Recipe:
    """A mechanism by name, with its options; ``str`` and ``recipe`` are inverse.

    Raises InvalidArgument for a name that is not in ``TABLE``, and for options it does not have.
    """

    name: str = "exact"
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        if self.name not in TABLE:
            known = ", ".join(sorted(TABLE))
            raise InvalidArgument(f"there is no mechanism {self.name!r}; there are: {known}")
        asked = inspect.signature(TABLE[self.name])
        try:
            asked.bind(None, None, dropout=0.0, **dict(self.options))
        except TypeError as error:
            raise InvalidArgument(f"{self}: {error}; {self._takes()}") from None

    def make(self, pattern: Pattern, heads: Heads, *, dropout: float = 0.0) -> nn.Module:
        """The module. Raises InvalidArgument or NotSupported for what it cannot honour."""
        return TABLE[self.name](pattern, heads, dropout=dropout, **dict(self.options))

    def _takes(self) -> str:
        names = list(inspect.signature(TABLE[self.name]).parameters)[3:]
        return f"{self.name} takes {', '.join(names) if names else 'no options'}"

    def __str__(self) -> str:
        listed = ", ".join(f"{name}={_text(value)}" for name, value in self.options)
        return f"{self.name}({listed})" if listed else self.name


def recipe(text: str) -> Recipe:
    """From ``extra_keys(count=16)`` to a Recipe. Raises InvalidArgument with what was read."""
    return Recipe(*word_and_options(text))


def word_and_options(text: str) -> tuple[str, tuple[tuple[str, Option], ...]]:
    """The word of a recipe and its options, whether or not there is such a mechanism."""
    found = _RECIPE.fullmatch(text) if len(text) <= MAX_CHARACTERS else None
    if found is None:
        raise InvalidArgument(
            f"mechanism {text[:80]!r} is not of the form name(option=value, option=value)"
        )
    inner = (found[2] or "").strip()
    options = [_option(part) for part in inner.split(",")] if inner else []
    names = [name for name, _ in options]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InvalidArgument(f"mechanism {text!r}: {twice} is given twice")
    return found[1], tuple(options)


def _option(part: str) -> tuple[str, Option]:
    found = _OPTION.fullmatch(part)
    if found is None:
        raise InvalidArgument(f"mechanism option {part.strip()!r} is not of the form name=value")
    return found[1], _value(found[2])


def _value(text: str) -> Option:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if re.fullmatch(r"[+-]?\d+", text):
        if len(text) > 10 or abs(int(text)) >= 1 << 31:  # a size out of a file, or a slip
            raise InvalidArgument(f"mechanism option value {text:.40}: it is below 2,147,483,648")
        return int(text)
    if re.fullmatch(r"[+-]?(\d+\.\d*|\.\d+|\d+(\.\d*)?[eE][+-]?\d+)", text):
        return float(text)
    if re.fullmatch(r"[A-Za-z_][A-Za-z_0-9]*", text):
        return text
    raise InvalidArgument(f"mechanism option value {text!r}: a number or a word is due")


def _text(value: Option) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
