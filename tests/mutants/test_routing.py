"""Planted faults in routing, and in attention along a route: each must be caught by the suite."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

from eyeline import Causal, Full, memory
from eyeline.caches import Marked
from eyeline.kernels import route, route_pieces
from eyeline.kernels.route import Bags, Route, of_blocks
from eyeline.kernels.route_pieces import Heads, Piece
from eyeline.mechanisms.routed import best, buckets, clusters, kmeans, lsh, membership, sorting
from eyeline.mechanisms.routed.buckets import Hashing, factors_about
from kernels import test_routed
from mechanisms import test_kmeans as mechanism_kmeans
from mechanisms import test_lsh as mechanism_lsh
from mutants.planting import Patch, Plant, Suite, assert_caught
from routing import test_balancing, test_best, test_clusters, test_greatest, test_membership
from routing import test_lsh as routing_lsh


def who_meets_whom(by: str) -> Suite:
    return lambda: routing_lsh.test_who_meets_whom(by, True, 37, 8)


def along_a_route(key_heads: int) -> Suite:
    """Six heads together and alone, in blocks that overlap."""

    def suite() -> None:
        with pytest.MonkeyPatch.context() as patch:
            given = (False, key_heads, (3, 5) if key_heads == 3 else (1, 3), 4, 8, 4, Full())
            test_routed.test_heads_alone_and_together(*given, patch)

    return suite


def the_last_columns_are_in_no_group(patch: Patch) -> Suite:
    right = best.among_greatest
    patch.setattr(best, "among_greatest", lambda x, k: right(x[..., : x.shape[-1] // 6 * 6], k))
    return lambda: test_greatest.test_long_rows("rising", 997, torch.float32)


def of_equals_the_last_are_taken(patch: Patch) -> Suite:
    def last(scores: Tensor, least: Tensor, k: int) -> Tensor:
        order = scores.flip(1).topk(k, 1).indices
        return scores.shape[1] - 1 - order

    patch.setattr(best, "_first_of_equals", last)
    return lambda: test_greatest.test_long_rows("all equal", 997, torch.float32)


def weights_must_exceed_the_threshold(patch: Patch) -> Suite:
    right = best._heavy
    patch.setattr(best, "_heavy", lambda scores, t: right(scores, t * 1.001))
    return test_best.test_equal_weights_reach_their_share_and_else_the_first_is_taken


def sequences_lie_on_each_other(patch: Patch) -> Suite:
    patch.setattr(route_pieces, "one_after_the_other", lambda slots, length: slots.clamp(min=0))
    return along_a_route(6)


def places_of_other_heads_are_taken(patch: Patch) -> Suite:
    patch.setattr(route, "_once_a_lane", lambda *given: None)
    patch.setattr(route, "_sorted", lambda slots, there: slots.flatten().argsort(stable=True))
    return along_a_route(6)


def heads_of_one_key_write_over_each_other(patch: Patch) -> Suite:
    patch.setattr(Heads, "add_to_keys", lambda self, total, new: self.of_keys(total).copy_(new))
    return along_a_route(3)


def blocks_that_overlap_write_over_each_other(patch: Patch) -> Suite:
    def add(self: Piece, places: Tensor, new: Tensor) -> None:
        route = self.of.work.route
        of_blocks(places, route.columns, route.step, self.first, self.count).copy_(new)

    patch.setattr(Piece, "add", add)
    return along_a_route(6)


def places_share_equally(patch: Patch) -> Suite:
    right = Bags.shares
    patch.setattr(Bags, "shares", lambda self, lse: (right(self, lse)[0], right(self, lse * 0)[1]))
    return along_a_route(6)


def keys_are_as_long_as_they_are(patch: Patch) -> Suite:
    patch.setattr(lsh, "unit", lambda x: x)
    return lambda: mechanism_lsh.test_equals_the_matrix("chunks", Causal(), "plain", None)


def tokens_meet_themselves(patch: Patch) -> Suite:
    right = buckets._chunked
    patch.setattr(buckets, "_chunked", lambda *given: replace(right(*given), band=None))
    return who_meets_whom("chunks")


def the_chunk_before_is_left_out(patch: Patch) -> Suite:
    patch.setattr(buckets, "_behind", lambda x, count: pad(x, (0, count), value=-1))
    return who_meets_whom("chunks")


def buckets_join_at_their_edges(patch: Patch) -> Suite:
    right = buckets._banded

    def banded(*given: Any, **options: Any) -> Route:
        return replace(right(*given, **options), q_labels=None, k_labels=None)

    patch.setattr(buckets, "_banded", banded)
    return who_meets_whom("buckets")


def the_number_of_buckets_grows_with_the_text(patch: Patch) -> Suite:
    memory.clear()
    patch.setattr(Hashing, "factors", lambda self, n: factors_about(n / self.bucket_size))
    return lambda: mechanism_lsh.test_decoding_equals_the_whole(5, Causal())


def opposite_directions_are_one_bucket(patch: Patch) -> Suite:
    right = buckets._digit
    patch.setattr(buckets, "_digit", lambda piece, turn, half: right(piece, turn, half) % half)
    return lambda: routing_lsh.test_buckets_are_argmax((4, 6))


def kept_buckets_stay_when_rows_are_exchanged(patch: Patch) -> Suite:
    patch.setattr(Marked, "_exchange", lambda self, index: self._keys.reorder(index))
    return mechanism_lsh.test_kept_buckets_follow_the_cache


def long_vectors_are_nearer(patch: Patch) -> Suite:
    patch.setattr(kmeans, "unit", lambda x: x)
    return mechanism_kmeans.test_the_loss_and_its_gradient


def the_last_centroid_of_a_few_wins(patch: Patch) -> Suite:
    def meet(self: Any, similar: Tensor, first: int) -> None:
        self.centroid = similar.max(1).indices + first

    patch.setattr(membership._Leading, "meet", meet)
    patch.setattr("eyeline.budgets.budgets.numbers", 1)
    return mechanism_kmeans.test_the_loss_and_its_gradient


def centroids_shrink(patch: Patch) -> Suite:
    patch.setattr(clusters, "functional", SimpleNamespace(normalize=lambda x, dim: x))
    return test_clusters.test_running_centroids


def members_are_the_least_similar(patch: Patch) -> Suite:
    right = best.among_greatest
    patch.setattr(membership, "among_greatest", lambda x, k: right(-x, k))
    return lambda: test_membership.test_each_centroid_takes_the_most_similar("default", 7)


def columns_are_divided_by_later_rows(patch: Patch) -> Suite:
    patch.setattr(sorting, "_sums_so_far", sorting._sums)
    return lambda: test_balancing.test_no_row_depends_on_a_later_one(1.0)


MUTANTS = [
    the_last_columns_are_in_no_group, of_equals_the_last_are_taken,
    weights_must_exceed_the_threshold, sequences_lie_on_each_other,
    places_of_other_heads_are_taken, heads_of_one_key_write_over_each_other,
    blocks_that_overlap_write_over_each_other, places_share_equally,
    keys_are_as_long_as_they_are, tokens_meet_themselves, the_chunk_before_is_left_out,
    buckets_join_at_their_edges, the_number_of_buckets_grows_with_the_text,
    opposite_directions_are_one_bucket, kept_buckets_stay_when_rows_are_exchanged,
    long_vectors_are_nearer, the_last_centroid_of_a_few_wins,
    centroids_shrink, members_are_the_least_similar, columns_are_divided_by_later_rows,
]  # fmt: skip


@pytest.mark.parametrize("plant", MUTANTS, ids=lambda plant: plant.__name__)
def test_the_suite_catches_it(plant: Plant) -> None:
    assert_caught(plant, memory.clear)
