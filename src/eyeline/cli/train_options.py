"""What the four verbs of `eyeline train` are asked, in the same words.

Nothing has a default here but None: a resumed run takes from its folder what is not asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from eyeline.cli.options import PATTERN_HELP, ModelDtype

_SHARE = "The share that is held out to measure on."

Files = Annotated[list[str] | None, typer.Argument(metavar="FILE", help="What to learn from.")]
Out = Annotated[
    Path,
    typer.Option("--out", metavar="DIR", help="The folder it goes to.", show_default=False),
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what was begun in DIR.")]
Force = Annotated[bool, typer.Option("--force", help="Replace what was trained in DIR before.")]

# The model.
Family = Annotated[
    str | None, typer.Option("--model", help="llama, or gpt2.", show_default="llama")
]
Size = Annotated[
    str | None,
    typer.Option(
        help="tiny, mini, small, base, medium or large.", show_default="small; seq2seq: mini"
    ),
]
Layers = Annotated[int | None, typer.Option(min=1, help="Layers, if not the size's.")]
Width = Annotated[int | None, typer.Option(min=1, help="The width of a layer, likewise.")]
Heads = Annotated[int | None, typer.Option(min=1, help="Heads of a layer, likewise.")]
Length = Annotated[
    int | None, typer.Option(min=2, help="Tokens of the longest sequence.", show_default="256")
]
Pattern = Annotated[str | None, typer.Option("--pattern", help=PATTERN_HELP)]
Mechanism = Annotated[
    str | None, typer.Option(help='How it is looked: "exact", or "linear", "additive", ….')
]
Dropout = Annotated[
    float | None,
    typer.Option(help="The share left out while training.", show_default="0; seq2seq: 0.1"),
]

# The data.
Columns = Annotated[
    str | None,
    typer.Option(help='Two numbers, or names in the first line: "text,label".', show_default="1,2"),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokenizer", help="A tokenizer.json, or a folder.", show_default="bytes"),
]
HeldOut = Annotated[
    str | None, typer.Option("--held-out", metavar="FILE", help="What to measure on, in a file.")
]
Validation = Annotated[float | None, typer.Option(help=_SHARE, show_default="0.05")]

# The course.
Steps = Annotated[int | None, typer.Option(min=1, help="Steps in all.")]
BatchTokens = Annotated[
    int | None, typer.Option(min=1, help="Tokens of a step.", show_default="by task")
]
Rate = Annotated[
    float | None, typer.Option(help="The highest learning rate.", show_default="by size")
]
Warmup = Annotated[
    int | None, typer.Option(min=0, help="Steps up to it.", show_default="a twentieth of all")
]
Decay = Annotated[
    float | None, typer.Option("--weight-decay", help="Of matrices.", show_default="0.1")
]
Clip = Annotated[
    float | None, typer.Option(help="The largest norm of gradients.", show_default="1")
]
Precision = Annotated[
    ModelDtype | None,
    typer.Option(help="Of products. auto: bfloat16 where that is fast.", show_default="auto"),
]
Seed = Annotated[int | None, typer.Option(help="Draw the same again.", show_default="0")]
Every = Annotated[int, typer.Option(min=1, help="Steps from one measure and state to the next.")]
