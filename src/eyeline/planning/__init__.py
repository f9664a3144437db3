"""What a pattern costs, how to compute it, and how it looks: plans, pairs, paths, pictures."""

from eyeline.planning.cost import Cost as Cost
from eyeline.planning.cost import Countable as Countable
from eyeline.planning.cost import cost as cost
from eyeline.planning.dense import dense_mask as dense_mask
from eyeline.planning.flex_blocks import block_mask as block_mask
from eyeline.planning.pairs import looks_ahead as looks_ahead
from eyeline.planning.pairs import pair_ahead as pair_ahead
from eyeline.planning.pairs import pairs as pairs
from eyeline.planning.parts import Block as Block
from eyeline.planning.parts import Gathered as Gathered
from eyeline.planning.parts import Part as Part
from eyeline.planning.parts import Plan as Plan
from eyeline.planning.parts import Reordered as Reordered
from eyeline.planning.parts import Run as Run
from eyeline.planning.parts import Slab as Slab
from eyeline.planning.path_length import max_path_length as max_path_length
from eyeline.planning.pictures import Picture as Picture
from eyeline.planning.pictures import picture as picture
from eyeline.planning.planner import plan as plan
