"""What torch.compile cannot take is refused by name, with what would work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from compile.traced import Counted, assert_same, tensors
from eyeline import (
    Blocks,
    Causal,
    Global,
    Pattern,
    Predicate,
    Tokens,
    attention,
    parse,
    sliding_window,
)
from eyeline.errors import InvalidArgument
from eyeline.exact.packed import read
from eyeline.patterns import register
from eyeline.scores import Block, ScoreMod, ScoreStep, Step, Table
from eyeline.tokens import Points

Q, K, V = tensors(13)


@register
@dataclass(frozen=True)
class Share(Pattern):
    """A user's pattern whose text cannot be read back."""

    part: float

    def allows(self, q: Points, k: Points) -> Tensor:
        return k.position < self.part * q.position


@register
@dataclass(frozen=True, eq=False)
class Listed(Pattern):
    """A user's pattern that carries a tensor."""

    members: Tensor

    @property
    def bound(self) -> tuple[Pattern, ...]:
        return (self,)

    def allows(self, q: Points, k: Points) -> Tensor:
        return torch.isin(k.position, self.members) & (q.position >= 0)


def _causal_of_ours() -> Pattern:
    def allows(self: Pattern, q: Points, k: Points) -> Tensor:
        return q.position < k.position

    kind = type("Causal", (Pattern,), {"allows": allows, "arguments": lambda self: {}})
    made: Pattern = kind()
    return made


class Doubled(ScoreMod, ScoreStep):
    """A user's own step."""

    def steps(self) -> tuple[Step, ...]:
        return (self,)

    def define(self, score: Tensor, pairs: Any) -> Tensor:
        return 2 * score

    def forward(self, score: Tensor, block: Block, table: Table | None) -> Tensor:
        return 2 * score

    def backward(self, slope: Tensor, after: Tensor, block: Block, table: Table | None) -> Tensor:
        return 2 * slope


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "callable pattern": (
        lambda: attention(Q, K, V, Predicate(lambda b, h, q, k: q >= k)),
        "predicate cannot go through torch.compile",
    ),
    "callable score_mod": (
        lambda: attention(Q, K, V, score_mod=lambda s, b, h, i, j: s),
        "Called cannot go through torch.compile, which knows the steps Bias, ",
    ),
    "own step": (lambda: attention(Q, K, V, score_mod=Doubled()), "Doubled cannot go through"),
    "own pattern with a tensor": (
        lambda: attention(Q, K, V, LISTED), "listed cannot go through torch.compile"
    ),
    "own pattern with a fraction": (
        lambda: attention(Q, K, V, Share(0.5)), "share part is a float: torch.compile reads"
    ),
    "own pattern inside another": (
        lambda: attention(Q, K, V, Causal() & ~Share(0.5)), "share part is a float"
    ),
    "a word of ours": (
        lambda: attention(Q, K, V, OWN_CAUSAL), "is not registered under its word 'causal'"
    ),
    "a long text": (
        lambda: attention(Q, K, V, MANY, q_tokens=TOKENS, k_tokens=TOKENS),
        "text has 10,[0-9]+ characters, torch.compile takes 10,000",
    ),
    "flex": (lambda: attention(Q, K, V, backend="flex"), "'flex' is compiled on its own"),
    "unknown backend": (lambda: attention(Q, K, V, backend="fast"), "backend='fast': it is auto"),
    "sizes": (lambda: attention(Q, K[:, :, 1:], V), "length differs: key has 12, value has 13"),
    "for other sizes": (
        lambda: attention(Q, K, V, Blocks([[1, 0], [1, 1]], 3)), "needs \\(5, 5\\)"
    ),
}  # fmt: skip
LISTED, OWN_CAUSAL = Listed(torch.tensor([1, 2])), _causal_of_ours()
MANY, TOKENS = Global(range(1 << 50, (1 << 50) + 570)), Tokens.arange(0, 13)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(Exception, match=words):
        Counted(call)()


def _nth(step: int) -> type[Pattern]:
    @register
    @dataclass(frozen=True)
    class Nth(Pattern):
        def allows(self, q: Points, k: Points) -> Tensor:
            return (q.position - k.position) % step == 0

    return Nth


def test_a_class_that_is_defined_anew_takes_its_own_place() -> None:
    one = _nth(2)
    assert read("nth & causal") == one() & Causal() == parse("nth & causal")
    other = _nth(3)
    assert read("nth & causal") == other() & Causal() != one() & Causal()
    pattern = other()
    compiled = Counted(lambda: attention(Q, K, V, pattern))()
    assert_same(compiled, attention(Q, K, V, pattern), (Q, K, V))
    before = one()
    with pytest.raises(Exception, match="is not registered under its word 'nth'"):
        Counted(lambda: attention(Q, K, V, before))()


def test_a_word_is_of_one_class() -> None:
    with pytest.raises(InvalidArgument, match=r"the word .causal. is that of"):
        register(type(OWN_CAUSAL))
    with pytest.raises(InvalidArgument, match="is no Pattern"):
        register(len)  # type: ignore[type-var]


def test_an_own_class_that_is_not_registered() -> None:
    @dataclass(frozen=True)
    class Unknown(Pattern):
        def allows(self, q: Points, k: Points) -> Tensor:
            return q.position >= k.position

    with pytest.raises(Exception, match="is not registered under its word"):
        Counted(lambda: attention(Q, K, V, Unknown()))()
    assert attention(Q, K, V, Unknown()).shape == (*Q.shape[:3], V.shape[3])


def test_other_words_stay_known() -> None:
    assert read("causal & window(left=4, right=0)") == sliding_window(5)
