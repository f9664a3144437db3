"""Positions: what is added to embeddings, and what rotates queries and keys."""

from eyeline.encodings.added import Added as Added
from eyeline.encodings.added import ComplexOrder as ComplexOrder
from eyeline.encodings.added import Learned as Learned
from eyeline.encodings.added import Sinusoidal as Sinusoidal
from eyeline.encodings.rotary import Rotary as Rotary
from eyeline.encodings.rotary_scaling import NTK as NTK
from eyeline.encodings.rotary_scaling import Linear as Linear
from eyeline.encodings.rotary_scaling import Llama3 as Llama3
from eyeline.encodings.rotary_scaling import Scaling as Scaling
from eyeline.encodings.rotary_scaling import YaRN as YaRN
