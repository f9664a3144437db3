"""The functions users call."""

from eyeline.exact.attention import attention as attention
from eyeline.exact.attention import attention_weights as attention_weights
from eyeline.exact.attention import attention_with_lse as attention_with_lse
from eyeline.exact.attention import explain as explain
from eyeline.exact.weights import column_sums as column_sums
from eyeline.exact.weights import sparse_attention_weights as sparse_attention_weights
from eyeline.functional.additive import additive_attention as additive_attention
from eyeline.functional.additive import additive_attention_weights as additive_attention_weights
from eyeline.functional.clustered import clustered_attention as clustered_attention
from eyeline.functional.kmeans import kmeans_attention as kmeans_attention
from eyeline.functional.linear import linear_attention as linear_attention
from eyeline.functional.linear import linear_attention_weights as linear_attention_weights
from eyeline.functional.lsh import lsh_attention as lsh_attention
from eyeline.functional.routed import Coverage as Coverage
from eyeline.functional.routed import coverage as coverage
from eyeline.functional.routed import routed_attention as routed_attention
from eyeline.functional.routed import routed_attention_with_lse as routed_attention_with_lse
from eyeline.functional.sinkhorn import sinkhorn_attention as sinkhorn_attention
from eyeline.functional.threshold import threshold_attention as threshold_attention
from eyeline.functional.topk import topk_attention as topk_attention
