"""Draws the gallery of patterns: python docs/images/patterns.py makes patterns.png beside it."""

from __future__ import annotations

from pathlib import Path

from eyeline import Tokens, parse
from eyeline.cli.plan import draw_gallery
from eyeline.planning.pictures import Picture, picture

LENGTH = 64
PACKED = Tokens.packed([19, 7, 23, 15])
GALLERY = {
    "Causal": "causal",
    "Sliding window": "sliding_window(12)",
    "Streaming": "streaming(12, 4)",
    "Prefix": "prefix_lm(16)",
    "Chunks": "chunks(16)",
    "Packed documents": "causal",
    "Dilated window": "dilated(4, left=4, right=4)",
    "Image grid, 8 × 8": "grid(8, 8, 1)",
    "Sparse Transformer, strided": "sparse_transformer(8)",
    "Sparse Transformer, fixed": "sparse_transformer(8, kind=fixed)",
    "Longformer": "longformer(4, [0, 40])",
    "BigBird": "bigbird(4, random=2, global_blocks=1)",
}


def pictures() -> dict[str, tuple[str, Picture]]:
    """Each pattern's text and picture, by its name."""
    return {name: (text, _picture(name, text)) for name, text in GALLERY.items()}


def _picture(name: str, text: str) -> Picture:
    pattern = parse(text).of_length(LENGTH).at(0, 0)
    if name == "Packed documents":
        return picture(pattern, q_tokens=PACKED, k_tokens=PACKED)
    return picture(pattern, LENGTH)


if __name__ == "__main__":
    draw_gallery(pictures(), Path(__file__).with_suffix(".png"))
