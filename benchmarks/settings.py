"""What a run is told: how large, how often, with how many threads, where results go."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
MODEL = "SmolLM2-135M-Instruct"


@dataclass(frozen=True)
class Settings:
    """quick: tiny sizes that only show that everything runs. dtypes: for groups with a model.

    out: the folder results go to; None prints them only. busy: record them even if others used
    the machine meanwhile.
    """

    quick: bool
    rounds: int
    threads: int
    dtypes: tuple[str, ...]
    out: Path | None
    busy: bool = False

    def size(self, full: int, quick: int) -> int:
        """The size of this run."""
        return quick if self.quick else full

    @property
    def environment(self) -> dict[str, str]:
        """For fresh processes: as many threads as here, and nothing is looked up elsewhere."""
        return {**os.environ, **quiet_environment(self.threads)}


def quiet_environment(threads: int) -> dict[str, str]:
    """Threads equal for everybody; no progress bars and no look-ups inside what is timed."""
    return {
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "TRANSFORMERS_VERBOSITY": "error",
    }


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
