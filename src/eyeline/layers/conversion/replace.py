"""convert and restore: every attention module of torch inside a model, replaced in place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import final

import torch
from torch import Tensor, nn

from eyeline.errors import InvalidArgument
from eyeline.exact.call import as_pattern
from eyeline.layers.conversion.drop_in import PARAMETERS, TorchAttention
from eyeline.patterns import Full, Pattern

# Report: what ``convert`` replaced, what it left, and how far the results are from torch's.


@final
@dataclass(frozen=True)
class Replaced:
    """One attention module. names: where it stands in the model; more than one if it is tied.

    difference: the greatest |ours - torch's| for a small random input under the full pattern, or
    None where the weights hold no numbers (the meta device).
    """

    names: tuple[str, ...]
    pattern: Pattern
    embed_dim: int
    num_heads: int
    difference: float | None


@final
@dataclass(frozen=True)
class Report:
    """replaced: module by module. left: the name of each attention module that was not, and why.

    inside: torch's encoders and decoders, and their layers, that now look through replaced ones.
    """

    replaced: tuple[Replaced, ...]
    left: tuple[tuple[str, str], ...]
    inside: tuple[str, ...]

    @property
    def difference(self) -> float | None:
        """The greatest of all differences; None if none was measured."""
        return max((x.difference for x in self.replaced if x.difference is not None), default=None)

    def __str__(self) -> str:
        found = "not measured" if self.difference is None else f"{self.difference:.1g}"
        lines = [
            f"{len(self.replaced)} attention modules replaced; "
            f"largest difference under the full pattern: {found}"
        ]
        width = max(len(x.names[0]) for x in self.replaced)
        for each in self.replaced:
            tied = f"  also {', '.join(each.names[1:])}" if len(each.names) > 1 else ""
            off = "" if each.difference is None else f"  {each.difference:.1g}"
            lines.append(
                f"  {each.names[0]:<{width}}  {each.num_heads} heads of "
                f"{each.embed_dim // each.num_heads}{off}  {each.pattern}{tied}"
            )
        lines += [f"  left: {name}: {reason}" for name, reason in self.left]
        return "\n".join(lines)


# Which attention module of a model gets which pattern.

Choice = Pattern | Tensor | None
"""None: the module stays as it is."""

Patterns = (
    Pattern | Tensor | Callable[[str, nn.Module], Choice] | Mapping[str, Pattern | Tensor | None]
)
"""One for all, a function of a module's name and the module, or a table of names."""


@final
@dataclass(frozen=True)
class Found:
    """An attention module in a model. cross: whether torch's decoder looks at its memory by it."""

    names: tuple[str, ...]
    module: nn.MultiheadAttention
    cross: bool


def choose(patterns: Patterns, found: list[Found]) -> list[Pattern | None]:
    """The pattern of each module that was found, or None where it stays as it is.

    Raises InvalidArgument for a name in a table that stands for no module, for a pattern made for
    another number of heads, and for a tied module that would get two.
    """
    if isinstance(patterns, Mapping):
        _check_names(patterns, found)
    return [_of_module(patterns, each) for each in found]


def _of_module(patterns: Patterns, found: Found) -> Pattern | None:
    choices = [choice for name in found.names for choice in _of_name(patterns, name, found)]
    chosen = choices[0] if choices else None
    if any(other != chosen for other in choices):
        raise InvalidArgument(
            f"{' and '.join(found.names)} are one module, and would get the patterns "
            f"{' and '.join(str(x) for x in choices)}"
        )
    if chosen is not None and "batch" not in chosen.varies_by:
        try:
            chosen.check_call(1, found.module.num_heads)
        except InvalidArgument as error:
            raise InvalidArgument(f"{found.names[0]}: {error}") from None
    return chosen


def _of_name(patterns: Patterns, name: str, found: Found) -> list[Pattern | None]:
    """What is said of a name; nothing where a table does not mention it."""
    if isinstance(patterns, (Pattern, Tensor)):
        return [Full() if found.cross else as_pattern(patterns)]
    if not isinstance(patterns, Mapping):
        choice = patterns(name, found.module)
        return [None if choice is None else as_pattern(choice)]
    for key, choice in patterns.items():
        if fnmatchcase(name, key):
            named = "*" not in key.rpartition(".")[2]
            made = None if choice is None else as_pattern(choice)
            return [Full() if found.cross and not named and made is not None else made]
    return []


def _check_names(patterns: Mapping[str, object], found: list[Found]) -> None:
    names = [name for each in found for name in each.names]
    for key in patterns:
        if not any(fnmatchcase(name, key) for name in names):
            raise InvalidArgument(
                f"{key!r} is the name of no nn.MultiheadAttention in the model; there are "
                f"{', '.join(names)} (* stands for any part of a name)"
            )


_HOLDERS = (
    nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.TransformerDecoder,
    nn.TransformerDecoderLayer,
)  # fmt: skip
_NESTED = "_use_nested_tensor_before"


