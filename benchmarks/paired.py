"""Two checkouts against each other, in turns: `python -m benchmarks.paired OTHER [--quick]`.

Each case is timed in two processes that live through the whole run, one for each checkout, and
asked by turns. A case uses only what both checkouts know, so that an older one can be compared.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any, final

Work = Callable[[], object]
HERE = Path(__file__).resolve()
SLOWER = 1.03
MODEL = "SmolLM2-135M-Instruct"


def cases(*, quick: bool) -> dict[str, Callable[[], Work]]:
    """What is timed, by name: each makes its inputs and returns the call."""
    length, heads = (1024, 2) if quick else (16_384, 8)
    routed, read, write = (256, 64, 8) if quick else (8192, 2048, 48)
    windows = {"sliding_window(256)": 256, "sliding_window(64)": 64}
    return {
        **{f"plan {text}": lambda text=text: _plan(text, length) for text in windows},
        "plan documents": lambda: _plan("causal", length, documents=True),
        "plan sliding_window(256), a million": lambda: _plan(
            "sliding_window(256)", length if quick else 1 << 20
        ),
        **{f"train {text}": lambda text=text: _train(text, length, heads) for text in windows},
        "train streaming(256, 4)": lambda: _train("streaming(256, 4)", length, heads),
        "train documents": lambda: _train("causal", length, heads, documents=True),
        "train LSH": lambda: _routed("lsh(bucket_size=64, rounds=4)", routed, heads),
        "train KMeans": lambda: _routed("kmeans(clusters=128, window=64)", routed, heads),
        "train Sinkhorn": lambda: _routed("sinkhorn(block=64)", routed, heads),
        "one query over 512 keys": lambda: _step(512, heads),
        "read with SmolLM2": lambda: _read(read),
        "write with SmolLM2": lambda: _write(write),
    }


def _tokens(length: int, *, documents: bool) -> Any:
    """New tokens, of which no plan is remembered: whole, or packed documents of 8 to 2,048."""
    import torch

    from eyeline import Tokens

    if not documents:
        return Tokens.arange(0, length)
    generator, lengths, left = torch.Generator().manual_seed(0), list[int](), length
    while left:
        size = int(torch.randint(8, 2049, (), generator=generator))
        lengths.append(min(size, left))
        left -= lengths[-1]
    return Tokens.packed(lengths)


def _rule(text: str, *, documents: bool) -> Any:
    """The pattern; where documents are not apart by themselves, with the atom that says so."""
    import eyeline

    rule = eyeline.parse(text)
    apart = getattr(eyeline, "SameDocument", None) if documents else None
    return rule if apart is None else rule & apart()


def _plan(text: str, length: int, *, documents: bool = False) -> Work:
    from eyeline import plan

    rule = _rule(text, documents=documents)

    def work() -> object:
        tokens = _tokens(length, documents=documents)
        return plan(rule, q_tokens=tokens, k_tokens=tokens)

    return work


def _heads(length: int, heads: int, *, grad: bool = True) -> list[Any]:
    import torch

    torch.manual_seed(0)
    return [torch.randn(1, heads, length, 64, requires_grad=grad) for _ in range(3)]


def _train(text: str, length: int, heads: int, *, documents: bool = False) -> Work:
    import torch

    from eyeline import attention

    inputs, rule = _heads(length, heads), _rule(text, documents=documents)
    tokens = _tokens(length, documents=documents)

    def work() -> object:
        out = attention(*inputs, rule, q_tokens=tokens, k_tokens=tokens)
        return torch.autograd.grad(out, inputs, torch.ones_like(out))

    return work


def _routed(text: str, length: int, heads: int) -> Work:
    import torch

    from eyeline import Causal, MultiHeadAttention, recipe
    from eyeline.mechanisms import Heads

    rule = Causal()
    mechanism = recipe(text).make(rule, Heads(heads, heads, 64))
    torch.manual_seed(0)
    layer = MultiHeadAttention(heads * 64, heads, mechanism=mechanism)
    x = torch.randn(1, length, heads * 64, requires_grad=True)

    def work() -> object:
        out = layer(x)
        return torch.autograd.grad(out, x, torch.ones_like(out))

    return work


def _step(keys: int, heads: int) -> Work:
    import torch

    from eyeline import Causal, attention

    query, (_, key, value) = _heads(1, heads, grad=False)[0], _heads(keys, heads, grad=False)

    def work() -> object:
        with torch.no_grad():
            return [attention(query, key, value, Causal()) for _ in range(300)]

    return work


def _read(length: int) -> Work:
    import torch

    from eyeline import load, streaming

    model = load(MODEL, pattern=streaming(512, 4), dtype=torch.float32).model
    ids = torch.arange(5, 5 + length)[None] % 40_000

    def work() -> object:
        with torch.no_grad():
            return model(ids)

    return work


def _write(count: int) -> Work:
    import torch

    from eyeline import load, stream

    model = load(MODEL, dtype=torch.float32).model
    return lambda: list(stream(model, list(range(5, 21)), max_new_tokens=count))


@final
class Checkout:
    """A process that times cases with the sources of one checkout."""

    def __init__(self, folder: Path, *, quick: bool) -> None:
        asked = [sys.executable, str(HERE), "--serve", *(["--quick"] if quick else [])]
        paths = {"PYTHONPATH": str(folder / "src")}
        self._process = subprocess.Popen(
            asked, env={**os.environ, **paths}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        )  # fmt: skip

    def seconds(self, case: str) -> float:
        """The time of one call."""
        asking, answering = self._process.stdin, self._process.stdout
        assert asking is not None and answering is not None
        print(case, file=asking, flush=True)
        return float(answering.readline())


def serve(*, quick: bool) -> None:
    """Answers each name of a case on standard input with its seconds; a name not asked before is
    made first."""
    known, ready = cases(quick=quick), dict[str, Work]()
    for line in sys.stdin:
        case = line.strip()
        if case not in ready:
            ready.clear()  # one case at a time is kept
            ready[case] = known[case]()
        start = perf_counter()
        ready[case]()
        print(perf_counter() - start, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", nargs="?", type=Path, help="the checkout that is compared with")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does everything run?")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--case", action="append", help="only cases whose name holds this")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(quick=asked.quick)
        return
    if asked.other is None:
        parser.error("name the folder of the other checkout")
    _compare(asked)


def _compare(asked: argparse.Namespace) -> None:
    from eyeline.measuring.timing import ratio

    from .harness import alternate
    from .report import Report
    from .settings import RESULTS, Settings, available_cores, quiet_environment

    cores = available_cores()
    os.environ.update(quiet_environment(cores))
    out = None if asked.quick or asked.case else RESULTS
    settings = Settings(asked.quick, asked.rounds, cores, ("float32",), out, busy=True)
    title = "This checkout against an older one: what a change of structure costs"
    report = Report("paired", title, settings, ["case", "now ms", "before ms", "now / before"], {})
    now, before = (Checkout(x, quick=asked.quick) for x in (HERE.parents[1], asked.other.resolve()))
    for case in cases(quick=asked.quick):
        if asked.case and not any(part in case for part in asked.case):
            continue
        works = {"now": lambda c=case: now.seconds(c), "before": lambda c=case: before.seconds(c)}
        times = alternate(works, rounds=asked.rounds, label=case, warmups=2)
        slower = ratio(times["now"], times["before"])
        report.keep(case, times)
        shown = [1e3 * times[name].median for name in ("now", "before")]
        report.rows.append([case, *shown, slower.value])
        report.most(case, slower.value, "×", SLOWER)
    report.notes.append("what others used holds the two processes that are compared.")
    report.finish()


if __name__ == "__main__":
    main()
