"""Greedy search: the likeliest id at every step."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from eyeline.models.transformer import Transformer
from eyeline.translation.writing import Hypothesis, Writing, check_call


@torch.inference_mode()
def greedy(
    model: Transformer,
    sources: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 128,
    bos: int,
    eos: int,
) -> list[Hypothesis]:
    """y_i = argmax_y p(y | source, y_1 … y_{i-1}), for each source, until y_i is ``eos``.

    The sources are padded and written together; row by row the result is that of one alone, up
    to rounding. bos: the id that a text begins with. max_new_tokens: how many ids are chosen at
    most, the end among them. A score is the log-probability.

    Raises InvalidArgument for an empty source, ids outside the vocabulary, and max_new_tokens
    below 1.
    """
    check_call(model, sources, bos=bos, eos=eos, max_new_tokens=max_new_tokens)
    if not sources:
        return []
    writing = Writing(model, sources)
    last = torch.full((len(sources),), bos, device=writing.device)
    total = torch.zeros(len(sources), dtype=torch.float64)
    texts: list[list[int]] = [[] for _ in sources]
    open_rows = set(range(len(sources)))
    for _ in range(max_new_tokens):
        log_p, last = writing.step(last).max(-1)
        for row, (index, log_one) in enumerate(zip(last.tolist(), log_p.tolist(), strict=True)):
            if row not in open_rows:
                continue  # rows that are finished are fed on, and what they write is not looked at
            total[row] += log_one
            if index == eos:
                open_rows.discard(row)
            else:
                texts[row].append(index)
        if not open_rows:
            break
    return [
        Hypothesis(tuple(ids), log_p, log_p, row not in open_rows)
        for row, (ids, log_p) in enumerate(zip(texts, total.tolist(), strict=True))
    ]
