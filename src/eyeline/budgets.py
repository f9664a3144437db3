"""How much is held, asked or computed at once: every budget, and why it is what it is.

They are read when they are needed, so that a change of ``budgets`` holds from the next call on. The
sizes suit a processor with some MiB of cache for each core; none changes an answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass
class Budgets:
    """One number each, with its unit and its reason."""

    # Between calls.

    # Bytes of all that is remembered between calls: a few plans and masks of the longest sequences.
    remembered: int = 512 << 20

    # Planning: pairs and tiles that are asked at once.

    # Pairs of a mask asked at once; torch shares more among threads, which wait for each other.
    evaluated: int = 1 << 15
    # Pairs of shared masks evaluated ahead; beyond, masks are made where they are used.
    palette: int = 1 << 24
    # Pairs of unknown tiles that are counted at once: 4 MiB of bools.
    counted: int = 1 << 22
    # Pairs in the unknown tiles that are split at once, before any is evaluated.
    split: int = 1 << 26
    # Pairs looked at one by one for a block mask; more would take longer than its kernel saves.
    block_pairs: int = 1 << 24
    # Of these, so many at once: 4 MiB of bools.
    block_batch: int = 1 << 22
    # Blocks of a block mask that are listed: the lists take about 64 bytes a block, 4 GiB.
    blocks: int = 1 << 26
    # Entries of a block mask's index tensors laid out in full, as torch does it: 4 MiB each.
    blocks_laid_out: int = 1 << 20
    # Entries of index tensors at all: 4 GiB each.
    block_entries: int = 1 << 30
    # Rows of a reachability matrix made at once: 1 MiB at the longest search.
    path_rows: int = 256
    # Rows of blocks of a random draw that are laid out; of longer ones no range is known.
    drawn_blocks: int = 1 << 20

    # Pictures: drawn within a second.

    # Strips that the tiles of a picture are sampled in, in all.
    strips: int = 1 << 17
    # Pairs of a picture that are looked at one by one.
    picture_pairs: int = 1 << 22
    # Tiles of a picture that are split further.
    picture_tiles: int = 1 << 17
    # Pairs up to which a picture is counted, not sampled.
    picture_whole: int = 1 << 21

    # Kernels: what a piece holds stays in the processor's cache.

    # Bytes of one piece: its scores or results, its part of queries and keys.
    piece: int = 4 << 20
    # Bytes of heads held in another order at once.
    ordered: int = 16 << 20
    # Bytes of one piece of a route, which is gathered and not read in place.
    routed: int = 16 << 20
    # Places up to which heads are taken together: calls cost more than such short sequences do.
    routed_together: int = 1 << 13
    # Bytes of float32 sums of half types, of each tensor.
    half_sums: int = 8 << 20
    # Weights up to which the whole matrix is faster than tiles.
    short_weights: int = 1 << 20
    # Distances up to which a curve is laid out whole in a graph: 512 KiB a head.
    tabulated: int = 1 << 16

    # Mechanisms and layers.

    # Numbers held at once where all would grow with L · C: 8 MiB of float32.
    numbers: int = 1 << 21
    # Pairs of scores held at once, to choose keys by them: 4 MiB of float32.
    scored: int = 1 << 20
    # Bytes of one piece of products with a hash's rotations.
    hashed: int = 4 << 20
    # Rows of a triangle of mixtures at once: the fewer, the closer to half of the work.
    mixed_rows: int = 64
    # Pairs asked whether a token attends ahead: 4 MiB of bools.
    asked_ahead: int = 1 << 22
    # Bytes of the hidden units of some queries in additive attention.
    hidden: int = 32 << 20
    # Elements of the features of one piece, folded one after the other: 4 MiB.
    folded: int = 1 << 20
    # Elements of one slice of rows that stand alone in their chunk: 32 MiB.
    single_rows: int = 1 << 23
    # Elements of the pairs and features of one piece of a scan: 4 MiB.
    scanned: int = 1 << 20
    # Elements of the pairs and states of one piece of a recurrence: 8 MiB of float32.
    recurred: int = 1 << 21
    # Rows between the two products of a feed-forward layer: 16 MiB at a width of 4,096.
    fed_rows: int = 1024
    # Pairs of a head up to which a converted module returns its weights: 16 MiB.
    returned_weights: int = 1 << 22

    # Files.

    # Quantised numbers expanded at once; torch shares more among threads, which wait.
    expanded: int = 32_768


budgets = Budgets()


def at_once(size: int, budget: int) -> int:
    """How many things of a size are held together within a budget, at least one."""
    return max(budget // max(size, 1), 1)
