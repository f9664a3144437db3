"""What routing by content learns and a window cannot: to recall what stands far back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from eyeline import Causal, Full, Pattern, pairs, sliding_window
from eyeline.mechanisms import Exact, Mechanism, auxiliary_loss
from eyeline.mechanisms.routed.clustered import ClusteredQueries
from eyeline.mechanisms.routed.kmeans import KMeans
from eyeline.mechanisms.routed.lsh import LSH
from eyeline.mechanisms.routed.picking import Threshold, TopK
from eyeline.mechanisms.routed.sinkhorn import Sinkhorn
from eyeline.planning.cost import Asked

from .associations import HEADS, WIDTH, Course, Stage, accuracy, trained
from .report import Figure, Report
from .settings import Settings

LENGTH, DIM, WINDOW, BLOCK = 1024, WIDTH // HEADS, 144, 64
FULL = Full()
SHORT_FIRST = (
    Stage(128, 300, 1024), Stage(256, 150, 2048), Stage(512, 100, 4096), Stage(LENGTH, 100, 4096)
)  # fmt: skip
# Blocks are sorted well only after keys are told apart: longer at the lengths with few blocks.
BLOCKS_FIRST = (
    Stage(128, 600, 1024), Stage(256, 500, 2048), Stage(512, 800, 4096), Stage(LENGTH, 1500, 4096)
)  # fmt: skip
LONGER_LAST = (*SHORT_FIRST[:-1], Stage(LENGTH, 200, 4096))
# A mixture of all tokens for each token costs n² numbers, and is learned at once.
BY_TOKENS = (
    Stage(128, 300, 1024), Stage(256, 150, 2048), Stage(512, 60, 2048), Stage(LENGTH, 10, 2048)
)  # fmt: skip
QUICK = (Stage(128, 2, 512), Stage(256, 2, 512))
SCATTERED, IN_BLOCKS = Course(SHORT_FIRST), Course(BLOCKS_FIRST, BLOCK, rate=4e-3)


@dataclass(frozen=True)
class Learner:
    """A mechanism made anew, and the share of values, in percent, that it is to get right."""

    make: Callable[[], Mechanism]
    bar: float | None = 95.0
    course: Course = SCATTERED


def _sinkhorn(block: int, pattern: Pattern = FULL, iterations: int = 8) -> Mechanism:
    return Sinkhorn(block, num_kv_heads=HEADS, head_dim=DIM, pattern=pattern, iterations=iterations)


LEARNERS = {
    "dense causal": Learner(lambda: Exact(Causal()), 99.0),
    f"sliding_window({WINDOW})": Learner(lambda: Exact(sliding_window(WINDOW)), None),
    "TopK(32), causal": Learner(lambda: TopK(32, pattern=Causal())),
    "Threshold(0.01), causal": Learner(lambda: Threshold(0.01, pattern=Causal())),
    "LSH(32, 2), causal": Learner(lambda: LSH(32, 2, pattern=Causal())),
    "LSH(24, 6) by 32 buckets, causal": Learner(
        lambda: LSH(24, 6, by="buckets", buckets=32, pattern=Causal()), course=Course(LONGER_LAST)
    ),
    "KMeans(16, 128), causal": Learner(
        lambda: KMeans(16, 128, num_heads=HEADS, head_dim=DIM, pattern=Causal(), decay=0.99)
    ),
    "Sinkhorn(64), causal": Learner(lambda: _sinkhorn(BLOCK, Causal()), None),
    "Sinkhorn(1)": Learner(lambda: _sinkhorn(1), course=Course(BY_TOKENS)),
    "ClusteredQueries(32, 32)": Learner(lambda: ClusteredQueries(32, 32)),
    "dense, asked in blocks": Learner(lambda: Exact(FULL), 99.0, IN_BLOCKS),
    f"sliding_window({WINDOW}), asked in blocks": Learner(
        lambda: Exact(sliding_window(WINDOW)), None, IN_BLOCKS
    ),
    "Sinkhorn(64), once balanced, asked in blocks": Learner(
        lambda: _sinkhorn(BLOCK, iterations=1), 95.0, IN_BLOCKS
    ),
}


def run(settings: Settings) -> None:
    length = settings.size(LENGTH, QUICK[-1].length)
    report = Report(
        "recall",
        "Associative recall over 1,024 tokens: each mechanism trained from random weights",
        settings,
        ["mechanism", "pairs a query", "of causal", "right %", "steps", "s"],
        {
            "length": length,
            "heads": HEADS,
            "width": DIM,
            "rate": SCATTERED.rate,
            "rate in blocks": IN_BLOCKS.rate,
        },
    )
    for name, learner in LEARNERS.items():
        course = learner.course if not settings.quick else Course(QUICK, learner.course.block)
        model, seconds = trained(learner.make, course, auxiliary_loss, name)
        right = 100 * accuracy(model, length, course.block, settings.size(16, 1))
        looking, steps = _looking(learner.make(), length), sum(x.steps for x in course.stages)
        share = looking / pairs(Causal(), length)
        report.rows.append([name, looking / length, share, right, steps, seconds])
        report.figures.append(Figure(f"{name}: right", right, "%", learner.bar))
    report.notes += NOTES
    report.finish()


def _looking(mechanism: Mechanism, length: int) -> int:
    """The pairs of one head that look, as the mechanism counts them before it sees content."""
    work = mechanism.work(Asked(length, heads=HEADS, kv_heads=HEADS, head_dim=DIM))
    assert work is not None
    return int(work.pairs) // HEADS


NOTES = [
    "a text: up to 32 pairs of a key and a value, of 64 each, at random places of the first three "
    "quarters, other tokens between; in the last quarter each key once more, and its value is "
    "to be told. Asked in blocks: 64 pairs, 16 in a block of 64, and those of one block are asked "
    "for in one block.",
    "the model: a token and the one before it, embedded and added, one attention layer without "
    "positions, and a linear layer; trained at 128, 256, 512 and 1,024 tokens in turn.",
    "Sinkhorn, causal: blocks that each take only from before and are all taken once can take "
    "nothing but the block before, whatever the scores: balanced, it looks little farther than two "
    "blocks. Asked in blocks, without a pattern, one block holds all that another asks for. It is "
    "known by the mean of its 64 keys, 16 numbers in a head: of the 8 blocks of 512 tokens the "
    "right one is nearly always found, of 16 one in four is taken for another.",
    "Sinkhorn(1) sorts tokens: besides itself each sees one mixture of all, by n² numbers.",
    "ClusteredQueries has no causal form; nothing after a key that is asked for gives its value.",
    "pairs: those that the mechanism counts for any content; of Threshold the most there can be.",
]
