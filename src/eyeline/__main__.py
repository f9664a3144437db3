"""`python -m eyeline` is the `eyeline` command."""

from __future__ import annotations

from eyeline.cli import main

if __name__ == "__main__":
    main()
