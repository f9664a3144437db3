"""`compare`: one text, one model, several patterns; what each costs and what each loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any, TypeVar, final

import torch
from torch import Tensor, nn

from eyeline.caches import Cache
from eyeline.errors import InvalidArgument
from eyeline.generation import stream
from eyeline.layers import PackedLinear
from eyeline.measuring import recall
from eyeline.measuring.likelihood import Change, paired_change, perplexity
from eyeline.measuring.peaks import Peak
from eyeline.measuring.timing import Progress, Stages, silent
from eyeline.models import LanguageModel
from eyeline.patterns import Causal, Pattern
from eyeline.planning import looks_ahead, pairs
from eyeline.planning.peeling import rules

# One set of weights under several patterns.


M = TypeVar("M", bound=LanguageModel)


def under(model: M, pattern: Pattern | Sequence[Pattern]) -> M:
    """The same model under another pattern (or one per layer). The weights are shared, not copied.

    So several patterns are compared in the memory of one model, and by turns.
    Raises InvalidArgument if the number of patterns is not the number of layers.
    """
    with torch.device("meta"):
        other = type(model)(model.config, **{**model.choices(), "pattern": pattern})
    for name, module in model.named_modules():
        if isinstance(module, (PackedLinear, nn.Linear)):  # with what it keeps of its weight
            other.set_submodule(name, module)
    for name, weight in model.state_dict(keep_vars=True).items():
        parent, _, leaf = name.rpartition(".")
        setattr(other.get_submodule(parent), leaf, weight)
    return other.train(model.training)


# One reading of a text: how long it takes, how much of that is attention, how much memory.


@dataclass(frozen=True)
class Reading:
    """A text read once into empty caches.

    seconds: from ids to the logits of what follows. attention_seconds: of these, inside attention
    proper (projections and rotary encoding not counted). peak_bytes: memory beyond what was held
    before, or None where that is not measured. hidden: (1, L, width), what the head reads.
    """

    seconds: float
    attention_seconds: float
    peak_bytes: int | None
    hidden: Tensor
    caches: Sequence[Cache]


@torch.inference_mode()
def read(model: LanguageModel, ids: Tensor) -> Reading:
    """Reads ids (1, L) in one step."""
    caches = model.new_caches()
    with Peak() as peak, AttentionClock(model) as clock:
        start = perf_counter()
        hidden = model.hidden(ids, caches=caches)
        model.head(hidden[:, -1:])
        seconds = perf_counter() - start
    return Reading(seconds, clock.seconds, peak.bytes, hidden, caches)


def writing_speed(model: LanguageModel, reading: Reading, tokens: int) -> float:
    """Tokens per second, greedy, after the text that was read. The caches grow by them."""
    with torch.inference_mode():
        first = int(model.head(reading.hidden[:, -1:]).argmax())
    writer = stream(model, [first], max_new_tokens=tokens + 1, caches=reading.caches)
    for _ in writer:
        pass
    return writer.tokens_per_second


@final
class AttentionClock:
    """``with AttentionClock(model) as clock: …``: seconds spent inside the model's attention."""

    def __init__(self, model: LanguageModel) -> None:
        self.seconds = 0.0
        self._model, self._start, self._hooks = model, 0.0, ExitStack()

    def __enter__(self) -> AttentionClock:
        for mechanism in self._model.mechanisms:
            for hook in (
                mechanism.register_forward_pre_hook(self._begin),
                mechanism.register_forward_hook(self._end),
            ):
                self._hooks.callback(hook.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._hooks.close()

    def _begin(self, *_: Any) -> None:
        self._start = perf_counter()

    def _end(self, *_: Any) -> None:
        self.seconds += perf_counter() - self._start


SHORTEST = 128
_WRITTEN = 24


@dataclass(frozen=True)
class Row:
    """One pattern (or one per layer), measured.

    pairs: how many pairs of tokens it looks at, per head, the mean over layers. share: of the
    causal pairs. read_seconds, attention_share, peak_bytes (beyond the weights; None: not
    measured), tokens_per_second (of writing, at the end of the text): medians over the rounds.
    cache_bytes: keys and values kept at the end of the text. change: of the perplexity against
    the first row; None for that row itself. recall: by distance in tokens.
    """

    label: str
    patterns: tuple[str, ...]
    pairs: float
    share: float
    read_seconds: float
    attention_share: float
    peak_bytes: int | None
    tokens_per_second: float
    cache_bytes: int
    perplexity: float
    change: Change | None
    recall: Mapping[int, recall.Score]


@dataclass(frozen=True)
class Comparison:
    """The rows, full causal first; ``length`` tokens were read in each of ``rounds`` rounds."""

    length: int
    rounds: int
    rows: tuple[Row, ...]


@final
@dataclass
class _Course:
    """What is gathered of one pattern while the rounds go on."""

    label: str
    model: LanguageModel
    seconds: list[float] = field(default_factory=list)
    attention_seconds: list[float] = field(default_factory=list)
    peaks: list[int | None] = field(default_factory=list)
    speeds: list[float] = field(default_factory=list)
    cache_bytes: int = 0
    losses: Tensor = field(default_factory=lambda: torch.empty(0))
    recall: Mapping[int, recall.Score] = field(default_factory=dict)


def compare(
    model: LanguageModel,
    ids: Sequence[int],
    patterns: Mapping[str, Pattern | Sequence[Pattern]],
    *,
    tokenizer: recall.Encoder | None = None,
    rounds: int = 3,
    progress: Progress = silent,
) -> Comparison:
    """Reads ``ids`` under full causal and under each pattern, by turns, in ``rounds`` rounds.

    patterns: by the labels they are shown under. tokenizer: to write the facts for recall; without
    it, and for texts that are too short, recall is empty.

    Raises InvalidArgument for fewer than 128 ids, for more than the model has positions for
    (``room``), and for patterns that look ahead: they read the answers off the text.
    """
    if len(ids) < SHORTEST:
        raise InvalidArgument(f"{len(ids)} tokens are too few to compare: at least {SHORTEST}")
    most = room(model)
    if most is not None and len(ids) > most:
        raise InvalidArgument(
            f"{len(ids):,} tokens, and {_WRITTEN + 1} are written after them: this model has "
            f"learned {model.longest:,} positions, which is enough to read {most:,}"
        )
    chosen = {"causal": Causal(), **patterns}
    for label, each in chosen.items():
        refuse_looking_ahead(label, each, len(ids), heads=model.config.heads)
    courses = [_Course(label, under(model, each)) for label, each in chosen.items()]
    exam = None
    if tokenizer is not None:
        exam = recall.prepare(tokenizer, ids, longest=model.longest)
    stages = Stages(len(courses) * (8 + 10 * rounds + (20 if exam is not None else 0)), progress)
    text = torch.tensor([ids])
    for course in courses:
        # In full: what is allocated once and kept would else count as the first one's memory.
        with stages.stage(f"warming up {course.label}", 8):
            read(course.model, text)
    for _ in range(rounds):
        for course in courses:
            with stages.stage(f"reading under {course.label}", 10):
                _round(course, text)
    if exam is not None:
        for course in courses:
            with stages.stage(f"asking under {course.label}", 20) as within:
                course.recall = recall.examine(course.model, exam, progress=within)
    return Comparison(len(ids), rounds, tuple(_row(each, courses[0], len(ids)) for each in courses))


def room(model: LanguageModel) -> int | None:
    """How long a text may be for ``compare``; None if there is no limit."""
    return None if model.longest is None else max(model.longest - _WRITTEN - 1, 0)


def refuse_looking_ahead(
    label: str, pattern: Pattern | Sequence[Pattern], length: int, *, heads: int | None = None
) -> None:
    """Raises InvalidArgument for a pattern under which a token may look at a later one.

    heads: None where they are not known yet; a pattern that differs per head is then passed over.
    """
    for layer in {pattern} if isinstance(pattern, Pattern) else set(pattern):
        if heads is None and "head" in layer.varies_by:
            continue
        if looks_ahead(layer, length, heads=heads):
            raise InvalidArgument(
                f"under {label} tokens look at later ones, so the text would be read off, not "
                f"guessed; try causal & ({layer})"
            )


def _round(course: _Course, text: Tensor) -> None:
    reading = read(course.model, text)
    course.seconds.append(reading.seconds)
    course.attention_seconds.append(reading.attention_seconds)
    course.peaks.append(reading.peak_bytes)
    course.cache_bytes = sum(cache.nbytes for cache in reading.caches)
    course.speeds.append(writing_speed(course.model, reading, _WRITTEN))
    if not len(course.losses):
        with torch.inference_mode():
            course.losses = course.model.losses_of(reading.hidden, text)[0]


def _row(course: _Course, baseline: _Course, length: int) -> Row:
    looked, causal = pairs_per_layer(course.model, length), length * (length + 1) / 2
    peaks = [peak for peak in course.peaks if peak is not None]
    paired = None if course is baseline else paired_change(course.losses, baseline.losses)
    shares = zip(course.attention_seconds, course.seconds, strict=True)
    return Row(
        label=course.label,
        patterns=tuple(str(pattern) for pattern in course.model.patterns),
        pairs=looked,
        share=looked / causal,
        read_seconds=median(course.seconds),
        attention_share=median(part / whole for part, whole in shares),
        peak_bytes=int(median(peaks)) if peaks else None,
        tokens_per_second=median(course.speeds),
        cache_bytes=course.cache_bytes,
        perplexity=perplexity(course.losses),
        change=paired,
        recall=course.recall,
    )


def pairs_per_layer(model: LanguageModel, length: int) -> float:
    """How many pairs one head looks at in a text of this length: the mean over heads and layers."""
    heads = model.config.heads
    counts = [
        sum(count * pairs(rule, length) for rule, count in rules(pattern.of_length(length), heads))
        / heads
        for pattern in model.patterns
    ]
    return sum(counts[group] for group in model.groups) / len(model.groups)
