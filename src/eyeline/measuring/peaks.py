"""Peak memory of one attention call: a fresh process that makes it, against one that does not.

`python -m eyeline.measuring.peaks` is that process: it reads what to do, as JSON, from its first
argument, and prints the peak of its resident memory in bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import torch

from eyeline.measuring.memory import peak_resident
from eyeline.measuring.shapes import Shape, sdpa_causal, through
from eyeline.patterns import parse, streaming

_SMALL = 67


def peak_alone(shape: Shape, length: int) -> int | None:
    """Bytes with inputs, outputs and gradients there, and nothing computed."""
    return _fresh(shape, length, what="arrays")


def peak_of(shape: Shape, length: int, *, pattern: str | None, backend: str = "auto") -> int | None:
    """Bytes with the call made, under the pattern with this text; SDPA's causal if None.

    None where the process did not live to tell, or the system does not.
    """
    return _fresh(shape, length, what="run", pattern=pattern, backend=backend)


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
    for attend in (sdpa_causal, through(streaming(_SMALL // 2, 1), "tiles")):
        shape.run(attend, shape.tensors(_SMALL))
    tensors = shape.tensors(task["length"])
    if task["what"] == "arrays":
        held: object = shape.results(task["length"])
    elif task["pattern"] is None:
        held = shape.run(sdpa_causal, tensors)
    else:
        held = shape.run(through(parse(task["pattern"]), task["backend"]), tensors)
    peak = peak_resident()
    del held
    return peak


if __name__ == "__main__":
    answer = measure(json.loads(sys.argv[1]))
    if answer is not None:
        print(answer)
