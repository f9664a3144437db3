"""How much: what is done to scores and weights, with its own derivative."""

from eyeline.scores.alibi import ALiBi as ALiBi
from eyeline.scores.base import OutputStep as OutputStep
from eyeline.scores.base import ScoreMod as ScoreMod
from eyeline.scores.base import ScoreStep as ScoreStep
from eyeline.scores.base import Step as Step
from eyeline.scores.base import WeightStep as WeightStep
from eyeline.scores.bias import Bias as Bias
from eyeline.scores.block import Block as Block
from eyeline.scores.block import Marks as Marks
from eyeline.scores.block import Table as Table
from eyeline.scores.called import Called as Called
from eyeline.scores.cap import Softcap as Softcap
from eyeline.scores.dropout import Dropout as Dropout
from eyeline.scores.factor import Factor as Factor
from eyeline.scores.offsets import OffsetBias as OffsetBias
from eyeline.scores.offsets import OffsetFactor as OffsetFactor
from eyeline.scores.pairs import Pairs as Pairs
from eyeline.scores.product import Product as Product
from eyeline.scores.shaw import Shaw as Shaw
from eyeline.scores.t5 import T5Bias as T5Bias
from eyeline.scores.transformer_xl import TransformerXL as TransformerXL
from eyeline.scores.values import Values as Values
