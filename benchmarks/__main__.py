"""`python -m benchmarks [GROUP …]`: every group in a fresh process, results as text and JSON."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from .settings import RESULTS, Settings, available_cores, quiet_environment

GROUPS = {
    "imports": "what `import eyeline` and `eyeline --help` take",
    "planning": "time and memory of plans at 16,384 and 1,048,576",
    "attention": "attention forward and backward against SDPA and local-attention",
    "patterns": "Longformer, BigBird and strided patterns against transformers and SDPA",
    "conversion": "a training step of torch's encoder before and after convert(model, pattern)",
    "flex": "windows forward against compiled FlexAttention, its mask given or made",
    "flex_cuda": "on a GPU: our block masks in FlexAttention against its own; else nothing",
    "scaling": "time against pairs and memory against length, to 262,144; planning",
    "scores": "T5 bias, Shaw, Transformer-XL, ALiBi and dropout against a window without them",
    "halves": "bfloat16 against float32 at the same pattern",
    "layers": "a layer against its parts, at 4,096 tokens and token by token",
    "fewer": "linear attention, Linformer and compressed keys against their packages",
    "routed": "LSH, k-means, Sinkhorn and top-k against their packages and SDPA",
    "recall": "what routing by content learns and a window cannot: associative recall",
    "concentration": "on how few keys a real model's weight lies, and how alike its columns are",
    "steps": "a training step of GPT-2, 10M parameters, against transformers'",
    "gpt2": "GPT-2 of 124M random weights, 128 tokens after 16, against transformers' generate",
    "trained": "what `eyeline train` reaches: bits per byte, translations, languages",
    "loading": "a GGUF file to the first token against transformers",
    "writing": "128 tokens after 16 against transformers' generate",
    "position": "writing at position 8,000 against 600",
    "reading": "8,192 tokens under streaming, under causal, and by transformers",
}


def main() -> int:
    parser = _parser()
    arguments = parser.parse_args()
    unknown = set(arguments.groups) - set(GROUPS)
    if unknown:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    settings = Settings(
        quick=arguments.quick,
        rounds=arguments.rounds if arguments.rounds is not None else 2 if arguments.quick else 5,
        threads=arguments.threads,
        dtypes=tuple(arguments.dtype or ("bfloat16", "float32")),
        out=_out(arguments),
        busy=arguments.even_if_busy,
    )
    os.environ.update(quiet_environment(settings.threads))
    groups = arguments.groups or list(GROUPS)
    if len(groups) == 1:
        return _here(groups[0], settings)
    return _each(groups, settings)


def _here(group: str, settings: Settings) -> int:
    import torch

    torch.set_num_threads(settings.threads)
    import_module(f".{group}", __package__).run(settings)
    _summarise(settings)
    return 0


def _each(groups: list[str], settings: Settings) -> int:
    """A process for each group, so that none inherits the memory or the caches of another."""
    failed = []
    for number, group in enumerate(groups, 1):
        print(f"[{number}/{len(groups)}] {group}: {GROUPS[group]}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "benchmarks", group, *_options(settings)]
        if subprocess.run(command, cwd=Path(__file__).parent.parent).returncode:
            failed.append(group)
    print(_summarise(settings))
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _summarise(settings: Settings) -> str:
    """Every figure with a bar of all that was recorded, into summary.txt; the pages follow."""
    if settings.out is None or not any(settings.out.glob("*.json")):
        return ""
    from .pages import refresh
    from .report import summary

    text = summary(settings.out)
    (settings.out / "summary.txt").write_text(text + "\n", encoding="utf-8")
    if settings.out == RESULTS:
        refresh()
    return text


def _options(settings: Settings) -> list[str]:
    options = [f"--rounds={settings.rounds}", f"--threads={settings.threads}"]
    options += [f"--dtype={dtype}" for dtype in settings.dtypes]
    options += ["--quick"] if settings.quick else []
    options += ["--even-if-busy"] if settings.busy else []
    return options if settings.out is None else [*options, f"--out={settings.out}"]


def _out(arguments: argparse.Namespace) -> Path | None:
    if arguments.out is not None:
        return Path(arguments.out).absolute()
    return None if arguments.quick else RESULTS


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<13} {about}" for name, about in GROUPS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measures Eyeline against its peers.\n\ngroups:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="all of them if none is named")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, nothing is recorded")
    parser.add_argument("--rounds", type=int, help="rounds after the warm-up (5)")
    parser.add_argument("--threads", type=int, default=available_cores(), help="for everybody")
    parser.add_argument(
        "--dtype", action="append", choices=["bfloat16", "float32"], help="for groups with a model"
    )
    parser.add_argument(
        "--even-if-busy", action="store_true", help="record even if others used the machine"
    )
    parser.add_argument("--out", metavar="DIR", help="where results go (benchmarks/results)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
