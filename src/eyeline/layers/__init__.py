"""Building blocks of models: attention, feed-forward, norms, blocks, stacks."""

from eyeline.caches import LayerCache as LayerCache
from eyeline.layers.attention import MultiHeadAttention as MultiHeadAttention
from eyeline.layers.attention import Projected as Projected
from eyeline.layers.block import Block as Block
from eyeline.layers.block import DecoderBlock as DecoderBlock
from eyeline.layers.feedforward import FeedForward as FeedForward
from eyeline.layers.feedforward import GatedFeedForward as GatedFeedForward
from eyeline.layers.feedforward import RMSNorm as RMSNorm
from eyeline.layers.feedforward import by_rows as by_rows
from eyeline.layers.feedforward import rms_norm as rms_norm
from eyeline.layers.packed import PackedLinear as PackedLinear
from eyeline.layers.packed import can_pack as can_pack
from eyeline.layers.packed import pack as pack
from eyeline.layers.packed import weight_bytes as weight_bytes
from eyeline.layers.rivals import Convolution as Convolution
from eyeline.layers.rivals import Recurrent as Recurrent
from eyeline.layers.shape import BlockShape as BlockShape
from eyeline.layers.stack import DecoderStack as DecoderStack
from eyeline.layers.stack import Stack as Stack
