"""A compiled layer that reads a text in steps, from a cache, gives what the whole text gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Pattern, Tokens, sliding_window
from eyeline.encodings import Rotary
from eyeline.layers import MultiHeadAttention
from eyeline.scores import ALiBi


@pytest.mark.parametrize("pattern", [Causal(), sliding_window(6)], ids=str)
@pytest.mark.parametrize("steps", [(1,) * 12, (5, 1, 1, 3, 2)], ids=["one by one", "several"])
def test_decoding_equals_the_whole_text(pattern: Pattern, steps: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    torch._dynamo.reset()
    layer = MultiHeadAttention(24, 3, pattern=pattern, position=[Rotary(8), ALiBi(3)]).eval()
    compiled = torch.compile(layer, backend="aot_eager")
    x = torch.randn(2, 12, 24)
    found: list[Tensor] = []
    with torch.no_grad():
        whole, held, start = layer(x), layer.new_cache(2), 0
        for count in steps:
            tokens = Tokens.arange(start, start + count)
            held.cache.advance(tokens)
            found.append(compiled(x[:, start : start + count], q_tokens=tokens, cache=held))
            start += count
    torch.testing.assert_close(torch.cat(found, 1), whole)
