"""`eyeline bench`: your own shape, each pattern and kernel against torch's SDPA."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyeline.cli.options import AttentionDtype, Json, Plot, check_plot

if TYPE_CHECKING:
    from eyeline.measuring import Shape, Sweep
    from eyeline.patterns import Pattern

DEFAULT_PATTERNS = ("sliding_window(256)", "streaming(256, 4)", "streaming(1024, 4)")
DEFAULT_LENGTHS = (512, 1024, 2048, 4096, 8192)


def bench(
    length: Annotated[
        list[int] | None, typer.Option("--length", min=1, help="In tokens. May be repeated.")
    ] = None,
    heads: Annotated[int, typer.Option(min=1, help="Query heads.")] = 8,
    dim: Annotated[int, typer.Option(min=1, help="The width of a head.")] = 64,
    kv_heads: Annotated[
        int | None, typer.Option(min=1, help="Key heads, if they are fewer (grouped heads).")
    ] = None,
    dtype: Annotated[
        AttentionDtype, typer.Option(help="The type computed in.")
    ] = AttentionDtype.float32,
    backward: Annotated[
        bool, typer.Option("--backward", help="Time the backward pass with the forward pass.")
    ] = False,
    pattern: Annotated[
        list[str] | None, typer.Option("--pattern", help="Who may look at whom. May be repeated.")
    ] = None,
    backend: Annotated[
        list[str] | None,
        typer.Option(
            "--backend", help="auto, decode, sdpa, tiles, flex, reference. May be repeated."
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure peak memory at the longest length.")] = True,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Time attention of your shape against torch's SDPA."""
    check_plot(plot)
    patterns = _patterns(pattern if pattern else DEFAULT_PATTERNS)
    from eyeline.cli.bar import Bar
    from eyeline.measuring import sweep

    shape = _shape(heads, dim=dim, kv_heads=kv_heads, dtype=dtype, backward=backward)
    backends = tuple(dict.fromkeys(backend)) if backend else ("auto",)
    with Bar("starting") as report:
        result = sweep(
            shape,
            length if length else DEFAULT_LENGTHS,
            patterns,
            backends=backends,
            rounds=rounds,
            memory=memory,
            progress=report,
        )
    if plot is not None:
        from eyeline.cli.bench_figure import draw

        draw(result, plot)
    if as_json:
        from eyeline.cli.output import print_json

        print_json(_answer(result))
    else:
        from eyeline.cli.bench_table import show

        show(result)


def _patterns(texts: tuple[str, ...] | list[str]) -> dict[str, Pattern]:
    from eyeline.cli.pattern_text import read_patterns
    from eyeline.errors import InvalidArgument

    found = read_patterns(texts)
    for label, each in found.items():
        if each.single is None:
            raise InvalidArgument(f"--pattern {label!r}: bench has no layers; give one pattern")
    return {label: each.single for label, each in found.items() if each.single is not None}


def _shape(
    heads: int, *, dim: int, kv_heads: int | None, dtype: AttentionDtype, backward: bool
) -> Shape:
    import torch

    from eyeline.measuring import Shape

    return Shape(heads, dim, kv_heads, getattr(torch, dtype.value), backward)


def _answer(result: Sweep) -> dict[str, Any]:
    from eyeline.cli.output import environment

    answer = asdict(result)
    answer["shape"]["dtype"] = str(result.shape.dtype).removeprefix("torch.")
    answer["shape"]["kv_heads"] = result.shape.groups
    answer["baseline_seconds"] = [
        {"length": length, "seconds": seconds}
        for length, seconds in result.baseline_seconds.items()
    ]
    return {"baseline": "torch SDPA, causal", **answer, "environment": environment()}