def convert(model: nn.Module, pattern: Patterns) -> Report:
    """Every nn.MultiheadAttention in the model looks by a pattern, with its weights as they are.

    So do nn.TransformerEncoder, nn.TransformerDecoder and their layers, which look through such
    modules; their fast path, which would go past them, and nested tensors are turned off. The
    Parameters stay the same objects under the same names, the modules are called as before, and
    masks that the model passes still hold, on top of the pattern. See ``TorchAttention`` for the
    few differences.

    pattern: a Pattern (or a bool tensor, True = may look) for all; a function (name, module) to a
    pattern, or to None for a module that stays as it is; or a table of such by name, in which *
    stands for any part of a name and the first that fits counts. What looks from an
    nn.TransformerDecoderLayer at its memory gets Full(), unless a function says otherwise or a
    table names it: '*.multihead_attn'.

    Returns a Report: what was replaced, what was left and why, and the largest difference from
    torch's own output under the full pattern, for a small random input of each module.

    Raises InvalidArgument if there is nothing to replace, or the model itself is such a module,
    which has no place in which to replace it (see ``from_torch``). Then nothing was changed.
    """
    _check_model(model)
    if isinstance(model, nn.MultiheadAttention):
        raise InvalidArgument(
            "the model is itself an nn.MultiheadAttention: give the module that holds it, or use "
            "from_torch(module)"
        )
    _check(pattern)
    found, left = _found(model)
    chosen = choose(pattern, found)
    replaced = []
    for each, rule in zip(found, chosen, strict=True):
        if rule is None:
            left.append((each.names[0], "no pattern was given for it"))
        else:
            replaced.append((each, TorchAttention(each.module, Full()), rule))
    if not replaced:
        raise InvalidArgument(_nothing(model, left))
    rows = tuple(_row(*each) for each in replaced)
    for each, module, rule in replaced:
        module.pattern = rule
        module.take_hooks()
        for name in each.names:
            _put(model, name, module)
    return Report(rows, tuple(left), _turned_off(model))


def restore(model: nn.Module) -> tuple[str, ...]:
    """Puts torch's own modules back, with the weights as they are now. Returns their names.

    Raises InvalidArgument if nothing in the model was converted.
    """
    _check_model(model)
    named = model.named_modules(remove_duplicate=False)
    converted = {name: x for name, x in named if isinstance(x, TorchAttention)}
    if not converted:
        raise InvalidArgument("nothing in the model was converted")
    for name, module in converted.items():
        _put(model, name, module.restored())
    for encoder in model.modules():
        before = vars(encoder).pop(_NESTED, None)
        if before is not None:
            encoder.use_nested_tensor = before
    return tuple(converted)


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"model is a {type(model).__name__}: give an nn.Module")


def _check(pattern: object) -> None:
    if isinstance(pattern, (Pattern, Tensor, Mapping)):
        return
    if not callable(pattern) or isinstance(pattern, type):
        raise InvalidArgument(
            f"pattern is {pattern!r}: give a Pattern, a function (name, module) to one, or a table "
            "of them by name"
        )


def _found(model: nn.Module) -> tuple[list[Found], list[tuple[str, str]]]:
    """The modules to replace, each once, and those that cannot be, with the reason."""
    names: dict[nn.MultiheadAttention, list[str]] = {}
    left = []
    for name, module in model.named_modules(remove_duplicate=False):
        if not isinstance(module, nn.MultiheadAttention):
            continue
        reason = _oddity(module)
        if reason is None:
            names.setdefault(module, []).append(name)
        else:
            left.append((name, reason))
    found = [Found(tuple(n), m, _is_cross(model, n[0])) for m, n in names.items()]
    return found, left


def _oddity(module: nn.MultiheadAttention) -> str | None:
    """Why the module may compute something else than nn.MultiheadAttention does, or None."""
    if type(module) is not nn.MultiheadAttention:
        return f"{type(module).__name__} may compute something else"
    if "forward" in vars(module):
        return "its forward was replaced"
    own = {name for name, _ in module.named_parameters(recurse=False)}
    unknown = sorted((own - set(PARAMETERS)) | {name for name, _ in module.named_buffers()})
    if unknown:
        return f"it holds {', '.join(unknown)}, which nn.MultiheadAttention does not"
    return None


def _is_cross(model: nn.Module, name: str) -> bool:
    parent, _, own = name.rpartition(".")
    holder = model.get_submodule(parent)
    return isinstance(holder, nn.TransformerDecoderLayer) and own == "multihead_attn"


def _nothing(model: nn.Module, left: list[tuple[str, str]]) -> str:
    if any(isinstance(x, TorchAttention) for x in model.modules()):
        return "the model was converted before: restore(model) first"
    listed = "".join(f"; {name}: {reason}" for name, reason in left)
    return f"there is no nn.MultiheadAttention to replace in the {type(model).__name__}{listed}"


def _put(model: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


def _turned_off(model: nn.Module) -> tuple[str, ...]:
    """torch's stacks and layers that hold replaced modules; nested tensors are turned off."""
    inside = []
    for name, holder in model.named_modules():
        replaced = any(isinstance(x, TorchAttention) for x in holder.modules())
        if not isinstance(holder, _HOLDERS) or not replaced:
            continue
        inside.append(name)
        uses_nested = "use_nested_tensor" in vars(holder) and _NESTED not in vars(holder)
        if isinstance(holder, nn.TransformerEncoder) and uses_nested:
            setattr(holder, _NESTED, holder.use_nested_tensor)
            holder.use_nested_tensor = False
    return tuple(inside)


def _row(found: Found, module: TorchAttention, rule: Pattern) -> Replaced:
    sizes = module.embed_dim, module.num_heads
    return Replaced(found.names, rule, *sizes, _difference(found.module, module))


@torch.no_grad()
def _difference(original: nn.MultiheadAttention, ours: TorchAttention) -> float | None:
    """The greatest |ours - torch's| for a small random input, both in eval, without hooks."""
    weight = original.out_proj.weight
    if weight.is_meta:
        return None
    generator = torch.Generator().manual_seed(0)
    shape = (2, 7) if original.batch_first else (7, 2)
    query, key, value = (
        torch.randn(*shape, width, generator=generator).to(weight)
        for width in (original.embed_dim, original.kdim, original.vdim)
    )
    training = original.training
    try:
        theirs, _ = original.eval().forward(query, key, value, need_weights=False)
        found, _ = ours.eval().forward(query, key, value, need_weights=False)
    finally:
        original.train(training)
        ours.train(training)
    return float((theirs - found).abs().max())
