"""`eyeline models`: which models have a name, where they are, and to fetch one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from eyeline.cli.options import Json
from eyeline.cli.output import Bar, console, data_size, print_json

if TYPE_CHECKING:
    from eyeline.checkpoints.known import Known


def models(
    fetch: Annotated[
        str | None, typer.Option("--fetch", metavar="NAME", help="Fetch this model and check it.")
    ] = None,
    as_json: Json = False,
) -> None:
    """List the known models and where each is; fetch one."""
    if fetch is not None:
        path = _fetched(fetch)
        print_json({"name": fetch, "path": str(path)}) if as_json else typer.echo(
            f"{fetch}: {path}"
        )
        return
    from eyeline.checkpoints.known import DEFAULT_ENCODER, DEFAULT_MODEL, MODELS

    defaults = {DEFAULT_MODEL: "generate and compare", DEFAULT_ENCODER: "embed"}
    rows = [_row(known, default=defaults.get(known.name)) for known in MODELS]
    if as_json:
        print_json({"models": rows})
        return
    _print(rows)


def _fetched(name: str) -> Path:
    from eyeline.checkpoints.resolve import resolve

    with Bar(f"looking for {name}") as report:
        return resolve(name, progress=report)


def _row(known: Known, *, default: str | None) -> dict[str, object]:
    from eyeline.checkpoints.fetch import cached
    from eyeline.checkpoints.resolve import local_snapshot

    path = local_snapshot(known.repository) or cached(known.package)
    return {
        "name": known.name,
        "repository": known.repository,
        "about": known.about,
        "license": known.license,
        "default": default,
        "present": path is not None,
        "path": None if path is None else str(path),
        "bytes": known.package.size,
    }


def _print(rows: list[dict[str, object]]) -> None:
    out = console()
    for row in rows:
        default = f", the default of {row['default']}" if row["default"] else ""
        out.print(f"[bold]{row['name']}[/bold]{default}: {row['about']} ({row['license']})")
        size = data_size(float(str(row["bytes"])))
        where = (
            row["path"]
            if row["present"]
            else (f"not fetched; eyeline models --fetch {row['name']} brings {size}")
        )
        out.print(f"  {where}", markup=False, soft_wrap=True)
    out.print("\nA GGUF file, a Hugging Face folder, or owner/name from the hub will do as well.")
