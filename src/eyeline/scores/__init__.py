"""How much: what is done to scores and weights, with its own derivative."""

from eyeline.scores.base import Block as Block
from eyeline.scores.base import Marks as Marks
from eyeline.scores.base import OutputStep as OutputStep
from eyeline.scores.base import Pairs as Pairs
from eyeline.scores.base import ScoreMod as ScoreMod
from eyeline.scores.base import ScoreStep as ScoreStep
from eyeline.scores.base import Step as Step
from eyeline.scores.base import Table as Table
from eyeline.scores.base import WeightStep as WeightStep
from eyeline.scores.biases import ALiBi as ALiBi
from eyeline.scores.biases import OffsetBias as OffsetBias
from eyeline.scores.biases import OffsetFactor as OffsetFactor
from eyeline.scores.biases import T5Bias as T5Bias
from eyeline.scores.by_distance import Bias as Bias
from eyeline.scores.by_distance import Factor as Factor
from eyeline.scores.by_distance import Product as Product
from eyeline.scores.by_distance import Values as Values
from eyeline.scores.pointwise import Called as Called
from eyeline.scores.pointwise import Dropout as Dropout
from eyeline.scores.pointwise import Softcap as Softcap
from eyeline.scores.relative import Shaw as Shaw
from eyeline.scores.relative import TransformerXL as TransformerXL
