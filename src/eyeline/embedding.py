"""Sentence vectors: each text's tokens through a model, and their vectors made one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from eyeline.checks import widened
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.models import Model
from eyeline.models.pooling import Pooling, pooled
from eyeline.models.sentence import last_position
from eyeline.tokens import Tokens, default_tokens

Progress = Callable[[str, int, int], None]
"""Called with what is being done, and how many texts of how many are done."""


class Encodes(Protocol):
    """What is asked of a tokenizer."""

    def encode(self, text: str, *, special: bool = True) -> list[int]:
        """The ids of a text, with those that begin and end it."""
        ...


def embed(
    model: Model,
    tokenizer: Encodes,
    texts: Sequence[str],
    *,
    how: Pooling = "mean",
    normalize: bool = False,
    max_tokens: int | None = None,
    batch_tokens: int = 4096,
    progress: Progress | None = None,
) -> Tensor:
    """One vector for each text: (N, width), in float32 or wider.

    v = pooled(hidden(ids), how), over all tokens of the text, those that begin and end it among
    them; normalize: v / |v|. Texts of similar length are read together, ``batch_tokens`` slots
    at a time, and come back in their order. What stands around a text changes its vector by
    rounding only. The model is read in eval mode, and no gradients are kept.

    max_tokens: a longer text is cut to its first tokens, and ends as every text does; None reads
    all of it. ``SentenceSettings.of_folder`` knows what a model was trained with. Any model with
    ``hidden`` will do, and those that were trained for it do well. Reimers and Gurevych 2019.

    Raises InvalidArgument, naming the text, for one that is empty or longer than the positions
    that the model has, and for ids that the model's vocabulary lacks.
    """
    encoded = encode_texts(tokenizer, texts, max_tokens=max_tokens)
    ids = [text.ids for text in encoded]
    return embed_ids(
        model, ids, how=how, normalize=normalize, batch_tokens=batch_tokens, progress=progress
    )


class Encoded(NamedTuple):
    """The ids of a text that are read, and how many tokens it has."""

    ids: list[int]
    length: int


def encode_texts(
    tokenizer: Encodes, texts: Sequence[str], *, max_tokens: int | None = None
) -> list[Encoded]:
    """The ids of each text, cut to max_tokens. Raises InvalidArgument for one that is empty."""
    if isinstance(texts, str):
        raise InvalidArgument("texts is one str: give a list of texts")
    before, after = _frame(tokenizer)
    room = len(before) + len(after)
    if max_tokens is not None and max_tokens <= room:
        raise InvalidArgument(
            f"max_tokens={max_tokens}: {room} tokens begin and end each text, so it is {room + 1}"
            " or more"
        )
    found = []
    for index, text in enumerate(texts):
        ids = tokenizer.encode(text)
        if not ids or ids == before + after:
            raise InvalidArgument(f"texts[{index}] is empty: {text!r:.60} has no tokens")
        most = max_tokens if max_tokens is not None else len(ids)
        read = ids if len(ids) <= most else ids[: most - len(after)] + after
        found.append(Encoded(read, len(ids)))
    return found


def embed_ids(
    model: Model,
    ids: Sequence[Sequence[int]],
    *,
    how: Pooling = "mean",
    normalize: bool = False,
    batch_tokens: int = 4096,
    progress: Progress | None = None,
) -> Tensor:
    """As ``embed``, of texts that are ids already."""
    _check(model, ids, batch_tokens)
    device, training = next(model.parameters()).device, model.training
    rows: list[Tensor] = []
    order: list[int] = []
    try:
        model.eval()
        for batch in _batches([len(row) for row in ids], batch_tokens):
            rows.append(_vectors(model, [ids[index] for index in batch], how, device))
            order += batch
            if progress is not None:
                progress("embedding", len(order), len(ids))
    finally:
        model.train(training)
    if not rows:
        return torch.empty(0, model.config.width, device=device)
    vectors = torch.cat(rows)[torch.tensor(order, device=device).argsort()]
    return functional.normalize(vectors, dim=-1) if normalize else vectors


def cosines(vectors: Tensor) -> Tensor:
    """cos(v_i, v_j) = v_i · v_j / (|v_i| |v_j|): (N, width) → (N, N)."""
    unit = functional.normalize(vectors, dim=-1)
    return unit @ unit.T


def _frame(tokenizer: Encodes) -> tuple[list[int], list[int]]:
    """What the tokenizer puts before and after every text."""
    frame, some = tokenizer.encode(""), tokenizer.encode("a")
    count = 0
    while count < min(len(frame), len(some)) and frame[count] == some[count]:
        count += 1
    return frame[:count], frame[count:]


def _batches(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Indices by length, the longest first, so many that none is padded past batch_tokens."""
    order = sorted(range(len(lengths)), key=lambda index: -lengths[index])
    while order:
        rows = max(1, batch_tokens // lengths[order[0]])
        yield order[:rows]
        order = order[rows:]


@torch.no_grad()
def _vectors(
    model: Model, batch: Sequence[Sequence[int]], how: Pooling, device: torch.device
) -> Tensor:
    """The vectors of texts that are read together, padded on the right."""
    lengths = [len(row) for row in batch]
    longest = max(lengths)
    ids = torch.tensor([[*row, *[0] * (longest - len(row))] for row in batch], device=device)
    whole = min(lengths) == longest
    tokens = default_tokens(longest, longest)[0] if whole else Tokens.padded(lengths, "right")
    hidden: Tensor = model.hidden(ids, q_tokens=tokens)  # type: ignore[operator]
    wide = widened(hidden)
    return pooled(wide, tokens, how)


def _check(model: Model, ids: Sequence[Sequence[int]], batch_tokens: int) -> None:
    if not hasattr(model, "hidden"):
        raise NotSupported(
            f"{type(model).__name__} has no vectors of tokens to pool; Bert, BertMasked and "
            "language models have"
        )
    if batch_tokens < 1:
        raise InvalidArgument(f"batch_tokens={batch_tokens}: 1 or more")
    vocabulary = model.config.vocabulary
    positions = last_position(model.config)
    for index, row in enumerate(ids):
        if not row:
            raise InvalidArgument(f"texts[{index}] is empty: it has no tokens")
        if min(row) < 0 or max(row) >= vocabulary:
            wrong = min(row) if min(row) < 0 else max(row)
            raise InvalidArgument(
                f"texts[{index}]: id {wrong} is not in the vocabulary of {vocabulary:,}; is this "
                "the model's own tokenizer?"
            )
        if positions is not None and len(row) > positions:
            raise InvalidArgument(
                f"texts[{index}] has {len(row):,} tokens and the model {positions:,} positions: "
                f"cut it, or let max_tokens={positions} do so"
            )
