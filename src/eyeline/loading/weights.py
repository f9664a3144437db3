"""Weights out of a file into a model that is only sketched, every tensor accounted for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from eyeline.checkpoints.base import Tensors
from eyeline.errors import CheckpointError
from eyeline.mechanisms.base import moving_buffers
from eyeline.models.base import Names, Part, half_split


def fill(
    model: nn.Module,
    tensors: Tensors,
    names: Names,
    *,
    source: Path,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    tied: Mapping[str, str] | None = None,
    derived: Callable[[str], bool] = lambda name: False,
) -> None:
    """Reads each tensor of ``names`` into the model, brought to the dtype as it is read.

    dtype: as stored if not given. tied: tensors that a file may hold although they equal a
    parameter; that is checked. derived: those that follow from the configuration.

    Raises CheckpointError for tensors that are missing, surplus, of another shape, or not equal.
    """
    tied = tied if tied is not None else {}
    _account(tensors, names, source=source, spared=lambda name: name in tied or derived(name))
    moving = {id(x) for x in moving_buffers(model)}  # running means, which half types would stop
    for ours in _shared(model):
        given = _given(ours, names, source)
        before = _owned(model, ours[0])
        kind = None if id(before) in moving else dtype
        if given is None:  # a mechanism's own, which other libraries' files do not hold
            now = before.detach().to(device, kind if before.is_floating_point() else None)
        else:
            parts = names[given]
            now = _read(tensors, parts, before.shape, dtype=kind, source=source).to(device)
        now = nn.Parameter(now) if isinstance(before, nn.Parameter) else now
        for name in ours:
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent), leaf, now)
    for theirs, name in tied.items():
        due = any(part.name == theirs for parts in names.values() for part in parts)
        if theirs in tensors and not due:
            _check_tied(tensors, theirs, _owned(model, name), source=source)


def own_names(model: nn.Module) -> Names:
    """Our own folders: each parameter and stored buffer under its name, a shared one once."""
    return {ours[0]: [Part(ours[0])] for ours in _shared(model)}


def _given(ours: Sequence[str], names: Names, source: Path) -> str | None:
    """The name that says what the file has for one parameter. Raises CheckpointError for two."""
    given = [name for name in ours if name in names]
    if len({tuple(names[name]) for name in given}) > 1:
        raise CheckpointError(
            f"{source}: {' and '.join(given)} are one parameter in this model, and two tensors "
            "there: these weights were not trained to be shared"
        )
    return given[0] if given else None


def _shared(model: nn.Module) -> Iterator[list[str]]:
    """The names of each parameter and stored buffer; a tied one has several."""
    found: dict[int, list[str]] = {}
    for name in model.state_dict(keep_vars=True):
        found.setdefault(id(_owned(model, name)), []).append(name)
    yield from found.values()


def _owned(model: nn.Module, name: str) -> Tensor:
    parent, _, leaf = name.rpartition(".")
    tensor: Tensor = getattr(model.get_submodule(parent), leaf)
    return tensor


def _account(
    tensors: Tensors, names: Names, *, source: Path, spared: Callable[[str], bool]
) -> None:
    """Raises CheckpointError if a tensor is missing, or there and not used."""
    due = {part.name for parts in names.values() for part in parts}
    surplus = {name for name in set(tensors) - due if not spared(name)}
    for what, wrong in (("missing", due - set(tensors)), ("surplus", surplus)):
        if wrong:
            listed = ", ".join(f"{name!a:.80}" for name in sorted(wrong)[:5])
            more = f" and {len(wrong) - 5} more" if len(wrong) > 5 else ""
            raise CheckpointError(f"{source}: {what} tensors: {listed}{more}")


def _read(
    tensors: Tensors,
    parts: Sequence[Part],
    shape: torch.Size,
    *,
    dtype: torch.dtype | None,
    source: Path,
) -> Tensor:
    """The parts stacked by rows."""
    stored = [tensors.info[part.name] for part in parts]
    shapes = [each.shape[::-1] if part.transposed else each.shape
              for part, each in zip(parts, stored, strict=True)]  # fmt: skip
    if _stacked(shapes) != tuple(shape):
        listed = ", ".join(f"{p.name} {i.shape}" for p, i in zip(parts, stored, strict=True))
        due = tuple(shape)[::-1] if parts[0].transposed else tuple(shape)
        raise CheckpointError(f"{source}: {listed}: the configuration asks for {due}")
    floating = stored[0].dtype.is_floating_point
    chosen = dtype if dtype is not None and floating else stored[0].dtype
    weight, start = torch.empty(shape, dtype=chosen), 0
    if not shape:
        return tensors.read(parts[0].name, dtype=chosen)
    for part in parts:
        piece = tensors.read(part.name, dtype=chosen)
        piece = piece.T if part.transposed else piece
        piece = half_split(piece, part.pairs) if part.pairs else piece
        weight[start : start + len(piece)] = piece
        start += len(piece)
    return weight


def _stacked(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape of tensors stacked by rows; None where they do not fit."""
    if len(shapes) == 1:
        return shapes[0]
    if any(not shape or shape[1:] != shapes[0][1:] for shape in shapes):
        return None
    return (sum(shape[0] for shape in shapes), *shapes[0][1:])


def _check_tied(tensors: Tensors, name: str, weight: Tensor, *, source: Path) -> None:
    """A tied model may store its head all the same; then it must be the embedding."""
    stored = tensors.read(name, dtype=weight.dtype)
    if not torch.equal(stored, weight.detach().cpu()):
        raise CheckpointError(
            f"{source}: the config ties {name} to another tensor, but {name} differs from it"
        )
