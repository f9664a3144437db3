"""A training run as a value: all that decides what comes out, as it is stored in run.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal, NamedTuple, final

from eyeline.checks import check_number, check_size, check_sizes, probability
from eyeline.errors import CheckpointError, InvalidArgument

TaskName = Literal["lm", "mlm", "classify", "seq2seq"]
Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class Shape:
    """The model. pattern: texts, one for all layers or one each; none is the family's own.

    length: the longest sequence, in tokens. mechanism: a recipe's text, for all layers.
    """

    family: str
    layers: int
    width: int
    heads: int
    length: int
    pattern: tuple[str, ...] = ()
    mechanism: str = "exact"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, str):
            raise InvalidArgument(
                f"mechanism={self.mechanism!r:.60}: one text for all layers is due, such as "
                '"linear(feature_map=relu)"'
            )


@dataclass(frozen=True)
class Source:
    """The data. validation: the share that is held out, if no file of held-out data is given.

    columns: of a table, by number from 1, or by the names that its first line gives them.
    tokenizer: "bytes", or the path of a tokenizer.json or of a folder with one.
    """

    files: tuple[str, ...]
    held_out: str | None = None
    validation: float = 0.05
    columns: tuple[str, str] = ("1", "2")
    tokenizer: str = "bytes"


@dataclass(frozen=True)
class Course:
    """How it is trained. batch_tokens: of one step, pads included, over all processes.

    rate: the highest learning rate, reached after ``warmup`` steps. clip: gradients are scaled
    down to this norm.
    """

    steps: int
    batch_tokens: int
    rate: float
    warmup: int
    weight_decay: float = 0.1
    clip: float = 1.0
    precision: Precision = "float32"
    seed: int = 0


@final
@dataclass(frozen=True)
class Run:
    """Task, model, data and course together. Raises InvalidArgument for values out of range."""

    task: TaskName
    shape: Shape
    source: Source
    course: Course

    def __post_init__(self) -> None:
        _check_shape(self.shape)
        _check_course(self.course)
        probability("validation", self.source.validation)

    def as_json(self) -> dict[str, Any]:
        """Plain values, the same that ``from_json`` reads."""
        return asdict(self)

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Run:
        """The inverse of ``as_json``. Raises CheckpointError for what it does not know."""
        try:
            return Run(
                task=values["task"],
                shape=Shape(**_tuples(values["shape"])),
                source=Source(**_tuples(values["source"])),
                course=Course(**_tuples(values["course"])),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"run.json is not what a training run writes: {error}") from None

    def check_resumes(self, stored: Run) -> None:
        """Raise InvalidArgument, with both values, if this is not the stored run.

        The number of steps may be another: what is still to come then follows the new schedule.
        Files may lie elsewhere: that they hold the same is found out when they are read.
        """
        mine = replace(
            self,
            course=replace(self.course, steps=stored.course.steps),
            source=replace(self.source, files=stored.source.files, held_out=stored.source.held_out),
        )
        told = dict(_flat(stored))
        wrong = [
            f"{name}: {_text(told[name])} there, {_text(value)} asked for"
            for name, value in _flat(mine)
            if value != told[name]
        ]
        if wrong:
            raise InvalidArgument(f"this run cannot be resumed as another one: {'; '.join(wrong)}")


def _flat(run: Run) -> Iterator[tuple[str, object]]:
    yield "task", run.task
    for part in (run.shape, run.source, run.course):
        for field in fields(part):
            yield field.name, getattr(part, field.name)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) if value else "none given"
    return str(value)


def _tuples(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _check_shape(shape: Shape) -> None:
    check_sizes(layers=shape.layers, width=shape.width, heads=shape.heads)
    check_size("length", shape.length, least=2)
    if shape.width % shape.heads:
        raise InvalidArgument(
            f"width {shape.width} is not divisible by {shape.heads} heads; for instance width "
            f"{shape.width // shape.heads * shape.heads or shape.heads} is"
        )
    probability("dropout", shape.dropout)


def _check_course(course: Course) -> None:
    check_sizes(steps=course.steps, batch_tokens=course.batch_tokens)
    check_size("warmup", course.warmup, least=0)
    check_number("rate", course.rate)
    check_number("clip", course.clip)
    check_number("weight_decay", course.weight_decay, equal=True)
    if course.precision not in ("float32", "bfloat16"):
        raise InvalidArgument(f'precision={course.precision!r}: "float32" or "bfloat16"')


# Sizes by name, and what a run is if nothing else is asked for.


class Size(NamedTuple):
    """Layers, their width, and heads; rate: the highest learning rate that suits it.

    Of a Transformer, as many layers read as write.
    """

    layers: int
    width: int
    heads: int
    rate: float


# Parameters with bytes as tokens:      llama   gpt2   bert   transformer
SIZES: Mapping[str, Size] = {
    "tiny": Size(2, 64, 2, 4e-3),     # 0.12M
    "mini": Size(2, 128, 4, 4e-3),    # 0.5M                   1.0M
    "small": Size(4, 256, 4, 2e-3),   # 3.2M
    "base": Size(6, 384, 6, 1e-3),    # 10M
    "medium": Size(8, 512, 8, 8e-4),  # 25M
    "large": Size(12, 768, 12, 6e-4), # 85M
}  # fmt: skip

FAMILIES: Mapping[TaskName, tuple[str, ...]] = {
    "lm": ("llama", "gpt2"),
    "mlm": ("bert",),
    "classify": ("bert",),
    "seq2seq": ("transformer",),
}
"""The families that can learn a task; the first is taken if none is named."""


class Usual(NamedTuple):
    """The rest of a run: a size by name, dropout, length in tokens, tokens a step, steps."""

    size: str
    dropout: float
    length: int
    batch_tokens: int
    steps: int


USUAL: Mapping[TaskName, Usual] = {
    "lm": Usual("small", 0.0, 256, 2048, 2000),
    "mlm": Usual("small", 0.0, 256, 4096, 1000),
    "classify": Usual("small", 0.0, 256, 4096, 500),
    # Pairs are few and short, as lists of names are: a small model that forgets on purpose.
    "seq2seq": Usual("mini", 0.1, 256, 4096, 3000),
}


def size_of(name: str) -> Size:
    """By its name. Raises InvalidArgument with those that there are."""
    if name not in SIZES:
        raise InvalidArgument(f"size {name!r}: there are {', '.join(SIZES)}")
    return SIZES[name]
