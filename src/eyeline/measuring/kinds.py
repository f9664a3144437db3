"""The lines of the table that compares everything: mechanisms and layers by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, final

import torch
from torch import Tensor, nn

from eyeline.checks import check_sizes
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import Convolution, MultiHeadAttention, Recurrent
from eyeline.layers.ancestors import (
    LSTMN,
    Decomposable,
    IntraDecoder,
    IntraTemporal,
    StructuredAttention,
)
from eyeline.measuring.timing import Progress, silent
from eyeline.mechanisms import Heads, Mechanism
from eyeline.mechanisms.base import MECHANISMS
from eyeline.mechanisms.recipes import Option, Recipe, word_and_options
from eyeline.patterns import Causal, Full, Pattern, parse
from eyeline.planning.cost import Asked, Countable, Work
from eyeline.planning.path_length import dilated_path
from eyeline.registry import has_word

# The ancestors as the table calls all layers: with one text, x (B, L, width).


@final
class OfTokens(nn.Module, Countable):
    """A layer whose arguments are made of one text; it counts as the layer itself does."""

    layer: Countable

    def __init__(self, layer: Any, call: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.call = layer, call

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self.layer, x)

    def work(self, asked: Asked) -> Work | None:
        """The layer's own."""
        return self.layer.work(asked)

    def path(self, length: int) -> int | Pattern:
        """The layer's own."""
        return self.layer.path(length)

    def square_bytes(self, length: int, *, backward: bool) -> int:
        """The layer's own."""
        return self.layer.square_bytes(length, backward=backward)


def structured(width: int, hidden: int = 64, *, hops: int = 4) -> OfTokens:
    """Lin et al. 2017: the matrix of a sentence."""
    return OfTokens(StructuredAttention(width, hidden, hops), lambda layer, x: layer(x).embedding)


def decomposable(
    width: int, hidden: int = 64, *, classes: int = 3, intra: bool = False
) -> OfTokens:
    """Parikh et al. 2016: a sentence compared with itself."""
    layer = Decomposable(width, hidden, classes=classes, intra=intra)
    return OfTokens(layer, lambda layer, x: layer(x, x))


def intra_temporal(width: int) -> OfTokens:
    """Paulus et al. 2017: as many decoder states as words of the memory."""
    return OfTokens(IntraTemporal(width), lambda layer, x: layer(x, x).context)


def intra_decoder(width: int) -> IntraDecoder:
    """Paulus et al. 2017: decoder states that look at the earlier ones."""
    return IntraDecoder(width)


DILATED = "dilated_convolution"
Options = tuple[tuple[str, Option], ...]


def _dilated(width: int, kernel: int = 3, *, causal: bool = False) -> Convolution:
    """The first layer of a stack whose gaps grow; see ``Kind.at``."""
    return Convolution(width, kernel, causal=causal)


Layer = (
    MultiHeadAttention | Convolution | Recurrent | LSTMN | StructuredAttention | Decomposable
    | IntraTemporal | IntraDecoder | OfTokens
)  # fmt: skip
LAYERS: Mapping[str, Callable[..., Layer]] = {
    "convolution": Convolution,
    DILATED: _dilated,
    "recurrent": Recurrent,
    "lstmn": LSTMN,
    "structured": structured,
    "decomposable": decomposable,
    "intra_temporal": intra_temporal,
    "intra_decoder": intra_decoder,
}
"""Layers that are no attention, by name: made for a width, with options."""


