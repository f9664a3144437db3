"""From arguments to an exit status: 0, 2 for the user's mistakes, 130 after Ctrl-C.

1 is for a reader of the output that has gone away.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec
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
from eyeline.errors import EyelineError

# The verbs, gathered. A verb imports what it works with when it is called, not before.


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


CLOSED_PIPE, MISTAKE, INTERRUPTED = 1, 2, 130
_NEEDED = ("typer", "rich")


def run(arguments: Sequence[str]) -> int:
    """Runs one command line. What goes wrong is told in one line on stderr."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        names = " and ".join(missing)
        return _fail(f"the command needs {names}; install it with: pip install 'eyeline[app]'")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character shows "?" instead of ending the program.
            stream.reconfigure(errors="replace")
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return _fail("interrupted", status=INTERRUPTED)
    except BrokenPipeError:
        # Python would complain when it closes the pipe for us.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CLOSED_PIPE


def _run(arguments: Sequence[str]) -> int:
    import typer

    # Typer's name for the base of its usage errors has changed; their child's has not.
    usage_error: type[Exception] = typer.BadParameter.__mro__[2]
    try:
        status = app(list(arguments), prog_name="eyeline", standalone_mode=False)
    except EyelineError as error:
        return _fail(str(error))
    except usage_error as error:
        return _fail(_usage(error))
    except typer.Abort:
        return _fail("interrupted", status=INTERRUPTED)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, MemoryError) or "allocate memory" in str(error):
            return _fail("there is not enough memory for this; try a shorter text or length")
        raise
    sys.stdout.flush()
    return status if isinstance(status, int) else 0


def _usage(error: Exception) -> str:
    """A usage error and where to read more."""
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "eyeline"
    said = error.format_message()  # type: ignore[attr-defined]
    return f"{said.rstrip('.')} ({command} --help says more)"


def _fail(message: str, *, status: int = MISTAKE) -> int:
    print(f"eyeline: {' '.join(message.split())}", file=sys.stderr)
    return status
