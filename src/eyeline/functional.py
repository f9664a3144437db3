"""The functions users call, of all rooms in one place: names only."""

from eyeline.exact.attention import attention as attention
from eyeline.exact.attention import attention_weights as attention_weights
from eyeline.exact.attention import attention_with_lse as attention_with_lse
from eyeline.exact.attention import explain as explain
from eyeline.exact.weights import column_sums as column_sums
from eyeline.exact.weights import sparse_attention_weights as sparse_attention_weights
from eyeline.kernels.merge import merge as merge
from eyeline.kernels.route import Route as Route
from eyeline.mechanisms.additive import additive_attention as additive_attention
from eyeline.mechanisms.additive import additive_attention_weights as additive_attention_weights
from eyeline.mechanisms.linear.attention import linear_attention as linear_attention
from eyeline.mechanisms.linear.attention import linear_attention_weights as linear_attention_weights
from eyeline.mechanisms.linear.recurrence import (
    decayed_linear_attention as decayed_linear_attention,
)
from eyeline.mechanisms.linear.recurrence import (
    decayed_linear_attention_with_state as decayed_linear_attention_with_state,
)
from eyeline.mechanisms.routed.attend import Coverage as Coverage
from eyeline.mechanisms.routed.attend import coverage as coverage
from eyeline.mechanisms.routed.attend import route_of_blocks as route_of_blocks
from eyeline.mechanisms.routed.attend import routed_attention as routed_attention
from eyeline.mechanisms.routed.attend import routed_attention_weights as routed_attention_weights
from eyeline.mechanisms.routed.attend import routed_attention_with_lse as routed_attention_with_lse
from eyeline.mechanisms.routed.clustered import clustered_attention as clustered_attention
from eyeline.mechanisms.routed.kmeans import kmeans_attention as kmeans_attention
from eyeline.mechanisms.routed.lsh import lsh_attention as lsh_attention
from eyeline.mechanisms.routed.picking import threshold_attention as threshold_attention
from eyeline.mechanisms.routed.picking import topk_attention as topk_attention
from eyeline.mechanisms.routed.sinkhorn import sinkhorn_attention as sinkhorn_attention
from eyeline.tokens.groups import PositionBlocks as PositionBlocks
from eyeline.tokens.groups import position_blocks as position_blocks
