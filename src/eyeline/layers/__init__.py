"""Building blocks of models: projections, feed-forward, norms."""

from eyeline.layers.feedforward import GatedFeedForward as GatedFeedForward
from eyeline.layers.norm import rms_norm as rms_norm
from eyeline.layers.packed import PackedLinear as PackedLinear
from eyeline.layers.packed import can_pack as can_pack
from eyeline.layers.packed import pack as pack
from eyeline.layers.packed import weight_bytes as weight_bytes
from eyeline.layers.rows import by_rows as by_rows
