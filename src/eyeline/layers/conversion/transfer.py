"""One attention module of torch as a MultiHeadAttention, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import PatternLike
from eyeline.layers.attention import MultiHeadAttention
from eyeline.mechanisms import Exact, Mechanism
from eyeline.mechanisms.extra import ExtraKeys
from eyeline.patterns import Full


def from_torch(
    module: nn.MultiheadAttention, *, pattern: PatternLike = Full()
) -> MultiHeadAttention:
    """A layer with copies of the module's weights, which looks by the pattern.

    Packed or separate projections, kdim ≠ vdim, no bias, dropout, dtype, device and mode are
    taken over; ``add_bias_kv`` becomes ``ExtraKeys``. The layer is batch first whatever the module
    was, and its masks are patterns and tokens: ``pattern_of_mask`` and ``tokens_of_padding`` turn
    torch's round.

    Raises NotSupported for ``add_zero_attn``, and for subclasses, which may compute something
    else. ``convert`` keeps torch's call, masks and Parameters, and serves ``add_zero_attn`` too.
    """
    if type(module) is not nn.MultiheadAttention:
        raise NotSupported(
            f"from_torch takes an nn.MultiheadAttention, not a {type(module).__name__}"
        )
    if module.add_zero_attn:
        raise NotSupported(
            "add_zero_attn=True: a key of zeros that is not trained has no place in "
            "MultiHeadAttention; convert(model, pattern) serves it"
        )
    mechanism: Mechanism = Exact(pattern, dropout=module.dropout)
    if module.bias_k is not None:
        sizes = {"num_kv_heads": module.num_heads, "head_dim": module.head_dim}
        mechanism = ExtraKeys(Exact(pattern, dropout=module.dropout), 1, **sizes)
    layer = MultiHeadAttention(
        module.embed_dim, module.num_heads, mechanism=mechanism,
        kdim=module.kdim, vdim=module.vdim, bias=module.in_proj_bias is not None,
    ).to(module.out_proj.weight)  # fmt: skip
    with torch.no_grad():
        for each in _shared(layer, module):
            each.ours.copy_(each.view().view(each.ours.shape))
            each.ours.requires_grad_(each.theirs.requires_grad)
    return layer.train(module.training)


def to_torch(layer: MultiHeadAttention, *, batch_first: bool = True) -> nn.MultiheadAttention:
    """An nn.MultiheadAttention with copies of the layer's weights.

    Raises NotSupported for what torch's module cannot say: shared key heads, a width of heads
    other than embed_dim / num_heads, positions, score modifiers, another scale or mechanism, and
    a pattern. A pattern belongs in the call there: set ``layer.mechanism.pattern = Full()`` first
    and give attn_mask = ~dense_mask(pattern, n).
    """
    if not isinstance(layer, MultiHeadAttention):
        raise InvalidArgument(f"to_torch takes a MultiHeadAttention, not a {type(layer).__name__}")
    exact, extra = _exact(layer)
    _check(layer, exact)
    weight = layer.out_proj.weight
    module = nn.MultiheadAttention(
        layer.embed_dim, layer.num_heads, dropout=exact.dropout, kdim=layer.kdim, vdim=layer.vdim,
        bias=layer.out_proj.bias is not None, add_bias_kv=extra is not None,
        batch_first=batch_first, device=weight.device, dtype=weight.dtype,
    )  # fmt: skip
    module.requires_grad_(False)
    with torch.no_grad():
        for each in _shared(layer, module):
            each.view().copy_(each.ours.view(each.view().shape))
            # Three projections in one Parameter are trained if one of them was.
            each.theirs.requires_grad_(each.theirs.requires_grad or each.ours.requires_grad)
    return module.train(layer.training)


def _exact(layer: MultiHeadAttention) -> tuple[Exact, ExtraKeys | None]:
    mechanism = layer.mechanism
    if isinstance(mechanism, Exact):
        return mechanism, None
    if isinstance(mechanism, ExtraKeys) and mechanism.key.shape[1] == 1:
        return mechanism.exact, mechanism
    raise NotSupported(f"nn.MultiheadAttention cannot look as {type(mechanism).__name__} does")


def _check(layer: MultiHeadAttention, exact: Exact) -> None:
    wants = {
        f"{layer.num_kv_heads} key heads for {layer.num_heads} query heads": (
            layer.num_kv_heads != layer.num_heads
        ),
        f"heads of {layer.head_dim}": layer.head_dim * layer.num_heads != layer.embed_dim,
        "positions": layer.rotary is not None or layer.added is not None,
        "score modifiers": bool(exact.score_mods),
        f"scale={exact.scale}": exact.scale is not None,
    }
    for what, there in wants.items():
        if there:
            raise NotSupported(f"nn.MultiheadAttention has no {what}")
    if exact.pattern != Full():
        raise NotSupported(
            f"nn.MultiheadAttention has no pattern, and the layer looks by {exact.pattern}: set "
            "the pattern of its mechanism to Full() and give attn_mask = ~dense_mask(pattern, n)"
        )


class _Shared(NamedTuple):
    """A parameter of ours, and of torch's, of which it may be the first, second or third part."""

    ours: Tensor
    theirs: Tensor
    part: int | None = None

    def view(self) -> Tensor:
        """The part of torch's."""
        return self.theirs if self.part is None else self.theirs.chunk(3)[self.part]


def _shared(layer: MultiHeadAttention, module: nn.MultiheadAttention) -> Iterator[_Shared]:
    """Every parameter of the layer, beside what it is in torch's module."""
    inward = (layer.q_proj, layer.k_proj, layer.v_proj)
    apart = (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight)
    packed = module.kdim == module.vdim == module.embed_dim
    for part, (ours, theirs) in enumerate(zip(inward, apart, strict=True)):
        if packed:
            yield _Shared(ours.weight, module.in_proj_weight, part)
        else:
            yield _Shared(ours.weight, theirs)
        if module.in_proj_bias is not None:
            yield _Shared(ours.bias, module.in_proj_bias, part)
    yield _Shared(layer.out_proj.weight, module.out_proj.weight)
    if module.out_proj.bias is not None:
        yield _Shared(layer.out_proj.bias, module.out_proj.bias)
    if isinstance(layer.mechanism, ExtraKeys):
        assert module.bias_k is not None
        assert module.bias_v is not None
        yield _Shared(layer.mechanism.key, module.bias_k)
        yield _Shared(layer.mechanism.value, module.bias_v)
