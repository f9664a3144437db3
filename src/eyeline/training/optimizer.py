"""AdamW: matrices decay, and all else (norms, biases, scales) does not."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from eyeline.errors import CheckpointError

BETAS = (0.9, 0.95)
_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


def adamw(model: nn.Module, *, weight_decay: float) -> torch.optim.AdamW:
    """The optimizer of all parameters that are trained. Loshchilov and Hutter 2019.

    All parameters are stepped in one fused operator. A fused step takes the rate from the group,
    where the loop sets it for each step.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=BETAS, fused=True)


def moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What the optimizer remembers of each parameter, as ``name/exp_avg`` and so on."""
    found = {}
    for name, parameter in model.named_parameters():
        for word, value in optimizer.state.get(parameter, {}).items():
            found[f"{name}/{word}"] = value
    return found


def restore(
    model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Gives the optimizer back what ``moments`` told of it.

    Raises CheckpointError for moments of a parameter that is not there or has another shape.
    """
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        parameter, _, word = name.rpartition("/")
        known = parameters.get(parameter)
        if known is None or word not in _MOMENTS or (word != "step" and value.shape != known.shape):
            raise CheckpointError(f"the optimizer's {name} {tuple(value.shape)} fits no parameter")
        value = value if word == "step" else value.to(known.device)
        optimizer.state[known][word] = value.clone()
