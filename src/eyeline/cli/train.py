"""`eyeline train`: a model of your own, from text files, labelled rows, or pairs."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from eyeline.cli import train_options as ask
from eyeline.cli.options import Json, importing
from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from eyeline.training.run import TaskName

EXAMPLES = """Examples:

\b
  eyeline train lm book.txt --out book
  eyeline train classify rows.tsv --columns text,label --out classes
  eyeline train seq2seq pairs.tsv --held-out other.tsv --out names
  eyeline train lm book.txt --out book --resume
  torchrun --nproc-per-node 2 -m eyeline train lm book.txt --out book
"""

train = typer.Typer(
    help="Train a model of your own; --help after a task says more.",
    epilog=EXAMPLES,
    no_args_is_help=True,
    rich_markup_mode=None,
)


def _verb(task: TaskName, about: str, *, without: tuple[str, ...]) -> Callable[..., None]:
    """A verb for a task: what all of them are asked, but for the options it does not have."""

    def verb(
        out: ask.Out,
        files: ask.Files = None,
        model: ask.Family = None,
        size: ask.Size = None,
        layers: ask.Layers = None,
        width: ask.Width = None,
        heads: ask.Heads = None,
        length: ask.Length = None,
        pattern: ask.Pattern = None,
        mechanism: ask.Mechanism = None,
        dropout: ask.Dropout = None,
        columns: ask.Columns = None,
        tokenizer: ask.Tokens = None,
        held_out: ask.HeldOut = None,
        validation: ask.Validation = None,
        steps: ask.Steps = None,
        batch_tokens: ask.BatchTokens = None,
        rate: ask.Rate = None,
        warmup: ask.Warmup = None,
        weight_decay: ask.Decay = None,
        clip: ask.Clip = None,
        precision: ask.Precision = None,
        seed: ask.Seed = None,
        every: ask.Every = 200,
        resume: ask.Resume = False,
        force: ask.Force = False,
        as_json: Json = False,
    ) -> None:
        asked = {name: value for name, value in locals().items() if name in _ASKED}
        _train(task, {name: value for name, value in asked.items() if value is not None},
               out=out, every=every, resume=resume, force=force, as_json=as_json)  # fmt: skip

    signature = inspect.signature(verb, eval_str=True)
    kept = [p for name, p in signature.parameters.items() if name not in without]
    verb.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    verb.__doc__ = about
    return verb


_ASKED = frozenset({
    "files", "model", "size", "layers", "width", "heads", "length", "pattern", "mechanism",
    "dropout", "columns", "tokenizer", "held_out", "validation", "steps", "batch_tokens", "rate",
    "warmup", "weight_decay", "clip", "precision", "seed",
})  # fmt: skip


def _train(
    task: TaskName, asked: dict[str, Any], *, out: Any, every: int, resume: bool, force: bool,
    as_json: bool,
) -> None:  # fmt: skip
    if resume and force:
        raise InvalidArgument("--resume goes on and --force begins anew: give one of them")
    from eyeline.cli.train_output import Display, answer, show
    from eyeline.cli.train_run import new_run, resumed_run
    from eyeline.training import leave
    from eyeline.training import train as run_training
    from eyeline.training.processes import joined

    first = joined().first
    try:
        run = resumed_run(task, asked, out) if resume else new_run(task, asked)
        with Display(out, silent=as_json or not first) as display:
            trained = run_training(
                run, out, resume=resume, force=force, every=every, tell=display.tell,
                begin=display.begin,
            )  # fmt: skip
    finally:
        leave()
    if first and as_json:
        from eyeline.cli.output import print_json

        print_json(answer(trained))
    elif first:
        show(trained)
    if trained.interrupted:
        raise typer.Exit(130)


_VERBS = (
    (
        "lm",
        "A language model that writes on, from text files.",
        ("columns",),
    ),
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
    (
        "seq2seq",
        "One text from another, from a TSV or CSV of pairs.",
        ("model",),
    ),
)
for _task, _about, _without in _VERBS:
    train.command(_task, context_settings={"max_content_width": 100})(
        importing(_verb(_task, _about, without=_without))  # type: ignore[arg-type]
    )
