"""Writing: one token after another, for one text or for a batch."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Sequence
from operator import itemgetter
from time import perf_counter
from typing import Literal, final

import torch
from torch import Tensor

from eyeline.caches import Cache
from eyeline.errors import InvalidArgument
from eyeline.models import LanguageModel
from eyeline.sampling import Sampler
from eyeline.tokens import NOBODY, Tokens, default_tokens

# Recounted encodings see as many positions as are kept and read at once, so a long prompt is read
# in pieces of this many tokens.
_RECOUNTED_PIECE = 256


def stream(
    model: LanguageModel,
    ids: Sequence[int],
    *,
    max_new_tokens: int = 128,
    sampler: Sampler | None = None,
    stop: Collection[int] = (),
    caches: Sequence[Cache] | None = None,
) -> Stream:
    """The ids that the model writes after ``ids``, one by one as they are chosen.

    sampler: greedy if not given. stop: ids that end the text and are not part of it, such as
    ``tokenizer.eos_ids``. caches: from ``model.new_caches()``, to go on after a text that was
    read before; ``ids`` are then what follows it.

    A model with learned positions (``model.longest``) writes up to the last of them, and the
    stream's ``stopped`` then says "positions".

    Raises InvalidArgument for an empty prompt, one that is longer than the positions there are,
    ids outside the vocabulary, or a negative max_new_tokens.
    """
    return Stream(
        model,
        ids,
        max_new_tokens=max_new_tokens,
        sampler=sampler if sampler is not None else Sampler(),
        stop=stop,
        caches=caches if caches is not None else model.new_caches(),
    )


@final
class Stream(Iterator[int]):
    """An iterator over new ids that also says how the writing went.

    stopped: why it ended: at an id of ``stop``, at max_new_tokens, or where the model has no more
    positions; None before the end. caches: what the model remembers; the last id is not in it yet.
    prompt_seconds: from the start to the first new id. written, writing_seconds: the ids after the
    first, and the time they took without the time between calls. An interrupt leaves all of them
    as they were after the last id, so the text so far and the numbers stay right.
    """

    def __init__(
        self,
        model: LanguageModel,
        ids: Sequence[int],
        *,
        max_new_tokens: int,
        sampler: Sampler,
        stop: Collection[int],
        caches: Sequence[Cache],
    ) -> None:
        _check(model, [ids], max_new_tokens)
        room = _room(model, caches, len(ids))
        self.caches = caches
        self.stopped: Literal["end", "length", "positions"] | None = None
        self.prompt_tokens, self.prompt_seconds = len(ids), 0.0
        self.written, self.writing_seconds = 0, 0.0
        self._model, self._sampler, self._stop = model, sampler, frozenset(stop)
        self._generator = sampler.generator(model.embedding.weight.device)
        self._left, self._next = min(max_new_tokens, room), list(ids)
        self._last: Literal["length", "positions"]
        self._last = "length" if self._left == max_new_tokens else "positions"

    @property
    def tokens_per_second(self) -> float:
        """The speed of writing, the prompt and the first new id left out; 0 if there is none."""
        return self.written / self.writing_seconds if self.writing_seconds else 0.0

    def __next__(self) -> int:
        if self._left <= 0:
            self.stopped = self.stopped if self.stopped is not None else self._last
            raise StopIteration
        start, reading = perf_counter(), self.prompt_seconds == 0.0
        chosen = int(self._pick(reading))
        seconds = perf_counter() - start
        if reading:
            self.prompt_seconds = seconds
        else:
            self.written, self.writing_seconds = self.written + 1, self.writing_seconds + seconds
        self._next = [chosen]
        self._left = 0 if chosen in self._stop else self._left - 1
        if chosen in self._stop:
            self.stopped = "end"
            raise StopIteration
        return chosen

    # The mode is entered for each step: around a generator it would leak to whoever iterates.
    @torch.inference_mode()
    def _pick(self, reading: bool) -> Tensor:
        ids = torch.tensor([self._next], device=self._model.embedding.weight.device)
        if reading:
            return self._sampler.pick(_read(self._model, ids, self.caches), self._generator)
        before = self.caches[0].position
        try:
            return self._sampler.pick(
                self._model(ids, caches=self.caches, last_only=True)[:, 0], self._generator
            )
        except BaseException:
            for cache in self.caches:
                cache.truncate(before)
            raise


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 128,
    sampler: Sampler | None = None,
    stop: Collection[int] = (),
) -> list[list[int]]:
    """The ids written after each prompt; prompts are padded on the left and written together.

    Row by row the result is that of ``stream`` alone, up to rounding (a batch is multiplied in
    another order) and, if ids are drawn at random, up to the draws. Where a model has learned
    positions, each row ends at the last of them.

    Raises InvalidArgument as ``stream`` does.
    """
    _check(model, prompts, max_new_tokens)
    sampler = sampler if sampler is not None else Sampler()
    device = model.embedding.weight.device
    ids, tokens = _padded(prompts)
    caches, generator = model.new_caches(len(prompts)), sampler.generator(device)
    texts: list[list[int]] = [[] for _ in prompts]
    rooms = [min(max_new_tokens, _room(model, None, len(prompt))) for prompt in prompts]
    writing = [row for row, room in enumerate(rooms) if room]
    logits = _read(model, ids.to(device), caches, tokens)
    while writing:
        chosen = sampler.pick(logits, generator)
        picked = chosen.tolist()
        writing = [row for row in writing if picked[row] not in stop]
        for row in writing:
            texts[row].append(picked[row])
        writing = [row for row in writing if len(texts[row]) < rooms[row]]
        if writing:
            # Rows that are finished are fed on, and what they write is not looked at.
            following = _following(model, caches[0].position, writing)
            logits = model(chosen[:, None], q_tokens=following, caches=caches, last_only=True)[:, 0]
    return texts


def _following(
    model: LanguageModel, position: int | Tensor, writing: Sequence[int]
) -> Tokens | None:
    """Where the next ids stand: as always, but that rows without positions go on as nobody."""
    if model.longest is None or isinstance(position, int):
        return None
    here = torch.full_like(position, NOBODY)
    here[list(writing)] = position[list(writing)]
    return Tokens(here)


def _read(
    model: LanguageModel, ids: Tensor, caches: Sequence[Cache], tokens: Tokens | None = None
) -> Tensor:
    """Reads a prompt into the caches; logits (B, V) of what follows it."""
    length = ids.shape[1]
    piece = length if model.encodings == "absolute" else _RECOUNTED_PIECE
    for start in range(0, length, piece):
        part = tokens
        if tokens is not None and piece < length:
            part = tokens.mapped(itemgetter((..., slice(start, start + piece))))
        logits: Tensor = model(
            ids[:, start : start + piece], q_tokens=part, caches=caches, last_only=True
        )
    return logits[:, 0]


def _padded(prompts: Sequence[Sequence[int]]) -> tuple[Tensor, Tokens]:
    """Ids (B, longest) and their tokens; shared by all rows if no row is padded."""
    lengths = [len(prompt) for prompt in prompts]
    longest = max(lengths)
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
    if min(lengths) == longest:
        return ids, default_tokens(longest, longest)[0]
    return ids, Tokens.padded(lengths, "left")


def _room(model: LanguageModel, caches: Sequence[Cache] | None, prompt: int) -> int:
    """How many ids can be written after a prompt; the last of them is not read."""
    if model.longest is None:
        return sys.maxsize
    begun = torch.as_tensor(caches[0].position if caches else 0)
    read = int(begun.max()) + prompt
    if read > model.longest:
        before = f" after {int(begun.max()):,} that were read before" if int(begun.max()) else ""
        raise InvalidArgument(
            f"a prompt of {prompt:,} tokens{before}: this model has learned {model.longest:,} "
            "positions and there is nothing beyond; give a shorter prompt"
        )
    return model.longest - read + 1


def _check(model: LanguageModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    if max_new_tokens < 0:
        raise InvalidArgument(f"max_new_tokens={max_new_tokens}: 0 or more")
    if not prompts:
        raise InvalidArgument("there are no prompts")
    vocabulary = model.config.vocabulary
    for prompt in prompts:
        if len(prompt) == 0:
            raise InvalidArgument("an empty prompt: give at least one id, such as the first of all")
        if min(prompt) < 0 or max(prompt) >= vocabulary:
            wrong = min(prompt) if min(prompt) < 0 else max(prompt)
            raise InvalidArgument(f"id {wrong} is not in the vocabulary of {vocabulary:,}")
