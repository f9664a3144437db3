"""What an attention layer can be given to look with."""

from eyeline.mechanisms.exact import Exact as Exact
