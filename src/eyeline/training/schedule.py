"""The learning rate of each step: up in a line, then down half a cosine to a tenth."""

from __future__ import annotations

import math

FLOOR = 0.1
"""The last rate, as a share of the highest."""


def rate_at(step: int, *, steps: int, highest: float, warmup: int) -> float:
    """The rate of step 1, 2, …, steps.

    highest · step / warmup up to step = warmup; then
    highest · (f + (1 - f) · (1 + cos(π · (step - warmup) / (steps - warmup))) / 2), f = 0.1.
    Loshchilov and Hutter 2017, "SGDR" (without restarts).
    """
    if step < warmup:
        return highest * step / warmup
    done = (step - warmup) / max(1, steps - warmup)
    return highest * (FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * min(done, 1.0))) / 2)
