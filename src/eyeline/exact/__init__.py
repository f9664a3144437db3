"""Exact attention: the call and its checks, who serves it, its weights, and its compiled form."""

from eyeline.exact.attention import attention as attention
from eyeline.exact.attention import attention_weights as attention_weights
from eyeline.exact.attention import attention_with_lse as attention_with_lse
from eyeline.exact.attention import explain as explain
from eyeline.exact.weights import column_sums as column_sums
from eyeline.exact.weights import sparse_attention_weights as sparse_attention_weights
