"""Tokens: what is known of each slot of a sequence. Positions, documents, segments and padding."""

from __future__ import annotations

from eyeline.tokens.tokens import LARGEST as LARGEST
from eyeline.tokens.tokens import NOBODY as NOBODY
from eyeline.tokens.tokens import Points as Points
from eyeline.tokens.tokens import Tokens as Tokens
from eyeline.tokens.tokens import default_tokens as default_tokens
