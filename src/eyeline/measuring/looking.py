"""What each layer of a language model looks with, while it reads a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from eyeline.errors import InvalidArgument, NotSupported
from eyeline.exact.call import check_call
from eyeline.mechanisms import Exact
from eyeline.models import LanguageModel
from eyeline.planning.dense import settled
from eyeline.routing.scored import Scored
from eyeline.tokens import default_tokens


class Look(NamedTuple):
    """One layer's queries (B, H, L, E) and keys (B, Hk, S, E), by its mechanism."""

    exact: Exact
    query: Tensor
    key: Tensor

    @property
    def scored(self) -> Scored:
        """The scores of all pairs that the layer's pattern allows."""
        options: dict[str, Any] = {"q_tokens": None, "k_tokens": None, "scale": self.exact.scale}
        call = check_call(self.query, self.key, self.key, self.exact.pattern, **options)
        q, k = default_tokens(self.query.shape[2], self.key.shape[2])
        return Scored(self.query, self.key, settled(call.pattern, q, k), q, k, call.scale)


def of_each_layer(
    model: LanguageModel, ids: Sequence[int], measure: Callable[[Look], Tensor]
) -> Tensor:
    """measure(look) of each layer in turn, (layers, …), while the model reads ids at once.

    Only what was measured is kept. Dropout is left out. Raises InvalidArgument for no ids, and
    NotSupported for a layer that does not look by exact attention, or changes its scores.
    """
    if not len(ids):
        raise InvalidArgument("there are no ids to read")
    found: list[Tensor] = []
    training = model.training
    with ExitStack() as after, torch.inference_mode():
        for layer in model.layers:
            attend = cast(Any, layer).attention.attend
            see = _seeing(_checked(attend), measure, found)
            handle = attend.register_forward_pre_hook(see, with_kwargs=True)
            after.callback(handle.remove)
        after.callback(model.train, training)
        model.eval().hidden(torch.tensor([list(ids)], device=model.embedding.weight.device))
    return torch.stack(found)


def _seeing(
    exact: Exact, measure: Callable[[Look], Tensor], found: list[Tensor]
) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Any]], None]:
    def see(module: nn.Module, given: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        found.append(measure(Look(exact, given[0], given[1])))

    return see


def _checked(mechanism: nn.Module) -> Exact:
    if not isinstance(mechanism, Exact):
        raise NotSupported(
            f"the weights of exact attention are measured, not of {type(mechanism).__name__}"
        )
    if mechanism.score_mods:
        raise NotSupported(f"scores that {mechanism.score_mods[0]} changes are not measured")
    return mechanism
