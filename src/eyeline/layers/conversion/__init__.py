"""torch's own attention layers: their weights in ours and back, and whole models at once."""

from eyeline.layers.conversion.drop_in import TorchAttention as TorchAttention
from eyeline.layers.conversion.masks import pattern_of_mask as pattern_of_mask
from eyeline.layers.conversion.masks import tokens_of_padding as tokens_of_padding
from eyeline.layers.conversion.replace import Replaced as Replaced
from eyeline.layers.conversion.replace import Report as Report
from eyeline.layers.conversion.replace import convert as convert
from eyeline.layers.conversion.replace import restore as restore
from eyeline.layers.conversion.transfer import from_torch as from_torch
from eyeline.layers.conversion.transfer import to_torch as to_torch
