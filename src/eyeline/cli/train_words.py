"""Models, measures and times of training, in words."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from eyeline.cli.output import percent

if TYPE_CHECKING:
    from eyeline.training.trainer import Trainer

_SHARES = frozenset({"accuracy", "commonest", "exact", "error_rate", "copy_exact"})
NAMES = {
    "loss": "held-out loss, nats",
    "bits_per_byte": "bits per byte",
    "perplexity": "perplexity",
    "accuracy": "accuracy",
    "commonest": "always the commonest class",
    "exact": "exactly right",
    "error_rate": "characters wrong",
    "copy_exact": "copying would get right",
}


def measure(name: str, value: float) -> str:
    """A measure with its unit: 2.27 bits per byte, 93 % exactly right."""
    if name in _SHARES:
        return f"{percent(value)} {NAMES[name]}"
    return f"{value:.3f} {NAMES.get(name, name)}"


def number(name: str, value: float) -> str:
    """A measure without its name, as a table shows it."""
    return percent(value) if name in _SHARES else f"{value:,.3f}"


def clock(seconds: float) -> str:
    """0:07, 12:34, 1:02:03."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def count(parameters: int) -> str:
    """3,280,128 → 3.3M."""
    for unit, size in (("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if parameters >= size:
            return f"{parameters / size:.{0 if parameters >= 100 * size else 1}f}{unit}"
    return str(parameters)


def facts_in_words(facts: Mapping[str, Any]) -> str:
    """What is known of the data: 355,373 training tokens, 18,704 held-out tokens."""
    said = []
    for name, value in facts.items():
        if name == "classes":
            said.append(f"{len(value)} classes")
        elif name == "texts_cut":
            said += [f"{value:,} texts cut at the length"] if value else []
        else:
            said.append(f"{value:,} {name.replace('held_out', 'held-out').replace('_', ' ')}")
    return ", ".join(said)


def model_in_words(trainer: Trainer) -> str:
    """Model, data and course in one line."""
    model, course = trainer.model, trainer.course
    parameters = sum(p.numel() for p in model.parameters())
    config: Any = model.config
    epochs = course.steps / trainer.task.epoch
    said = (
        f"{type(model).__name__} of {count(parameters)} parameters ({config.layers} layers of "
        f"{config.width}, {config.heads} heads)",
        facts_in_words(trainer.task.facts),
        f"{course.steps:,} steps, {epochs:,.1f} times through",
        course.precision,
    )
    resumed = [f"on from step {trainer.step:,}"] if trainer.step else []
    return " · ".join([*said, *resumed])
