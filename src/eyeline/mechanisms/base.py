"""Mechanism: what every way to attend is asked, each question with a default that is safe."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar, final

import torch
from torch import Tensor, nn

from eyeline.caches import Cache, LayerCache, Layout, cache_in
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import check_pattern_heads
from eyeline.patterns import Full, Pattern
from eyeline.patterns.ahead import never_looks_ahead
from eyeline.planning.cost import Asked, Countable, Work
from eyeline.registry import add_word
from eyeline.tokens import Tokens

Causality = Literal["functional", "edge", "none"]
"""No past output depends on the future; pairs respect the order but were chosen knowing all of
the sequence; or neither."""


@final
@dataclass(frozen=True)
class Heads:
    """What a mechanism works on: so many heads of queries, of keys, and their width."""

    num_heads: int
    num_kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, query: Tensor, key: Tensor) -> Heads:
        """Those of queries (B, H, L, E) and keys (B, Hk, S, E)."""
        return cls(query.shape[1], key.shape[1], key.shape[3])


class ProjectsLast(ABC):
    """A mechanism that sums a layer's inputs before the layer projects them to keys and values."""

    @abstractmethod
    def summed(
        self,
        inputs: tuple[Tensor, Tensor],
        projections: tuple[nn.Linear, nn.Linear],
        tokens: Tokens | None,
    ) -> tuple[Tensor, Tensor]:
        """Of what keys and values are made of, (B, S, kdim) and (B, S, vdim), fewer of both,
        projected: (B, k, Hk·E)."""

    @abstractmethod
    def over(
        self, query: Tensor, keys: Tensor, values: Tensor, *, q_tokens: Tokens | None
    ) -> Tensor:
        """Queries (B, H, L, E) over those keys and values (B, Hk, k, E): (B, H, L, Ev)."""


