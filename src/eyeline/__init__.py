"""Attention for PyTorch in which a pattern, who may look at whom, is a value."""

from eyeline.functional import attention as attention
from eyeline.functional import attention_weights as attention_weights
from eyeline.functional import attention_with_lse as attention_with_lse
from eyeline.functional import explain as explain
from eyeline.patterns import Causal as Causal
from eyeline.patterns import Chunks as Chunks
from eyeline.patterns import Explicit as Explicit
from eyeline.patterns import Full as Full
from eyeline.patterns import Pattern as Pattern
from eyeline.patterns import Predicate as Predicate
from eyeline.patterns import SameDocument as SameDocument
from eyeline.patterns import Sinks as Sinks
from eyeline.patterns import Window as Window
from eyeline.patterns import parse as parse
from eyeline.patterns import prefix_lm as prefix_lm
from eyeline.patterns import sliding_window as sliding_window
from eyeline.patterns import streaming as streaming
from eyeline.planning import dense_mask as dense_mask
from eyeline.planning import pairs as pairs
from eyeline.planning import plan as plan
from eyeline.tokens import Tokens as Tokens

__version__ = "0.1.0"
