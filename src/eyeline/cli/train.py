"""`eyeline train`: a model of your own, from text files, labelled rows, or pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final, get_type_hints

import typer

from eyeline.cli.options import PATTERN_HELP, Json, ModelDtype, importing, read_pattern
from eyeline.cli.output import print_json
from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from eyeline.training.run import Precision, Run, TaskName

EXAMPLES = """Examples:

\b
  eyeline train lm book.txt --out book
  eyeline train classify rows.tsv --columns text,label --out classes
  eyeline train seq2seq pairs.tsv --held-out other.tsv --out names
  eyeline train lm book.txt --out book --resume
  torchrun --nproc-per-node 2 -m eyeline train lm book.txt --out book
"""

_Word = str | None
_Whole = int | None
_Number = float | None


@final
@dataclass(frozen=True)
class Options:
    """What `eyeline train` is asked, each once: its name, type, bounds and help.

    The parameters of the four verbs are made of these fields. One that is called as a field of
    Shape, Source or Course is that field's value. None: not asked, so that a new run has what is
    usual, and a resumed one what it was begun with.
    """

    out: Annotated[
        Path,
        typer.Option("--out", metavar="DIR", help="The folder it goes to.", show_default=False),
    ]
    files: Annotated[
        list[str] | None, typer.Argument(metavar="FILE", help="What to learn from.")
    ] = None

    # The model.
    model: Annotated[
        _Word, typer.Option("--model", help="llama, or gpt2.", show_default="llama")
    ] = None
    size: Annotated[
        _Word,
        typer.Option(
            help="tiny, mini, small, base, medium or large.", show_default="small; seq2seq: mini"
        ),
    ] = None
    layers: Annotated[_Whole, typer.Option(min=1, help="Layers, if not the size's.")] = None
    width: Annotated[_Whole, typer.Option(min=1, help="The width of a layer, likewise.")] = None
    heads: Annotated[_Whole, typer.Option(min=1, help="Heads of a layer, likewise.")] = None
    length: Annotated[
        _Whole, typer.Option(min=2, help="Tokens of the longest sequence.", show_default="256")
    ] = None
    pattern: Annotated[_Word, typer.Option("--pattern", help=PATTERN_HELP)] = None
    mechanism: Annotated[
        _Word, typer.Option(help='How it is looked: "exact", or "linear", "additive", ….')
    ] = None
    dropout: Annotated[
        _Number,
        typer.Option(help="The share left out while training.", show_default="0; seq2seq: 0.1"),
    ] = None

    # The data.
    columns: Annotated[
        _Word,
        typer.Option(
            help='Two numbers, or names in the first line: "text,label".', show_default="1,2"
        ),
    ] = None
    tokenizer: Annotated[
        _Word,
        typer.Option("--tokenizer", help="A tokenizer.json, or a folder.", show_default="bytes"),
    ] = None
    held_out: Annotated[
        _Word, typer.Option("--held-out", metavar="FILE", help="What to measure on, in a file.")
    ] = None
    validation: Annotated[
        _Number,
        typer.Option(help="The share that is held out to measure on.", show_default="0.05"),
    ] = None

    # The course.
    steps: Annotated[_Whole, typer.Option(min=1, help="Steps in all.")] = None
    batch_tokens: Annotated[
        _Whole, typer.Option(min=1, help="Tokens of a step.", show_default="by task")
    ] = None
    rate: Annotated[
        _Number, typer.Option(help="The highest learning rate.", show_default="by size")
    ] = None
    warmup: Annotated[
        _Whole, typer.Option(min=0, help="Steps up to it.", show_default="a twentieth of all")
    ] = None
    weight_decay: Annotated[
        _Number, typer.Option("--weight-decay", help="Of matrices.", show_default="0.1")
    ] = None
    clip: Annotated[
        _Number, typer.Option(help="The largest norm of gradients.", show_default="1")
    ] = None
    precision: Annotated[
        ModelDtype | None,
        typer.Option(help="Of products. auto: bfloat16 where that is fast.", show_default="auto"),
    ] = None
    seed: Annotated[_Whole, typer.Option(help="Draw the same again.", show_default="0")] = None

    # How it goes on, and what is shown.
    every: Annotated[
        int, typer.Option(min=1, help="Steps from one measure and state to the next.")
    ] = 200
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was begun in DIR.")] = (
        False
    )
    force: Annotated[
        bool, typer.Option("--force", help="Replace what was trained in DIR before.")
    ] = False
    as_json: Json = False

    def values_of(self, part: type) -> dict[str, Any]:
        """What was asked of the fields of a part of a run."""
        names = {field.name for field in fields(part)}
        asked = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: x for name, x in asked.items() if name in names and x not in (None, [])}


def _parameters(without: tuple[str, ...]) -> Iterator[inspect.Parameter]:
    types = get_type_hints(Options, include_extras=True)
    for field in fields(Options):
        default = field.default if field.name != "out" else inspect.Parameter.empty
        if field.name not in without:
            yield inspect.Parameter(
                field.name, inspect.Parameter.KEYWORD_ONLY,
                default=default, annotation=types[field.name],
            )  # fmt: skip


def _verb(task: TaskName, about: str, *, without: tuple[str, ...]) -> Callable[..., None]:
    """A verb for a task: what all of them are asked, but for the options it does not have."""

    def verb(**asked: Any) -> None:
        _train(task, Options(**asked))

    signature = inspect.Signature(list(_parameters(without)))
    verb.__signature__ = signature  # type: ignore[attr-defined]
    verb.__doc__ = about
    return verb


train = typer.Typer(
    help="Train a model of your own; --help after a task says more.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)
_VERBS: tuple[tuple[TaskName, str, tuple[str, ...]], ...] = (
    ("lm", "A language model that writes on, from text files.", ("columns",)),
    (
        "mlm",
        "A masked language model that reads both ways, from text files.",
        ("columns", "model"),
    ),
    (
        "classify",
        "Classes of texts, from a CSV or TSV, or a folder with a folder for each class.",
        ("model",),
    ),
    ("seq2seq", "One text from another, from a TSV or CSV of pairs.", ("model",)),
)
for _task, _about, _without in _VERBS:
    train.command(_task, context_settings={"max_content_width": 100})(
        importing(_verb(_task, _about, without=_without))
    )


def _train(task: TaskName, asked: Options) -> None:
    if asked.resume and asked.force:
        raise InvalidArgument("--resume goes on and --force begins anew: give one of them")
    from eyeline.cli.train_output import Display, answer, show
    from eyeline.training import leave
    from eyeline.training import train as run_training
    from eyeline.training.processes import joined

    first = joined().first
    try:
        run = resumed_run(task, asked) if asked.resume else new_run(task, asked)
        with Display(asked.out, silent=asked.as_json or not first) as display:
            trained = run_training(
                run, asked.out, resume=asked.resume, force=asked.force, every=asked.every,
                tell=display.tell, begin=display.begin,
            )  # fmt: skip
    finally:
        leave()
    if first and asked.as_json:
        print_json(answer(trained))
    elif first:
        show(trained)
    if trained.interrupted:
        raise typer.Exit(130)


# From what was asked to a run: what was not asked is usual, or as it was when it was begun.


def new_run(task: TaskName, asked: Options) -> Run:
    """A run with the usual values where nothing was asked."""
    from eyeline.training.run import FAMILIES, USUAL, Course, Run, Shape, Source, size_of

    if not asked.files:
        raise InvalidArgument("there are no files to train on: name at least one")
    usual = USUAL[task]
    size = size_of(asked.size if asked.size is not None else usual.size)
    shape = Shape(
        FAMILIES[task][0], size.layers, size.width, size.heads, usual.length, dropout=usual.dropout
    )
    steps = asked.steps if asked.steps is not None else usual.steps
    warmup = max(1, steps // 20)
    course = Course(steps, usual.batch_tokens, size.rate, warmup, precision=precision_of())
    return _with(Run(task, shape, Source(files=()), course), asked)


def resumed_run(task: TaskName, asked: Options) -> Run:
    """The run that was begun in the folder, with what is asked; that must be the same."""
    from eyeline.training.run import size_of
    from eyeline.training.states import read_run

    run = _with(read_run(asked.out), asked)
    if asked.size is not None:
        size = size_of(asked.size)
        shape = replace(run.shape, layers=size.layers, width=size.width, heads=size.heads)
        run = _with(replace(run, shape=shape), asked)
    return replace(run, task=task)


def precision_of(asked: ModelDtype = ModelDtype.auto) -> Precision:
    """What is multiplied in. A processor that multiplies bfloat16 does it faster."""
    from eyeline.loading import multiplies_bfloat16

    if asked is ModelDtype.auto:
        return "bfloat16" if multiplies_bfloat16() else "float32"
    return "bfloat16" if asked is ModelDtype.bfloat16 else "float32"


def _with(run: Run, asked: Options) -> Run:
    from eyeline.mechanisms.recipes import recipe

    shape, source, course = (asked.values_of(type(x)) for x in (run.shape, run.source, run.course))
    if asked.model is not None:
        shape["family"] = asked.model
    if asked.mechanism is not None:
        shape["mechanism"] = str(recipe(asked.mechanism))
    if asked.pattern is not None:
        shape["pattern"] = _pattern(asked.pattern, shape.get("layers", run.shape.layers))
    if asked.files:
        source["files"] = tuple(asked.files)
    if asked.columns is not None:
        source["columns"] = _columns(asked.columns)
    if asked.precision is not None:
        course["precision"] = precision_of(asked.precision)
    return replace(
        run,
        shape=replace(run.shape, **shape),
        source=replace(run.source, **source),
        course=replace(run.course, **course),
    )


def _pattern(text: str, layers: int) -> tuple[str, ...]:
    patterns = read_pattern(text).of_layers(layers)
    return tuple(map(str, patterns)) if isinstance(patterns, list) else (str(patterns),)


def _columns(text: str) -> tuple[str, str]:
    names = [name.strip() for name in text.split(",")]
    if len(names) != 2 or not all(names):
        raise InvalidArgument(f'--columns {text!r}: two numbers or names, such as "1,2"')
    return names[0], names[1]