class Mechanism(nn.Module, Countable):
    """f(query, key, value): (B, H, L, E), (B, Hk, S, E), (B, Hk, S, Ev) to (B, H, L, Ev).

    To write one, derive from it and define ``forward``; everything else has a default. All that a
    layer, a model, a cache, a table or a picture asks of a mechanism is a method or an attribute
    here. ``register("word")`` gives it a name in recipes, saved folders and the command;
    ``check_mechanism`` runs what each must show.

    pattern: who may attend to whom; None where pairs have no rule. shared_qk: its keys are its
    queries, so that a layer has one projection for both. needs_input: it is called with
    ``inputs``, the layer's own input (B, L, embed_dim), from which queries and keys are made.
    extra_slots: how many slots before the sequence are its own; see ``beside``. moving: names of
    buffers that forward passes change in training. auxiliary: a loss of its last forward pass in
    training, to be added to the task's; see ``auxiliary_loss``. dropout: of weights, in training.
    """

    word: ClassVar[str | None] = None
    shared_qk: ClassVar[bool] = False
    needs_input: ClassVar[bool] = False
    moving: ClassVar[tuple[str, ...]] = ()
    pattern: Pattern | None = None
    auxiliary: Tensor | None = None
    dropout: float = 0.0

    @abstractmethod
    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """(B, H, L, E), (B, Hk, S, E), (B, Hk, S, Ev) to (B, H, L, Ev).

        q_tokens, k_tokens: what stands in each slot, as in ``attention``; padding (-1) gets 0 and
        changes nothing. With ``needs_input`` there is one more, inputs: see ``required``.
        """

    # How it is made.

    @classmethod
    def filled(cls, heads: Heads, pattern: Pattern, dropout: float) -> dict[str, Any]:
        """The constructor's arguments that heads, pattern and dropout say; others are options."""
        sizes = {name: getattr(heads, name) for name in ("num_heads", "num_kv_heads", "head_dim")}
        return {**sizes, "pattern": pattern, "dropout": dropout}

    @classmethod
    def options(cls) -> Mapping[str, inspect.Parameter]:
        """The constructor's other arguments, which a recipe may say."""
        said = cls.filled(Heads(1, 1, 1), Full(), 0.0)
        return {name: x for name, x in _parameters(cls).items() if name not in said}

    @classmethod
    def for_heads(
        cls: type[M], heads: Heads, pattern: Pattern, *, dropout: float = 0.0, **options: Any
    ) -> M:
        """One for a layer with these heads. Raises NotSupported for what it does not take.

        options: those of the constructor, with its own defaults.
        """
        takes, said = _parameters(cls), cls.filled(heads, pattern, dropout)
        if dropout and "dropout" in said and "dropout" not in takes:
            raise NotSupported(f"dropout={dropout:g}: {cls.__name__} has no weights to leave out")
        if pattern != Full() and "pattern" in said and "pattern" not in takes:
            raise NotSupported(f"{cls.__name__} has no pattern, and cannot honour {pattern}")
        made = cls(**{name: x for name, x in said.items() if name in takes}, **options)
        made.check_heads(heads)
        return made

    @classmethod
    def fitted(cls, options: Mapping[str, Any], length: int) -> dict[str, Any]:
        """The options, and those that a table leaves out because they follow from the length."""
        return dict(options)

    def check_heads(self, heads: Heads) -> None:
        """Raise InvalidArgument if it was made for other heads; by default asks its pattern."""
        if self.pattern is not None:
            check_pattern_heads(self.pattern, heads.num_heads)

    def _check_made(self, heads: Heads, **made: int | None) -> None:
        """``check_heads`` for what the constructor was given, such as num_heads=8."""
        if any(x not in (None, getattr(heads, name)) for name, x in made.items()):
            listed = ", ".join(f"{name}={x}" for name, x in made.items())
            there = ", ".join(f"{name}={getattr(heads, name)}" for name in made)
            raise InvalidArgument(f"{self.name} was made for {listed}; the heads have {there}")

    @property
    def name(self) -> str:
        """Its word, or its class's name, for messages."""
        return self.word if self.word is not None else type(self).__name__

    # What it promises, and what it keeps while a text is read in steps.

    @property
    def causality(self) -> Causality:
        """ "functional" under a pattern that never looks ahead, else "none"."""
        ordered = self.pattern is not None and never_looks_ahead(self.pattern)
        return "functional" if ordered else "none"

    @property
    def no_cache(self) -> str | None:
        """Why a text cannot be read in steps; None where it can, by default with a pattern."""
        if self.pattern is not None or not self.keeps_keys:
            return None
        return "it has no pattern that says which keys to keep: read the whole text at once"

    @property
    def keeps_keys(self) -> bool:
        """Whether its cache holds keys and values as they are, and nothing of its own."""
        kind = type(self)
        return kind.new_cache is Mechanism.new_cache and kind.step is Mechanism.step

    @property
    def cache_kind(self) -> Hashable:
        """Layers in which this is equal, and whose heads are, share a cache.

        By default those that keep the keys of one pattern do. One that keeps more shares with
        nobody, unless it says what must be equal.
        """
        return self.pattern if self.keeps_keys else self

    def new_cache(self, layout: Layout) -> Cache:
        """An empty cache for ``layout.layers`` layers: by default for keys the pattern may need.

        Raises NotSupported where a text cannot be read in steps.
        """
        self.check_steps()
        assert self.pattern is not None
        return cache_in(self.pattern, layout)

    def check_steps(self) -> None:
        """Raise NotSupported, with the reason, for one that cannot read a text in steps."""
        if self.no_cache is not None:
            raise NotSupported(f"{type(self).__name__} does not read in steps: {self.no_cache}")

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        place: LayerCache,
        q_tokens: Tokens,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """A step's new queries, keys and values (B, ·, m, ·) to (B, H, m, Ev).

        By default keys and values are kept, and the queries attend to all that is kept. place: a
        cache of ``new_cache``, advanced by q_tokens, and the layer's number in it.
        """
        key, value, k_tokens = place.cache.append(place.layer, key, value)
        return self._called(query, key, value, (q_tokens, k_tokens), inputs)

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None,
        k_tokens: Tokens | None,
        place: LayerCache | None = None,
        inputs: Tensor | None = None,
    ) -> Tensor:
        """What a layer calls: the whole text at once, or a step of it where there is a cache.

        Under autocast, where projections give another type, the cache keeps its own.
        """
        if place is None:
            return self._called(query, key, value, (q_tokens, k_tokens), inputs)
        if torch.is_autocast_enabled(query.device.type):
            query, key, value = (x.to(place.cache.layout.dtype) for x in (query, key, value))
        assert q_tokens is not None
        return self.step(query, key, value, place=place, q_tokens=q_tokens, inputs=inputs)

    def _called(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        tokens: tuple[Tokens | None, Tokens | None],
        inputs: Tensor | None,
    ) -> Tensor:
        more = {"inputs": inputs} if self.needs_input else {}
        out: Tensor = self(query, key, value, q_tokens=tokens[0], k_tokens=tokens[1], **more)
        return out

    def required(self, inputs: Tensor | None) -> Tensor:
        """The layer's input. Raises NotSupported, in words, where it was called without one."""
        if inputs is None:
            raise NotSupported(
                f"{self.name} needs the input of the layer that it stands in: give it to "
                f"MultiHeadAttention(…, mechanism=…), or call it with inputs=x (B, L, width)"
            )
        return inputs

    # What can be seen of it.

    @property
    def no_weights(self) -> str | None:
        """Why no weight of a pair can be given; None where out = weights @ value."""
        return "they depend on the layer's input" if self.needs_input else None

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        """weight[i, j], (B, H, L, S): how much of value j query i takes; out = weights @ value.

        As in eval: without dropout. By default what comes out for unit vectors as values, which
        is right for every mechanism that adds up values. For short inputs: memory is L·S at
        least. Raises NotSupported, with the reason, where there are none.
        """
        if self.no_weights is not None:
            raise NotSupported(f"{type(self).__name__} has no weights to return: {self.no_weights}")
        if not key.shape[2]:
            return query.new_zeros(*query.shape[:3], 0)
        unit = torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
        with in_eval(self):
            value = unit.expand(*key.shape[:2], -1, -1).contiguous()
            return self._called(query, key, value, (q_tokens, k_tokens), None)

    def explain(
        self,
        query: Tensor,
        key: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> dict[str, str]:
        """In words, for one call: what is promised, and what it can be asked."""
        steps, weights = self.no_cache, self.no_weights
        return {
            "causality": self.causality,
            "pattern": str(self.pattern) if self.pattern is not None else "none",
            "reads in steps": "yes" if steps is None else f"no: {steps}",
            "weights": "yes" if weights is None else f"no: {weights}",
        }

    def work(self, asked: Asked) -> Work | None:
        """What a call of these sizes multiplies; None, the default, where that is not known."""
        return None

    def path(self, length: int) -> int | Pattern:
        if self.pattern is None:
            return super().path(length)
        return self.pattern

    # What it asks of a layer and of a stack.

    def project_first(self, key: nn.Linear, value: nn.Linear) -> ProjectsLast | None:
        """What sums inputs before these projections, where that is cheaper; None by default."""
        return None

    @property
    def extra_slots(self) -> int:
        """How many slots before the sequence are its own."""
        return 0

    def beside(self, tokens: Tokens) -> Tokens:
        """The tokens, with the extra slots before them."""
        return tokens

    def __getstate__(self) -> dict[str, Any]:
        """Without the loss, which belongs to a pass and cannot be copied."""
        return {**self.__dict__, "auxiliary": None}


M = TypeVar("M", bound=Mechanism)

MECHANISMS: dict[str, type[Mechanism]] = {}
"""Mechanisms by word."""


def register(word: str) -> Callable[[type[M]], type[M]]:
    """A decorator of a Mechanism's class: recipes, saved folders and the command know its word.

    Raises InvalidArgument for a class that is no Mechanism, and a word that is taken.
    """

    def registered(kind: type[M]) -> type[M]:
        if not isinstance(kind, type) or not issubclass(kind, Mechanism):
            raise InvalidArgument(f"{kind!r:.60} is no Mechanism: derive the class from it")
        add_word(MECHANISMS, word, kind)
        kind.word = word
        return kind

    return registered


def _parameters(kind: type[Mechanism]) -> dict[str, inspect.Parameter]:
    fixed = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    signature = inspect.signature(kind)
    return {name: x for name, x in signature.parameters.items() if x.kind not in fixed}


@contextmanager
def in_eval(module: nn.Module) -> Iterator[None]:
    """The module and all in it in eval, and afterwards each as it was."""
    training = {part: part.training for part in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for part, was in training.items():
            part.training = was


# Losses that mechanisms ask for beside the task's own, and what they learn without gradients.


def mechanisms_in(module: nn.Module) -> list[Mechanism]:
    """A module and all in it, as far as they are mechanisms, each once."""
    return [part for part in module.modules() if isinstance(part, Mechanism)]


def auxiliary_loss(module: nn.Module) -> Tensor | None:
    """The sum of ``auxiliary`` over all mechanisms in a module; None if no one has a loss.

    A mechanism sets it in each forward pass of training, to be added to the loss of that pass; one
    that is called twice has that of the last call.
    """
    losses = [x.auxiliary for x in mechanisms_in(module) if x.auxiliary is not None]
    return sum(losses[1:], losses[0]) if losses else None


def moving_buffers(module: nn.Module) -> list[Tensor]:
    """Buffers that forward passes change in training: those mechanisms name in ``moving``."""
    return [part.get_buffer(name) for part in mechanisms_in(module) for name in part.moving]
