"""The functions users call."""

from eyeline.functional.attention import attention as attention
from eyeline.functional.attention import attention_weights as attention_weights
from eyeline.functional.attention import attention_with_lse as attention_with_lse
from eyeline.functional.attention import explain as explain
