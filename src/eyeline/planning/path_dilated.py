"""The longest path of a stack of convolutions whose gaps grow from layer to layer."""

from __future__ import annotations

from eyeline.errors import InvalidArgument


def dilated_path(left: int, right: int, length: int) -> int:
    """⌈log_b n⌉ layers, b = 1 + the narrower way that is open, with gaps 1, b, b², ….

    A layer with gap g lets token i hear i - l·g and i + r·g for l ≤ left and r ≤ right. A distance
    below b^m has m digits below b, each one hop of one layer, all in one direction: so no hop
    leaves the sequence, and m layers are enough where b^m ≥ n. They are needed: the widest reach
    of m layers by the narrower way is (b - 1)(1 + b + … + b^(m-1)) = b^m - 1. Ways of 0 are shut.

    Raises InvalidArgument for negative widths and lengths. van den Oord et al. 2016 (WaveNet).
    """
    if min(left, right, length) < 0:
        raise InvalidArgument(f"left={left}, right={right}, length={length}: at least 0")
    narrow = min((way for way in (left, right) if way > 0), default=0)
    layers, reached = 0, 1
    while narrow and reached < length:
        layers, reached = layers + 1, reached * (narrow + 1)
    return layers
