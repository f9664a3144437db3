"""The layers that attention came from, each as its paper has it."""

from eyeline.layers.ancestors.decomposable import Decomposable as Decomposable
from eyeline.layers.ancestors.intra import LSTMN as LSTMN
from eyeline.layers.ancestors.structured import Structured as Structured
from eyeline.layers.ancestors.structured import StructuredAttention as StructuredAttention
from eyeline.layers.ancestors.temporal import IntraDecoder as IntraDecoder
from eyeline.layers.ancestors.temporal import IntraTemporal as IntraTemporal
from eyeline.layers.ancestors.temporal import Looked as Looked
from eyeline.layers.ancestors.temporal import TemporalState as TemporalState
