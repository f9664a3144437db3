"""What three trainings from the command line reach: English by bytes, translations, languages."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .harness import say
from .report import Figure, Report
from .settings import Settings

EXAMPLES = Path(__file__).parent.parent / "examples"
LANGUAGE = "de"
MINUTES = 10.0
PROMPT = "The for statement is used to"


def run(settings: Settings) -> None:
    report = Report(
        "trained",
        "Trained by `eyeline train`, from random weights, on this machine",
        settings,
        ["task", "parameters", "steps", "minutes", "measured on held-out data"],
        {"text": "the language reference of Python", "pairs": f"pycountry, English to {LANGUAGE}"},
    )
    with tempfile.TemporaryDirectory() as folder:
        _lm(report, Path(folder))
        _seq2seq(report, Path(folder))
        _classify(report, Path(folder))
    report.finish()


def _lm(report: Report, folder: Path) -> None:
    text = folder / "reference.txt"
    _example("language_reference.py", str(text))
    trained, minutes = _train(report, "lm", [str(text)], folder / "english")
    bits = trained["measured"]["bits_per_byte"]
    _row(report, "lm", trained, minutes, f"{bits:.3f} bits per byte")
    report.most("lm: bits per byte", bits, "", 2.3)
    report.most("lm: minutes in all", minutes, "min", MINUTES)
    written = _eyeline(report, "generate", str(folder / "english"), PROMPT, "--json")
    report.notes.append(f"lm, greedy: {PROMPT}{written['text']}")


def _seq2seq(report: Report, folder: Path) -> None:
    pairs, out = folder / "pairs", folder / "names"
    _example("names.py", "--language", LANGUAGE, "--out", str(pairs))
    files = [str(pairs / "train.tsv"), "--held-out", str(pairs / "held_out.tsv")]
    trained, minutes = _train(report, "seq2seq", files, out)
    score = _eyeline(
        report, "translate", str(out), "--score", str(pairs / "held_out.tsv"), "--json"
    )["report"]
    exact, copied = 100 * score["exact"], 100 * score["copy_exact"]
    shown = f"{exact:.1f} % exact, {100 * score['error_rate']:.1f} % of characters wrong"
    _row(report, "seq2seq", trained, minutes, shown)
    name = "seq2seq: exact, against copying the source"
    report.figures.append(Figure(name, exact, "%", copied + 300 * _standard_error(score)))
    report.notes.append(
        f"copying the source: {copied:.1f} % exact, {100 * score['copy_error_rate']:.1f} % of "
        f"characters wrong. Of the {score['changed']:,} of {score['pairs']:,} names that German "
        f"writes in another way, where copying is wrong, {100 * score['changed_exact']:.1f} % "
        "exact. The bar: copying and three standard errors of the paired difference."
    )


def _standard_error(score: dict[str, Any]) -> float:
    """Of the share that is exact less the share that copying gets right, over the same pairs."""
    pairs, changed = score["pairs"], score["changed"]
    gained = score["changed_exact"] * changed
    lost = pairs - changed - (score["exact"] * pairs - gained)
    mean = (gained - lost) / pairs
    return float((((gained + lost) / pairs - mean**2) / pairs) ** 0.5)


def _classify(report: Report, folder: Path) -> None:
    rows, out = folder / "languages", folder / "classes"
    _example("languages.py", "--out", str(rows))
    files = [str(rows / "train.tsv"), "--held-out", str(rows / "held_out.tsv")]
    trained, minutes = _train(report, "classify", files, out)
    accuracy = 100 * trained["measured"]["accuracy"]
    baseline = 100 * bag_of_bytes(rows / "train.tsv", rows / "held_out.tsv")
    _row(report, "classify", trained, minutes, f"{accuracy:.1f} % right")
    report.figures.append(
        Figure("classify: right, against a bag of bytes", accuracy, "%", baseline)
    )
    report.notes.append(
        f"languages told apart by a name: logistic regression on counts of bytes {baseline:.1f} %."
    )


def bag_of_bytes(train: Path, test: Path) -> float:
    """The accuracy of logistic regression on how often each byte occurs."""
    torch.manual_seed(0)
    (x, y), (x_test, y_test) = (_counted(path) for path in (train, test))
    labels = sorted(set(y))
    target, expected = (torch.tensor([labels.index(one) for one in z]) for z in (y, y_test))
    weight = torch.zeros(257, len(labels), requires_grad=True)
    optimizer = torch.optim.LBFGS([weight], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.cross_entropy(x @ weight, target) + 1e-4 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return float(((x_test @ weight).argmax(1) == expected).double().mean())


def _counted(path: Path) -> tuple[Tensor, list[str]]:
    rows = [line.split("\t") for line in path.read_text("utf-8").splitlines()]
    texts = [torch.tensor(list(text.encode())) for text, _ in rows]
    counts = torch.stack([torch.bincount(text, minlength=256).float() for text in texts])
    return torch.cat([counts, torch.ones(len(rows), 1)], 1), [label for _, label in rows]


def _train(report: Report, task: str, files: list[str], out: Path) -> tuple[dict[str, Any], float]:
    quick = ["--size", "tiny", "--steps", "3"] if report.settings.quick else []
    start = perf_counter()
    trained = _eyeline(report, "train", task, *files, "--out", str(out), *quick, "--json")
    minutes = (perf_counter() - start) / 60
    say(f"trained: {task}: {minutes:.1f} minutes: {trained['measured']}")
    return trained, minutes


def _row(report: Report, task: str, trained: dict[str, Any], minutes: float, shown: str) -> None:
    report.rows.append([task, trained["parameters"], trained["steps"], minutes, shown])


def _example(name: str, *arguments: str) -> None:
    subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], check=True)


def _eyeline(report: Report, *arguments: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "eyeline", *arguments],
        capture_output=True, text=True, env=report.settings.environment,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"eyeline {' '.join(arguments)}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found
