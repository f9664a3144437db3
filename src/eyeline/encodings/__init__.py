"""Positions: what is added to embeddings, and what rotates queries and keys."""

from eyeline.encodings.rotary import Rotary as Rotary
