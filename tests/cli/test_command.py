"""The command as a whole: help, errors in one line, exit status, what is imported when."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from cli.conftest import Command
from eyeline.cli import run

VERBS = ("generate", "embed", "compare", "bench", "plan", "models")


def test_help_lists_the_verbs_with_a_line_each_and_examples(eyeline: Command) -> None:
    shown = eyeline("--help")
    assert shown.status == 0 and not shown.err
    for verb in VERBS:
        (line,) = (line for line in shown.out.splitlines() if line.startswith(f"  {verb} "))
        assert line.endswith(".") and not line.endswith("...")
        assert f"\n    eyeline {verb}" in shown.out
    assert eyeline().out == shown.out


def test_the_version(eyeline: Command) -> None:
    assert eyeline("--version").out.startswith("eyeline 0.")


@pytest.mark.parametrize("words", [["--help"], *([verb, "--help"] for verb in VERBS)])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys\nfrom eyeline.cli import run\n"
        f"status = run({words!r})\nprint(*sys.modules, file=sys.stderr)\nsys.exit(status)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0 and "Usage: eyeline" in done.stdout
    assert not {"torch", "numpy", "matplotlib", "tokenizers"} & set(done.stderr.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fly"], "No such command 'fly'.*--help"),
        (["--fly"], "No such option: --fly"),
        (["generate"], r"Missing argument '\[MODEL\] PROMPT' \(eyeline generate --help says more"),
        (["generate", "a", "b", "c"], "3 words; put the prompt in quotes"),
        (["generate", ""], "prompt is empty"),
        (["generate", "no/such/file", "Hi"], "no/such/file: no such file"),
        (["generate", "Smollm", "Hi"], "nearest known name is SmolLM2-135M-Instruct"),
        (["generate", "Hi", "--pattern", "casual"], "unknown pattern 'casual'.*'causal'.*, at ch"),
        (["generate", "Hi", "--pattern", "causal & ("], "at character 11: causal & \\(▶"),
        (["generate", "Hi", "--pattern", "~" * 20_000], "20,000 characters; the limit is 10,000"),
        (["generate", "Hi", "--pattern", "(" * 1000], "nested deeper than"),
        (["generate", "Hi", "--top-k", "5"], "--top-k changes nothing at temperature 0"),
        (["generate", "Hi", "--seed", "5"], "--seed changes nothing at temperature 0"),
        (["generate", "Hi", "--temperature", "-1"], "temperature: -1.0 is not a number, 0 or more"),
        (["generate", "Hi", "--temperature", "1", "--top-p", "2"], "top_p: 2.0 is not"),
        (["generate", "Hi", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["generate", "Hi", "--dtype", "int8"], "'int8' is not one of 'auto', 'float32'"),
        (["generate", "Hi", "--encodings", "none"], "'none' is not one of 'absolute', 'recount"),
        (["compare", "--text", "no-such-file"], "--text no-such-file: no such file"),
        (["compare", "--text", "."], "--text .: is a directory"),
        (["compare", "--pattern", "full"], "under full tokens look at later ones.*causal & .full"),
        (["compare", "--pattern", "0-: causal"], "'0-: causal' is not of the form"),
        (["compare", "--pattern", "3-1: causal"], "3-1 has no layers"),
        (["compare", "--plot", "figure.gif"], "figure.gif: a name that ends in .png, .svg"),
        (["compare", "--plot", "no/such/place.png"], "there is no folder .*no/such"),
        (["compare", "--length", "0"], "--length"),
        (["bench", "--length", "0"], "--length"),
        (["bench", "--backend", "fast"], "backend='fast': it is auto, decode, sdpa"),
        (["bench", "--heads", "8", "--kv-heads", "3"], "8 query heads cannot share 3 key heads"),
        (["bench", "--pattern", "0: causal"], "bench has no layers"),
        (["models", "--fetch", "Smollm"], "nearest known name is SmolLM2-135M-Instruct"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: Sequence[str], message: str, eyeline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.checkpoints.resolve.local_snapshot", lambda _: None)
    found = eyeline(*words)
    assert found.status == 2
    assert found.out == ""
    assert found.err.startswith("eyeline: ") and found.err.count("\n") == 1
    assert re.search(message, found.err), found.err


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, eyeline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.cli.find_spec", lambda name: None if name == missing else 1)
    found = eyeline("--help")
    assert (found.status, found.out) == (2, "")
    needs = f"eyeline: the command needs {missing}"
    assert found.err == f"{needs}; install it with: pip install 'eyeline[app]'\n"


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_it_says_so_where_the_package_really_is_missing(missing: str) -> None:
    program = (
        "import sys, importlib.util as util\n"
        f"sys.modules[{missing!r}] = None\n"
        "found = util.find_spec\n"
        f"util.find_spec = lambda name, *a: None if name == {missing!r} else found(name, *a)\n"
        "from eyeline.cli import main\nsys.argv[1:] = ['--help']\nmain()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith(f"eyeline: the command needs {missing}")


def test_without_matplotlib_a_plot_is_refused_before_the_work(
    eyeline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    found = eyeline("bench", "--plot", "figure.png")
    assert found.status == 2 and "--plot needs matplotlib; install it with: pip" in found.err


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (KeyboardInterrupt(), 130, ""),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "not enough memory"),
    ],
)
def test_what_ends_a_command_from_outside(
    error: BaseException, status: int, told: str, eyeline: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("eyeline.cli.models.print_json", fail)
    found = eyeline("models", "--json")
    assert found.status == status
    assert told in found.err and len(found.err.strip().splitlines()) <= 1


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("eyeline.cli.models.print_json", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        run(["models", "--json"])


def test_a_closed_pipe_is_no_traceback(model: Path) -> None:
    command = f"{sys.executable} -m eyeline generate {model} ab --max-new-tokens 300 | head -c 5"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert len(done.stdout) == 5 and done.stderr == ""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_pipe_closed_before_the_first_word_is_no_traceback(unbuffered: str) -> None:
    command = f"{sys.executable} -m eyeline models --json | true; exit ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env)
    assert (done.returncode, done.stderr) == (1, "")
