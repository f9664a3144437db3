"""What an attention layer can be given to look with."""

from eyeline.mechanisms.additive import Additive as Additive
from eyeline.mechanisms.exact import Exact as Exact
from eyeline.mechanisms.extra_keys import ExtraKeys as ExtraKeys
from eyeline.mechanisms.extra_tokens import ExtraTokens as ExtraTokens
from eyeline.mechanisms.recipes import Heads as Heads
from eyeline.mechanisms.recipes import Recipe as Recipe
from eyeline.mechanisms.recipes import recipe as recipe
