"""What reads numbers to decide what to do, kept out of graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import torch

Result = TypeVar("Result")


def eager(run: Callable[[], Result]) -> Result:
    """What ``run`` returns. torch.compile breaks its graph here; with fullgraph=True it refuses."""
    if torch.compiler.is_compiling() or "torch._dynamo" in sys.modules:
        run = torch.compiler.disable(run)
    return run()
