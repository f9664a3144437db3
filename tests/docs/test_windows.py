"""Each row of the table in docs/windows.md, pair by pair, against what the library does."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from eyeline import dense_mask, parse

PAGE = Path(__file__).parents[2] / "docs" / "windows.md"
SIZE, LENGTH = 6, 102  # some libraries want a length of whole windows
MIDDLE = slice(40, 62)

Mask = Callable[[Tensor, Tensor], Tensor]


def rows() -> dict[str, tuple[str, str, str]]:
    """The table: the library's setting → keys, itself counted, expression."""
    lines = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines[1:]]
    return {what: (keys, counted, text.strip("`")) for what, keys, counted, text in cells}


# Each formula is the library's own, in its own terms: q and k are positions, w is 6.
FORMULAS: dict[str, Mask] = {
    "transformers decoders, `sliding_window=6`": lambda q, k: (k > q - 6) & (k <= q),
    "transformers encoders, `sliding_window=6`": lambda q, k: (q - k).abs() <= 6,
    "transformers, `attention_chunk_size=6`": lambda q, k: (q // 6 == k // 6) & (k <= q),
    "transformers Longformer, `attention_window=6`": lambda q, k: (q - k).abs() <= 6 // 2,
    "Mistral's reference, `sliding_window=6`, reading": lambda q, k: _band(q, k, -6, 0),
    "Mistral's reference, `sliding_window=6`, writing": lambda q, k: _ring(q, k),
    "llama.cpp, `n_swa = 6`, standard": lambda q, k: ~((q - k >= 6) | (k > q)),
    "llama.cpp, `n_swa = 6`, symmetric": lambda q, k: ~((q - k < -3) | (q - k > 3)),
    "llama.cpp, `n_swa = 6`, chunked": lambda q, k: ~((k < (q // 6) * 6) | (k > q)),
    "flash-attn, `window_size=(6, 0)`": lambda q, k: _flash(q, k, 6, 0),
    "flash-attn, `window_size=(6, 6)`": lambda q, k: _flash(q, k, 6, 6),
    "flash-attn, `window_size=(6, 6), causal=True`": lambda q, k: _flash(q, k, 6, 0),
    "flash-attn, `window_size=(6, -1)`": lambda q, k: _flash(q, k, 6, -1),
    "xformers, `window_left=6, window_right=6`": lambda q, k: (q - 6 <= k) & (k <= q + 6),
    "xformers causal, `window_size=6`": lambda q, k: _band(q, k, -6 + 1, 0),
    "JAX splash, `LocalMask(window_size=(6, 0))`": lambda q, k: (q - 6 <= k) & (q + 0 >= k),
    "JAX splash, `LocalMask(window_size=(6, None))`": lambda q, k: q - 6 <= k,
    "JAX, `local_window_size=6`": lambda q, k: (q - 6 <= k) & (q + 6 >= k),
    "attention-gym, `generate_sliding_window(6)`": lambda q, k: (q - k <= 6) & (q >= k),
    "Keras Hub decoders, `sliding_window=6`": lambda q, k: _band(q, k, -6 + 1, 6 - 1) & (k <= q),
    "Keras Hub Gemma encoders, `sliding_window_size=6`": lambda q, k: (q - k <= 2) & (q - k >= -3),
    "local-attention, `window_size=6, causal=True`": lambda q, k: _blocks(q, k, 0) & ~(q < k),
    "local-attention, `window_size=6, causal=True, exact_windowsize=True`": (
        lambda q, k: _blocks(q, k, 0) & ~((q < k) | (q > k + 6))
    ),
    "local-attention, `window_size=6`": lambda q, k: _blocks(q, k, 1),
    "local-attention, `window_size=6, exact_windowsize=True`": (
        lambda q, k: _blocks(q, k, 1) & ~((k - 6 > q) | (q > k + 6))
    ),
}


def _band(q: Tensor, k: Tensor, lowest: int, highest: int) -> Tensor:
    """Diagonals lowest … highest of a matrix of ones, cut out with triu and tril."""
    ones = torch.ones(q.numel(), k.numel())
    return ones.triu(lowest).tril(highest).bool()


def _ring(q: Tensor, k: Tensor) -> Tensor:
    """Position p is written to entry p % 6 of a cache of 6: who is in it when q looks?"""
    mask = torch.zeros(q.numel(), k.numel(), dtype=torch.bool)
    cache: dict[int, int] = {}
    for position in range(q.numel()):
        cache[position % SIZE] = position
        mask[position, list(cache.values())] = True
    return mask


def _flash(q: Tensor, k: Tensor, left: int, right: int) -> Tensor:
    """-1 is no limit."""
    past = k >= q - left if left >= 0 else torch.ones_like(q + k, dtype=torch.bool)
    return past & (k <= q + right) if right >= 0 else past


def _blocks(q: Tensor, k: Tensor, forward: int) -> Tensor:
    """Queries in blocks of 6; each block is given its own keys and those of the blocks around."""
    block = torch.arange(LENGTH).view(-1, SIZE)
    mask = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    for number, own in enumerate(block):
        given = block[max(number - 1, 0) : number + forward + 1].flatten()
        mask[own[:, None], given] = True
    return mask


def _of_transformers(kind: str) -> Mask:
    """The mask that transformers' own rule makes."""
    from transformers import masking_utils

    rule = {
        "causal": lambda: masking_utils.sliding_window_causal_mask_function(SIZE),
        "both": lambda: masking_utils.sliding_window_bidirectional_mask_function(SIZE),
        "chunked": lambda: masking_utils.chunked_causal_mask_function(SIZE, torch.zeros(1).long()),
    }[kind]()
    return lambda q, k: rule(torch.tensor(0), torch.tensor(0), q, k).expand(LENGTH, LENGTH)


def _of_longformer(q: Tensor, k: Tensor) -> Tensor:
    """Where Longformer's self-attention puts weight, all scores being equal."""
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = SimpleNamespace(
        hidden_size=LENGTH,
        num_attention_heads=1,
        attention_probs_dropout_prob=0.0,
        attention_window=[SIZE],
    )
    layer = LongformerSelfAttention(config, 0).eval()
    for linear in (layer.query, layer.key, layer.value):
        torch.nn.init.zeros_(linear.weight)
        torch.nn.init.zeros_(linear.bias)
    torch.nn.init.eye_(layer.value.weight)
    nobody = torch.zeros(1, LENGTH, dtype=torch.bool)
    with torch.no_grad():
        out = layer(
            torch.eye(LENGTH)[None],
            attention_mask=torch.zeros(1, LENGTH),
            is_index_masked=nobody,
            is_index_global_attn=nobody,
            is_global_attn=False,
        )[0]
    return out[0] > 0


# The rows whose library the development environment has: asked, not only quoted.
REAL: dict[str, Callable[[], Mask]] = {
    "transformers decoders, `sliding_window=6`": lambda: _of_transformers("causal"),
    "transformers encoders, `sliding_window=6`": lambda: _of_transformers("both"),
    "transformers, `attention_chunk_size=6`": lambda: _of_transformers("chunked"),
    "transformers Longformer, `attention_window=6`": lambda: _of_longformer,
}


def theirs(what: str) -> list[Tensor]:
    """The library's mask by its formula, and by itself where it is installed."""
    q, k = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)[None, :]
    found = [FORMULAS[what](q, k)]
    if what in REAL and find_spec("transformers") is not None:
        found.append(REAL[what]()(q, k))
    return found


def test_every_row_has_a_meaning_and_every_meaning_a_row() -> None:
    assert list(rows()) == list(FORMULAS)
    assert len({what.split()[0].strip(",") for what in FORMULAS}) >= 6


@pytest.mark.parametrize("what", FORMULAS)
def test_the_expression_allows_what_the_library_allows(what: str) -> None:
    ours = dense_mask(parse(rows()[what][2]), LENGTH)
    for mask in theirs(what):
        assert torch.equal(ours, mask)


@pytest.mark.parametrize("what", FORMULAS)
def test_the_number_of_keys_is_that_of_a_token_in_the_middle(what: str) -> None:
    keys, counted, _ = rows()[what]
    seen = theirs(what)[-1].long()
    if keys.endswith(" and all later"):
        seen = seen.tril()
    number = re.fullmatch(r"(\d+)(?: to (\d+))?(?: and all later)?", keys)
    assert number is not None, keys
    counts = seen[MIDDLE].sum(1)
    assert int(counts.min()) == int(number[1])
    assert int(counts.max()) == int(number[2] or number[1])
    assert counted == {SIZE: "yes", SIZE + 1: "no", 2 * SIZE + 1: "no"}.get(
        int(counts.max()) if number[2] is None else -1, "blocks"
    )
