"""The layers that attention came from, each as its paper has it."""

from eyeline.layers.ancestors.aligned import Decomposable as Decomposable
from eyeline.layers.ancestors.aligned import Structured as Structured
from eyeline.layers.ancestors.aligned import StructuredAttention as StructuredAttention
from eyeline.layers.ancestors.temporal import LSTMN as LSTMN
from eyeline.layers.ancestors.temporal import IntraDecoder as IntraDecoder
from eyeline.layers.ancestors.temporal import IntraTemporal as IntraTemporal
from eyeline.layers.ancestors.temporal import Looked as Looked
from eyeline.layers.ancestors.temporal import TemporalState as TemporalState
