"""What models of all families share, and what language models do alike: caches, ids, losses."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline.caches import Cache, Layout
from eyeline.checks import check_below, check_sizes
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.checks import check_tokens
from eyeline.layers.stack import following
from eyeline.mechanisms import Heads, Mechanism, Recipe
from eyeline.memory import traced
from eyeline.patterns import Pattern
from eyeline.tokens import NOBODY, Tokens

# A family of models: its configuration, its module, and what files call its weights.


@dataclass(frozen=True)
class Family:
    """config: a frozen dataclass, with ``from_hf`` where hf is not empty, ``from_gguf`` for gguf.

    names(config, form, names in the file): of the weights in files; None where there are no
    files but our own. hf: the words for it in ``model_type``; several families may read one,
    of which that with the file's ``architectures`` is taken, or the first, if nobody says which.
    gguf: its ``general.architecture``.
    derived: whether a tensor of a file follows from the configuration. tied: tensors that files
    may hold although they equal the parameter of that name.
    """

    config: type[Any]
    model: Callable[..., Model]
    names: Callable[[Any, Form, Collection[str]], Names] | None = None
    hf: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    gguf: str | None = None
    derived: Callable[[str], bool] = lambda name: False
    tied: Mapping[str, str] = field(default_factory=dict)

    def make(self, config: Any, choices: Mapping[str, Any]) -> Model:
        """The model, its weights drawn. Raises NotSupported for a choice that it has not."""
        takes = list(inspect.signature(self.model).parameters)[1:]
        unknown = [name for name in choices if name not in takes]
        if unknown:
            name = getattr(self.model, "__name__", "the model")
            raise NotSupported(f"{name} has no {' or '.join(unknown)}; it has {', '.join(takes)}")
        return self.model(config, **choices)

    def word(self, form: Form) -> tuple[str, ...]:
        """What files of that form call the family."""
        return self.hf if form == "huggingface" else tuple(filter(None, (self.gguf,)))


Encodings = Literal["absolute", "recounted"]
Form = Literal["huggingface", "gguf"]


class Part(NamedTuple):
    """A tensor of a file.

    pairs: its rows hold that many heads with interleaved rotary pairs. transposed: it is stored
    as (in, out).
    """

    name: str
    pairs: int = 0
    transposed: bool = False


Names = Mapping[str, Sequence[Part]]
"""For each parameter of a model the file's tensors that it consists of, stacked by rows."""


class Model(nn.Module, ABC):
    """A model that can be saved and made again: ``type(m)(m.config, **m.choices())``.

    config: a frozen dataclass of sizes, numbers and words.
    """

    config: Any

    @abstractmethod
    def choices(self) -> dict[str, Any]:
        """What else it was made with, by the names of its constructor's arguments.

        A name that ends in "pattern" holds a pattern or a tuple of them, "mechanism" a recipe or
        a tuple of them; all else are words, numbers and None.
        """


class LanguageConfig(Protocol):
    """What is asked of the sizes of a language model."""

    @property
    def vocabulary(self) -> int: ...
    @property
    def width(self) -> int: ...
    @property
    def layers(self) -> int: ...
    @property
    def heads(self) -> int: ...
    @property
    def kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...
    @property
    def trained_length(self) -> int:
        """How many positions it was trained on."""
        ...

    @property
    def pattern(self) -> Pattern:
        """Who looked at whom when it was trained."""
        ...


