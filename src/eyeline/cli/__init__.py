"""The `eyeline` command, one file a verb: from arguments to an exit status.

0; 2 for the user's mistakes; 130 after Ctrl-C; 1 for a reader of the output that has gone away.
Importing this imports nothing that takes time, nor anything that may be missing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

from eyeline.errors import EyelineError

CLOSED_PIPE, MISTAKE, INTERRUPTED = 1, 2, 130
_NEEDED = ("typer", "rich")


def main() -> None:
    """Runs the command with this process's arguments, and ends the process with its status."""
    sys.exit(run(sys.argv[1:]))


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

    from eyeline.cli.app import app

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
