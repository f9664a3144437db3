"""The functions users call."""

from eyeline.functional.additive import additive_attention as additive_attention
from eyeline.functional.additive import additive_attention_weights as additive_attention_weights
from eyeline.functional.attention import attention as attention
from eyeline.functional.attention import attention_weights as attention_weights
from eyeline.functional.attention import attention_with_lse as attention_with_lse
from eyeline.functional.attention import explain as explain
from eyeline.functional.linear import linear_attention as linear_attention
from eyeline.functional.linear import linear_attention_weights as linear_attention_weights
from eyeline.functional.weights import column_sums as column_sums
from eyeline.functional.weights import sparse_attention_weights as sparse_attention_weights
