"""The verbs, gathered. A verb imports what it works with when it is called, not before."""

from __future__ import annotations

from typing import Annotated

import typer

from eyeline.cli.bench import bench
from eyeline.cli.compare import compare
from eyeline.cli.embed import embed
from eyeline.cli.generate import generate
from eyeline.cli.models import models
from eyeline.cli.options import importing
from eyeline.cli.plan import plan
from eyeline.cli.train import train
from eyeline.cli.translate import translate

EXAMPLES = """Examples:

\b
  eyeline generate "Attention is the ability to"
  eyeline generate "Name three rivers." --chat --pattern "streaming(512, 4)"
  eyeline compare --pattern "sliding_window(256)" --plot compare.png
  eyeline embed "A cat sleeps." "A kitten naps." "Shares fell."
  eyeline plan "longformer(128, 16)" --length 1000000
  eyeline bench --heads 12 --dim 64 --backward
  eyeline train lm book.txt --out book
  eyeline models
"""

SETTINGS = {"help_option_names": ["--help", "-h"], "max_content_width": 100}

app = typer.Typer(
    help="Attention in which a pattern, who may look at whom, is a value.",
    epilog=EXAMPLES,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings=SETTINGS,
)
for verb in (generate, embed, compare, bench, plan, models, translate):
    app.command(context_settings=SETTINGS)(importing(verb))
app.add_typer(train, name="train", context_settings=SETTINGS)


def _version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"eyeline {version('eyeline')}")
        raise typer.Exit()


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Attention in which a pattern, who may look at whom, is a value."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
