"""`eyeline bench`: your own shape, each pattern and kernel against torch's SDPA."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eyeline.cli.options import AttentionDtype, Json, Plot, check_plot
from eyeline.errors import InvalidArgument

if TYPE_CHECKING:
    from eyeline.measuring import Counts, Kind, Shape, Sweep
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
            "--backend", help="auto, decode, sdpa, short, tiles, flex, reference. May be repeated."
        ),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            "--mechanism",
            help="all, or a mechanism or layer such as linear(feature_map=favor), "
            "linformer(k=256), recurrent, under each --pattern. May be repeated.",
        ),
    ] = None,
    count_only: Annotated[
        bool, typer.Option("--count-only", help="Only the computed table; nothing is timed.")
    ] = False,
    rounds: Annotated[int, typer.Option(min=1, help="Runs of each; medians are shown.")] = 5,
    memory: Annotated[bool, typer.Option(help="Measure peak memory at the longest length.")] = True,
    as_json: Json = False,
    plot: Plot = None,
) -> None:
    """Time attention of your shape against torch's SDPA."""
    check_plot(plot)
    lengths = length if length else DEFAULT_LENGTHS
    kinds = _kinds(mechanism, pattern, lengths, count_only)
    if kinds and kv_heads not in (None, heads):
        raise InvalidArgument("--kv-heads with --mechanism: the table is that of equal heads")
    if count_only:
        _check_count_only(plot=plot is not None, backward=backward, backend=backend is not None)
    if backend and any(each.name != "exact" for each in kinds):
        raise InvalidArgument("--backend is for patterns; other mechanisms have one way each")
    counts = _counted(kinds, lengths, heads, dim) if kinds else None
    if count_only and counts is not None:
        _show_counts(counts, as_json)
        return
    default = pattern if pattern else DEFAULT_PATTERNS
    patterns = {} if kinds else _patterns(default)
    from eyeline.cli.output import Bar
    from eyeline.measuring import sweep

    shape = _shape(heads, dim=dim, kv_heads=kv_heads, dtype=dtype, backward=backward)
    backends = tuple(dict.fromkeys(backend)) if backend else ("auto",)
    with Bar("starting") as report:
        result = sweep(
            shape,
            lengths,
            patterns,
            backends=backends,
            kinds=kinds,
            rounds=rounds,
            memory=memory,
            progress=report,
        )
    if plot is not None:
        from eyeline.cli.bench_output import draw

        draw(result, plot)
    if as_json:
        from eyeline.cli.output import print_json

        computed = {} if counts is None else {"counts": asdict(counts)}
        print_json({**_answer(result), **computed})
        return
    if counts is not None:
        _show_counts(counts, False)
        typer.echo()
    from eyeline.cli.bench_output import show

    show(result)


def _check_count_only(**given: bool) -> None:
    for name, asked in given.items():
        if asked:
            raise InvalidArgument(
                f"--{name} with --count-only: the table is of the forward pass, and nothing is run"
            )


def _kinds(
    texts: list[str] | None, patterns: list[str] | None, lengths: Sequence[int], count_only: bool
) -> list[Kind]:
    """What --mechanism asks for, under each pattern; what is asked twice stands once."""
    if not texts:
        if not count_only:
            return []
        texts = ["exact"] if patterns else ["all"]
    from eyeline.measuring import kind, standard

    found: list[Kind] = []
    for text in texts:
        if text.strip() == "all":
            if patterns:
                raise InvalidArgument("--mechanism all has its own patterns: leave out --pattern")
            found += standard(max(lengths), min(lengths))
        else:
            under = _patterns(patterns if patterns else ["full"])
            found += [kind(text, each, under=label) for label, each in under.items()]
    return list({each.label: each for each in found}.values())


def _counted(kinds: list[Kind], lengths: Sequence[int], heads: int, dim: int) -> Counts:
    from eyeline.cli.output import Bar
    from eyeline.measuring import count

    with Bar("counting") as report:
        return count(kinds, max(lengths), heads * dim, heads, progress=report)


def _show_counts(counts: Counts, as_json: bool) -> None:
    if as_json:
        from eyeline.cli.output import print_json

        print_json({"counts": asdict(counts)})
        return
    from eyeline.cli.bench_output import show_counts

    show_counts(counts)


def _patterns(texts: tuple[str, ...] | list[str]) -> dict[str, Pattern]:
    from eyeline.cli.options import read_patterns

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
    answer["around_seconds"] = [
        {"length": length, **asdict(each)} for length, each in result.around_seconds.items()
    ]
    return {"baseline": "torch SDPA, causal", **answer, "environment": environment()}
