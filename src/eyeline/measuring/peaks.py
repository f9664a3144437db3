"""Peak memory of one attention call: a fresh process that makes it, against one that does not.

`python -m eyeline.measuring.peaks` is that process: it reads what to do, as JSON, from its first
argument, and prints the peak of its resident memory in bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch

from eyeline.measuring.kinds import kind
from eyeline.measuring.memory import peak_resident
from eyeline.measuring.shapes import Attend, Shape, sdpa_causal, through
from eyeline.patterns import parse, streaming

_SMALL = 67


def peak_alone(shape: Shape, length: int) -> int | None:
    """Bytes with inputs, outputs and gradients there, and nothing computed."""
    return _fresh(shape, length, what="arrays")


def peak_of(
    shape: Shape,
    length: int,
    *,
    pattern: str | None,
    backend: str = "auto",
    mechanism: str = "exact",
) -> int | None:
    """Bytes with the call made, under the pattern with this text; SDPA's causal if None.

    mechanism: the text of a ``Kind``, whose parameters are counted.

    None where the process did not live to tell, or the system does not.
    """
    return _fresh(shape, length, what="run", pattern=pattern, backend=backend, mechanism=mechanism)


def _fresh(shape: Shape, length: int, **task: object) -> int | None:
    task |= {
        "length": length, "heads": shape.heads, "dim": shape.dim, "kv_heads": shape.groups,
        "dtype": str(shape.dtype).removeprefix("torch."), "backward": shape.backward,
        "threads": torch.get_num_threads(),
    }  # fmt: skip
    command = [sys.executable, "-m", "eyeline.measuring.peaks", json.dumps(task)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    answer = done.stdout.strip()
    return int(answer) if done.returncode == 0 and answer.isdecimal() else None


def measure(task: Mapping[str, Any]) -> int | None:
    """The peak of this process after it has done its task."""
    torch.set_num_threads(task["threads"])
    sizes = {name: task[name] for name in ("heads", "dim", "kv_heads", "backward")}
    shape = Shape(**sizes, dtype=getattr(torch, task["dtype"]))
    # Both processes wake threads and load code on small calls, so that this is not counted.
    for each in (sdpa_causal, through(streaming(_SMALL // 2, 1), "tiles")):
        shape.run(each, shape.tensors(_SMALL))
    attend = _asked(shape, task)
    if task.get("mechanism", "exact") != "exact":
        shape.run(attend(_SMALL), shape.tensors(_SMALL))
    tensors = shape.tensors(task["length"])
    if task["what"] == "arrays":
        held: object = shape.results(task["length"])
    else:
        held = shape.run(attend(task["length"]), tensors)
    peak = peak_resident()
    del held
    return peak


def _asked(shape: Shape, task: Mapping[str, Any]) -> Callable[[int], Attend]:
    """What is called at a length."""
    if task["what"] == "arrays" or task["pattern"] is None:
        return lambda length: sdpa_causal
    pattern = parse(task["pattern"])
    if task["mechanism"] == "exact":
        return lambda length: through(pattern, task["backend"])
    return partial(kind(task["mechanism"], pattern).call, shape.groups_of_heads, dtype=shape.dtype)


if __name__ == "__main__":
    answer = measure(json.loads(sys.argv[1]))
    if answer is not None:
        print(answer)
