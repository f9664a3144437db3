"""Killed at twenty random moments, a folder can be read each time, and training goes on."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eyeline.loading import load
from eyeline.training import train
from eyeline.training.loop import read_metrics
from eyeline.training.states import last_step, read_run
from training.test_resume import Stop, same, until
from training.tiny import write_text

KILLS = 20


def killed(words: list[str], out: Path, pause: float) -> None:
    """Starts training, and kills it a while after it has stored something new."""
    before, limit = last_step(out), time.monotonic() + 60
    with subprocess.Popen(
        [sys.executable, "-m", "eyeline", *words, *(["--resume"] if out.exists() else [])],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        # Most of a start is imports; the moment is counted from when something can happen.
        while last_step(out) == before and process.poll() is None and time.monotonic() < limit:
            time.sleep(0.005)
        time.sleep(pause)
        alive = process.poll() is None
        process.kill()
        assert alive, process.communicate()[1]
    assert last_step(out) > before


@pytest.mark.slow
def test_a_folder_survives_twenty_kills(tmp_path: Path) -> None:
    text, out, chance = write_text(tmp_path), tmp_path / "out", random.Random(7)
    words = ["train", "lm", str(text), "--out", str(out), "--layers", "1", "--width", "16",
             "--heads", "1", "--length", "13", "--batch-tokens", "65", "--steps", "1000000",
             "--every", "2", "--json", "--precision", "float32"]  # fmt: skip
    for _ in range(KILLS):
        killed(words, out, chance.random() * 0.3)
        assert load(out).tokenizer is not None
        lines = [line["step"] for line in read_metrics(out) if "loss" in line]
        assert lines == list(range(1, len(lines) + 1)) and len(lines) >= last_step(out)
    # What goes on is what an unbroken run would have come to.
    run, stop = read_run(out), last_step(out) + 2
    for folder, resume in ((out, True), (tmp_path / "whole", False)):
        with pytest.raises(Stop):
            train(run, folder, every=2, resume=resume, tell=until(stop))
    assert same(out, tmp_path / "whole")
