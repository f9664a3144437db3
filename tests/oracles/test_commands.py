"""Every command of the README and of the pages runs, in its order, in a folder of its own.

Long ones are given less to do by further options: what they print is measured elsewhere.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Not run here: they are what installs and runs these very tests.
SET_UP = ("make demo", "make test")
LESS = {
    "train": ["--size", "tiny", "--steps", "3"],
    "compare": ["--length", "160", "--rounds", "1"],
    "bench": ["--length", "256", "--rounds", "1", "--no-memory"],
    "generate": ["--max-new-tokens", "4"],
}


def commands(page: Path) -> list[list[str]]:
    """The words of each command, without its comment."""
    text = page.read_text("utf-8").replace("\\\n", " ")
    blocks = re.findall(r"```(?:console|bash)\n(.*?)```", text, re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    asked = [shlex.split(line, comments=True) for line in lines]
    return [words for words in asked if words and " ".join(words) not in SET_UP]


PAGES = [page for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")) if commands(page)]


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_run(page: Path, tmp_path: Path, model_file: Path) -> None:
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for words in commands(page):
        done = subprocess.run(
            _here(words), cwd=tmp_path, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, f"{shlex.join(words)}: {done.stderr[-2000:]}"


def _here(words: list[str]) -> list[str]:
    program, *rest = words
    if program == "python":
        return [sys.executable, *rest]
    less = next((LESS[word] for word in words if word in LESS), [])
    modules = {"eyeline": "eyeline", "torchrun": "torch.distributed.run"}
    return [sys.executable, "-m", modules[program], *rest, *less]