class LanguageModel(Model):
    """ids (B, L) → logits (B, L, vocabulary) of the token after each one, at once or in steps.

    A model has ``embedding``, ``layers`` with ``attention.mechanism``, ``head``, and ``hidden``.
    Layers with equal pattern, mechanism and kind of cache share a cache and a step's tokens:
    ``groups[layer]`` is the place of theirs in ``patterns`` and in the list of caches.
    """

    config: LanguageConfig
    encodings: Encodings = "absolute"
    embedding: nn.Embedding
    layers: nn.ModuleList
    head: nn.Module
    patterns: tuple[Pattern, ...]
    groups: tuple[int, ...]

    def __init__(
        self,
        config: LanguageConfig,
        pattern: Pattern | Sequence[Pattern] | None,
        mechanism: Recipe | Sequence[Recipe] | None,
    ) -> None:
        super().__init__()
        self.config = config
        patterns = per_layer("patterns", pattern, config.layers, default=config.pattern)
        recipes = per_layer("mechanisms", mechanism, config.layers, default=Recipe())
        self.kinds = list(zip(patterns, recipes, strict=True))

    def _make_mechanisms(self, dropout: float = 0.0) -> list[Mechanism]:
        """Those of the layers, which it gives to them; and which layers share a cache."""
        mechanisms = [made(recipe, x, self.config, dropout=dropout) for x, recipe in self.kinds]
        kinds = [(*kind, x.cache_kind) for kind, x in zip(self.kinds, mechanisms, strict=True)]
        order = list(dict.fromkeys(kinds))
        self.patterns = tuple(pattern for pattern, *_ in order)
        self.groups = tuple(order.index(kind) for kind in kinds)
        return mechanisms

    @property
    def mechanisms(self) -> list[Mechanism]:
        """How each layer attends."""
        return [cast(Any, layer).attention.mechanism for layer in self.layers]

    def choices(self) -> dict[str, Any]:
        patterns, recipes = zip(*self.kinds, strict=True)
        return {"pattern": patterns, "mechanism": recipes}

    @property
    def longest(self) -> int | None:
        """How many positions there are; None if the model can always read on."""
        return None

    def number(self, layer: int) -> int:
        """The number of a layer in the cache that it shares."""
        return self.groups[:layer].count(self.groups[layer])

    def new_caches(self, batch: int = 1) -> list[Cache]:
        """An empty cache for each of ``patterns``, in the embedding's dtype and on its device.

        Raises NotSupported for a mechanism that does not read in steps.
        """
        weight, config = self.embedding.weight, self.config
        mechanisms, width = self.mechanisms, config.head_dim
        return [
            mechanisms[self.groups.index(group)].new_cache(
                Layout(
                    self.groups.count(group), batch, config.kv_heads, width, width,
                    weight.dtype, weight.device,
                )
            )
            for group in range(len(self.patterns))
        ]  # fmt: skip

    @abstractmethod
    def hidden(
        self,
        ids: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Tensor:
        """What the head is applied to: (B, L, width)."""

    def forward(
        self,
        ids: Tensor,
        *,
        q_tokens: Tokens | None = None,
        caches: Sequence[Cache] | None = None,
        last_only: bool = False,
    ) -> Tensor:
        """Logits of the token after each one: (B, L, vocabulary), or (B, 1, vocabulary).

        q_tokens: where the ids stand; the positions that follow the caches if not given.
        caches: from ``new_caches``, to read a text in steps. last_only: only for the last id.
        """
        hidden = self.hidden(ids, q_tokens=q_tokens, caches=caches)
        logits: Tensor = self.head(hidden[:, -1:] if last_only else hidden)
        return logits

    def losses(self, ids: Tensor, *, q_tokens: Tokens | None = None, chunk: int = 256) -> Tensor:
        """-log p(id i + 1 | ids up to i), in nats: (B, L) → float32 (B, L - 1).

        Logits are made for ``chunk`` positions at a time. The exponential of the mean is the
        perplexity. Where token i or i + 1 is nobody, or they are of different documents, it is 0:
        there nothing is predicted, so divide by the number of the others.
        """
        check_sizes(chunk=chunk)
        losses = self.losses_of(self.hidden(ids, q_tokens=q_tokens), ids, chunk=chunk)
        if q_tokens is None:
            return losses
        return losses.masked_fill(apart(q_tokens).to(losses.device), 0.0)

    def losses_of(self, hidden: Tensor, ids: Tensor, *, chunk: int = 256) -> Tensor:
        """``losses`` of what ``hidden`` has returned: (B, L, ·) and ids (B, L) to (B, L - 1)."""
        hidden = hidden[:, :-1]
        pieces = [
            functional.cross_entropy(
                self.head(hidden[:, start : start + chunk]).float().transpose(1, 2),
                ids[:, 1 + start : 1 + start + chunk][:, : hidden.shape[1] - start],
                reduction="none",
            )
            for start in range(0, hidden.shape[1], chunk)
        ]
        if not pieces:
            return hidden.new_zeros(ids.shape[0], 0).float()
        return torch.cat(pieces, 1)

    def _advance(
        self, ids: Tensor, q_tokens: Tokens | None, caches: Sequence[Cache] | None
    ) -> tuple[Tokens, list[tuple[Cache | None, Tokens]]]:
        """The step's tokens; for each group its cache, and the tokens of the keys looked at."""
        check_ids(ids, self.config.vocabulary)
        if not ids.numel():
            raise InvalidArgument(f"ids {tuple(ids.shape)}: there is nothing to read")
        if caches is not None and len(caches) != len(self.patterns):
            raise InvalidArgument(
                f"{len(caches)} caches for {len(self.patterns)} patterns: use model.new_caches()"
            )
        position = caches[0].position if caches else 0
        tokens = q_tokens if q_tokens is not None else following(position, ids.shape[1])
        check_tokens("q_tokens", tokens, *ids.shape)
        self._check_tokens(tokens)
        if caches is None:
            return tokens, [(None, tokens)] * len(self.patterns)
        return tokens, [(cache, cache.advance(tokens)) for cache in caches]

    def _check_tokens(self, tokens: Tokens) -> None:
        """Raises InvalidArgument past the last position, before a cache has taken the tokens.

        Looks at positions on a CPU only, and not while a graph is compiled.
        """
        positions, longest = tokens.encoded, self.longest
        if longest is None or not positions.numel() or positions.device.type != "cpu":
            return
        if not traced() and int(positions.max()) >= longest:
            raise InvalidArgument(
                f"position {int(positions.max()):,}: this model has learned the positions 0 to "
                f"{longest - 1:,} and there is nothing beyond; give a shorter text"
            )


def apart(tokens: Tokens) -> Tensor:
    """Where a token and the next one do not follow each other: (L - 1,) or (B, L - 1)."""
    nobody = tokens.positions == NOBODY
    apart = nobody[..., 1:] | nobody[..., :-1]
    if tokens.documents is not None:
        apart |= tokens.documents[..., 1:] != tokens.documents[..., :-1]
    return apart


def check_ids(ids: Tensor, vocabulary: int, *, word: str = "id") -> None:
    """Raise InvalidArgument unless they are (B, L) whole numbers of the vocabulary."""
    if ids.dim() != 2 or ids.dtype not in (torch.int64, torch.int32):
        raise InvalidArgument(
            f"{word}s must be whole numbers (B, L), got {ids.dtype} {tuple(ids.shape)}"
        )
    check_below(word, ids, vocabulary, least=0, remedy=f"the vocabulary has {vocabulary:,}")


def check_heads(width: int, heads: int) -> None:
    """Raise InvalidArgument unless the heads are equally wide, and fill the width."""
    check_sizes(width=width, heads=heads)
    if width % heads:
        raise InvalidArgument(f"width={width} is no multiple of heads={heads}")


def made(
    recipe: Recipe, pattern: Pattern, config: LanguageConfig, *, dropout: float = 0.0
) -> Mechanism:
    """The mechanism of a layer, with weights even where a model is only sketched ("meta").

    They are few, and files of other libraries do not hold them. Raises as ``Recipe.make`` does.
    """
    heads = Heads(config.heads, config.kv_heads, config.head_dim)
    with really():
        return recipe.make(pattern, heads, dropout=dropout)


def check_apart(mechanism: Mechanism) -> None:
    """Raise NotSupported where queries must be keys: the model projects them apart."""
    if mechanism.shared_qk:
        raise NotSupported(
            f"{type(mechanism).__name__}: its queries are its keys, and this model projects them "
            "apart; layers, BERT and the encoder-decoder make both by one projection"
        )


def really() -> AbstractContextManager[object]:
    """A context in which tensors are made on the CPU where they would be on "meta"."""
    sketched = torch.get_default_device().type == "meta"
    return torch.device("cpu") if sketched else nullcontext()


def drawn(*shape: int, std: float) -> Tensor:
    """A tensor from N(0, std²); on "meta" only its shape, since drawing there takes a second."""
    empty = torch.empty(*shape)
    return empty if empty.is_meta else nn.init.normal_(empty, std=std)


def per_layer(name: str, values: Any, layers: int, *, default: Any) -> list[Any]:
    """One for all layers, or one each. Raises InvalidArgument for another number of them."""
    values = values if values is not None else default
    each = list(values) if isinstance(values, (list, tuple)) else [values] * layers
    if len(each) != layers:
        raise InvalidArgument(f"{len(each)} {name} for {layers} layers: one, or one each")
    kind = Recipe if isinstance(default, Recipe) else Pattern
    for one in each:
        if not isinstance(one, kind):
            hint = f"recipe({one!r})" if kind is Recipe else f"parse({one!r})"
            raise InvalidArgument(
                f"{name} hold {type(one).__name__} {one!r:.60}, and a {kind.__name__} is due"
                + (f": write {hint}" if isinstance(one, str) else "")
            )
    return each


def half_split(weight: Tensor, heads: int) -> Tensor:
    """Rows (heads · E, …) with pairs (2j, 2j + 1) reordered to pairs (j, j + E / 2)."""
    return weight.reshape(heads, -1, 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)
