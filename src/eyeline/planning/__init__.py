"""What a pattern costs and how to compute it: plans, pairs, dense masks."""

from eyeline.planning.dense import dense_mask as dense_mask
from eyeline.planning.pairs import pairs as pairs
from eyeline.planning.parts import Gathered as Gathered
from eyeline.planning.parts import Part as Part
from eyeline.planning.parts import Run as Run
from eyeline.planning.parts import Slab as Slab
from eyeline.planning.planner import Plan as Plan
from eyeline.planning.planner import plan as plan