@final
@dataclass(frozen=True)
class Kind:
    """A mechanism under a pattern, or another layer: ``linear(feature_map=relu)``, ``recurrent``.

    Options that a mechanism takes from the length, where they are left out, are those of the length
    it is asked at: see ``Mechanism.fitted``. Raises InvalidArgument for a name or options that do
    not exist, and NotSupported for a pattern that cannot be honoured.
    """

    name: str
    options: Options = ()
    pattern: Pattern = Full()
    under: str | None = field(default=None, compare=False)
    """The pattern as it was named; its text if not given."""

    def __post_init__(self) -> None:
        if self.name in LAYERS and self.name in MECHANISMS:
            raise InvalidArgument(f"{self.name} is a layer: give your mechanism another word")
        if self.name in LAYERS:
            self._check_layer()
        else:
            _recipe(self, 1)

    @property
    def label(self) -> str:
        """As it is shown: the pattern alone for exact attention."""
        if self.name == "exact":
            return self._under
        return self.text if self.pattern == Full() else f"{self.text} under {self._under}"

    @property
    def _under(self) -> str:
        return self.under if self.under is not None else str(self.pattern)

    @property
    def text(self) -> str:
        """What ``kind`` reads, without the pattern."""
        listed = ", ".join(f"{name}={_shown(value)}" for name, value in self.options)
        return f"{self.name}({listed})" if listed else self.name

    def square_bytes(self, length: int, heads: Heads, *, backward: bool) -> int:
        """What it holds of the order of length², in float32; 0 where memory is linear."""
        layer = self.mechanism(heads, 1) if self.has_heads else self._layer(_width(heads), 1)
        return layer.square_bytes(length, backward=backward)

    @property
    def has_heads(self) -> bool:
        """Whether it takes queries, keys and values, and not tokens."""
        return self.name not in LAYERS

    def layer(self, width: int, heads: int, length: int) -> Layer:
        """The whole layer, with projections where it is attention: (B, L, width) to the same."""
        if not self.has_heads:
            return self._layer(width, length)
        if width % heads:
            raise InvalidArgument(f"a width of {width} cannot be {heads} heads")
        mechanism = self.mechanism(Heads(heads, heads, width // heads), length)
        return MultiHeadAttention(width, heads, mechanism=mechanism)

    def mechanism(self, heads: Heads, length: int) -> Mechanism:
        """The mechanism alone."""
        return _recipe(self, length).make(self.pattern, heads)

    def call(self, heads: Heads, length: int, *, dtype: torch.dtype = torch.float32) -> nn.Module:
        """What is timed: called with query, key and value (B, H, L, E)."""
        if self.has_heads:
            made = self.mechanism(heads, length).to(dtype)
            return _Shared(made) if made.shared_qk else made
        return _OnTokens(self._layer(_width(heads), length)).to(dtype)

    def work(self, length: int, width: int, heads: int) -> Work | None:
        """What the layer does at a length; None where its mechanism does not say."""
        return self.layer(width, heads, length if self.has_heads else 1).work(Asked(length))

    def path(self, length: int, heads: int) -> int:
        """Layers of this kind until all have heard of all they can; see ``max_path_length``."""
        from eyeline.planning import max_path_length

        if self.name == DILATED:
            left, right = _ways(self._layer(1, 1))
            return dilated_path(left, right, length)
        if not self.has_heads:
            return max_path_length(self._layer(1, 1), length)
        heads_of_one = Heads(heads, heads, 2)
        return max_path_length(self.mechanism(heads_of_one, length), length, heads=heads)

    def _layer(self, width: int, length: int) -> Layer:
        made: Layer = LAYERS[self.name](width, **dict(self.options))
        if self.name == DILATED and isinstance(made, Convolution) and any(_ways(made)):
            # The last of the layers that the length needs, whose gap is widest.
            left, right = _ways(made)
            base = 1 + min(way for way in (left, right, left + right) if way > 0)
            gap = base ** max(dilated_path(left, right, length) - 1, 0)
            kernel = len(made.offsets)
            return Convolution(width, kernel, dilation=gap, causal=made.causal)
        return made

    def _check_layer(self) -> None:
        asked = inspect.signature(LAYERS[self.name])
        try:
            asked.bind(1, **dict(self.options))
        except TypeError as error:
            takes = ", ".join(list(asked.parameters)[1:])
            raise InvalidArgument(f"{self.text}: {error}; {self.name} takes {takes}") from None
        if self.pattern != Full():
            raise NotSupported(f"{self.name} is no attention, and cannot honour {self.pattern}")
        made = self._layer(1, 1)
        if self.name == DILATED and not any(_ways(made)):
            raise InvalidArgument(f"{self.label}: a kernel of 1 reaches nobody")


def kind(text: str, pattern: Pattern = Full(), *, under: str | None = None) -> Kind:
    """From ``linformer(k=256)``. Raises InvalidArgument with what was read."""
    name, options = word_and_options(text)
    return Kind(name, options, pattern, under)


def standard(length: int, shortest: int | None = None) -> tuple[Kind, ...]:
    """A line for each mechanism and layer, with the settings their papers and users have.

    length: the longest that is asked, whose square root is the stride of a Sparse Transformer;
    shortest: at which all must fit, ``length`` if not given.
    """
    least = shortest if shortest is not None else length
    stride, block = max(round(length**0.5), 1), max(min(64, least // 4), 1)
    blocks = -(-least // block)
    exact = (
        "full", "causal", "sliding_window(256)", f"sparse_transformer({stride})",
        f"sparse_transformer({stride}, fixed, {max(stride // 16, 1)})",
        f"longformer(128, {min(16, least)})",
        f"bigbird({block}, {min(3, blocks)}, {min(2, blocks)})", "streaming(252, 4)",
    )  # fmt: skip
    others = [
        "topk(k=32)", "threshold(t=0.01)", f"lsh(bucket_size={block}, rounds=8)",
        f"kmeans(window={block})", "clustered(clusters=64, topk=32)", f"sinkhorn(block={block})",
        "additive", "linformer(k=256)", "compressed(factor=4)", "compressed(factor=4, by=mean)",
        "linear", "linear(feature_map=relu)", "linear(feature_map=favor)",
    ]  # fmt: skip
    causal = ["linear", "linear(feature_map=favor)"]
    layers = [
        "convolution(kernel=7)", f"{DILATED}(kernel=3)", "recurrent", "structured", "decomposable",
        "lstmn", "intra_temporal", "intra_decoder",
    ]  # fmt: skip
    return (
        *(kind(text) for text in layers),
        *(Kind("exact", (), parse(text), text) for text in exact),
        *(kind(text) for text in others),
        *(kind(text, Causal()) for text in causal),
    )


class _Shared(nn.Module):
    """A mechanism whose keys are its queries, called with others, which it does not read."""

    def __init__(self, mechanism: Mechanism) -> None:
        super().__init__()
        self.mechanism = mechanism

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        out: Tensor = self.mechanism(query, query, value)
        return out


class _OnTokens(nn.Module):
    """A layer of tokens, called with queries (B, H, L, E), whose heads are side by side."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        x = query.transpose(1, 2).flatten(2)
        out: Tensor = self.layer(x)
        if out.shape[-1] != x.shape[-1]:  # classes, and no tokens
            return out
        heads: Tensor = out.unflatten(2, (query.shape[1], -1)).transpose(1, 2)
        return heads


def _recipe(of: Kind, length: int) -> Recipe:
    options = dict(of.options)
    try:
        if has_word(MECHANISMS, of.name):
            options = MECHANISMS[of.name].fitted(options, length)
        return Recipe(of.name, tuple(options.items()))
    except InvalidArgument as error:
        if "there is no mechanism" not in str(error):
            raise
        raise InvalidArgument(f"{error}; layers are {', '.join(LAYERS)}") from None


def _width(heads: Heads) -> int:
    return heads.num_heads * heads.head_dim


def _ways(layer: nn.Module) -> tuple[int, int]:
    """How many neighbours a convolution without gaps takes on each side."""
    assert isinstance(layer, Convolution)
    return -layer.offsets[0], layer.offsets[-1]


def _shown(value: Option) -> str:
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)


# The computed half of the table: what each layer takes, and how that grows.


@dataclass(frozen=True)
class Counted:
    """One layer of ``width`` with ``heads`` heads, forward, for one row of ``length`` tokens.

    multiplications: of its formula, beside the projections, which are counted in ``projections``;
    computed: those that are made, with tiles, chunks and padding. growth_in_length, and _width:
    log₂ of how many times more ``multiplications`` are if length, or width, doubles (as many heads,
    twice as wide). steps: how many must wait for each other. path: layers until all have heard of
    all they ever can; None where that is not known, for the reason in ``unknown``. The other
    numbers are None for a mechanism that does not say its work.
    """

    label: str
    multiplications: int | None
    computed: int | None
    projections: int | None
    growth_in_length: float | None
    growth_in_width: float | None
    steps: int | None
    path: int | None
    unknown: str | None = None


def count(
    kinds: Sequence[Kind], length: int, width: int, heads: int, *, progress: Progress = silent
) -> tuple[Counted, ...]:
    """A row for every kind; nothing is run. Raises InvalidArgument for sizes below 1."""
    check_sizes(length=length, width=width, heads=heads)
    rows = []
    for place, kind in enumerate(kinds):
        progress(f"counting {kind.label}", place, len(kinds))
        rows.append(_counted(kind, length, width, heads))
    return tuple(rows)


def _counted(kind: Kind, length: int, width: int, heads: int) -> Counted:
    here = kind.work(length, width, heads)
    longer, wider = kind.work(2 * length, width, heads), kind.work(length, 2 * width, heads)
    path, unknown = None, None
    try:
        path = kind.path(length, heads)
    except NotSupported as refusal:
        unknown = str(refusal)
    return Counted(
        label=kind.label,
        multiplications=here.multiplications if here is not None else None,
        computed=here.computed_multiplications if here is not None else None,
        projections=here.projections if here is not None else None,
        growth_in_length=_growth(here, longer),
        growth_in_width=_growth(here, wider),
        steps=here.steps if here is not None else None,
        path=path,
        unknown=unknown,
    )


def _growth(one: Work | None, two: Work | None) -> float | None:
    if one is None or two is None:
        return None
    less, more = one.multiplications, two.multiplications
    return math.log2(more / less) if less and more else 0.0
