"""What `compare` and `bench` compute, without printing: time, memory, and what a reading loses."""

from eyeline.measuring.comparison import Comparison as Comparison
from eyeline.measuring.comparison import Row as Row
from eyeline.measuring.comparison import compare as compare
from eyeline.measuring.comparison import under as under
from eyeline.measuring.concentration import Redundancy as Redundancy
from eyeline.measuring.concentration import concentration as concentration
from eyeline.measuring.concentration import redundancy as redundancy
from eyeline.measuring.kinds import Counted as Counted
from eyeline.measuring.kinds import Kind as Kind
from eyeline.measuring.kinds import count as count
from eyeline.measuring.kinds import kind as kind
from eyeline.measuring.kinds import standard as standard
from eyeline.measuring.likelihood import Change as Change
from eyeline.measuring.likelihood import paired_change as paired_change
from eyeline.measuring.likelihood import perplexity as perplexity
from eyeline.measuring.recall import Score as Score
from eyeline.measuring.shapes import Shape as Shape
from eyeline.measuring.sweeping import Case as Case
from eyeline.measuring.sweeping import Sweep as Sweep
from eyeline.measuring.sweeping import sweep as sweep
