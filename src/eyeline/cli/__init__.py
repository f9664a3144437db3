"""The `eyeline` command, one file a verb. Importing it imports nothing that takes time."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs the command with this process's arguments, and ends the process with its status."""
    from eyeline.cli.run import run

    sys.exit(run(sys.argv[1:]))
