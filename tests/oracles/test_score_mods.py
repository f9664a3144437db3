"""T5's bias and BLOOM's ALiBi, as transformers has them, with the same weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import Causal, Full, Tokens, attention, attention_weights, sliding_window
from eyeline.scores import ALiBi, T5Bias

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")

SIZES = [(32, 128), (32, 1000), (8, 20), (64, 256), (6, 50)]


def t5_attention(*, decoder: bool, buckets: int = 32, most: int = 128) -> Any:
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(
        d_model=24, d_kv=7, num_heads=3, relative_attention_num_buckets=buckets,
        relative_attention_max_distance=most, is_decoder=decoder, dropout_rate=0.0,
        attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    layer = T5Attention(config, has_relative_attention_bias=True, layer_idx=0).double()
    torch.nn.init.normal_(layer.relative_attention_bias.weight)
    return layer


def with_weights_of(layer: Any) -> T5Bias:
    mod = T5Bias(
        layer.n_heads, num_buckets=layer.relative_attention_num_buckets,
        max_distance=layer.relative_attention_max_distance, bidirectional=not layer.is_decoder,
    ).double()  # fmt: skip
    mod.load_state_dict(layer.relative_attention_bias.state_dict())
    return mod


@pytest.mark.parametrize("decoder", [False, True])
@pytest.mark.parametrize(("buckets", "most"), SIZES)
def test_t5_bias(decoder: bool, buckets: int, most: int) -> None:
    layer = t5_attention(decoder=decoder, buckets=buckets, most=most)
    theirs = layer.compute_bias(307, 1109, past_seen_tokens=409)[0]
    distance = torch.arange(1109) - torch.arange(409, 409 + 307)[:, None]
    curve = with_weights_of(layer)(torch.arange(-2000, 2001))
    assert torch.equal(theirs, curve[:, distance + 2000])


@pytest.mark.parametrize("backend", ["reference", "tiles", "auto"])
@pytest.mark.parametrize("decoder", [False, True])
def test_a_t5_layer_at_scale_1(decoder: bool, backend: str) -> None:
    layer = t5_attention(decoder=decoder)
    mod = with_weights_of(layer)
    x = torch.randn(2, 301, 24, dtype=torch.float64, requires_grad=True)
    mask = torch.zeros(301, 301, dtype=torch.float64)
    if decoder:
        mask.masked_fill_(torch.ones(301, 301).triu(1).bool(), -torch.inf)
    theirs = layer(x, mask=mask[None, None])[0]

    def split(y: Tensor) -> Tensor:
        return y.unflatten(-1, (3, 7)).transpose(1, 2)

    q, k, v = (split(f(x)) for f in (layer.q, layer.k, layer.v))
    pattern = Causal() if decoder else Full()
    out = attention(q, k, v, pattern, score_mod=mod, scale=1.0, backend=backend)
    ours = layer.o(out.transpose(1, 2).flatten(2))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)
    above = torch.randn_like(theirs)
    found = torch.autograd.grad(ours, [x, layer.q.weight, layer.k.weight, mod.weight], above)
    own = [x, layer.q.weight, layer.k.weight, layer.relative_attention_bias.weight]
    for one, other in zip(found, torch.autograd.grad(theirs, own, above), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    usual = attention(q, k, v, pattern, score_mod=mod, backend=backend)
    assert (usual - out).abs().max() > 1e-3, "the scale 1/√E is not T5's"


@pytest.mark.parametrize("heads", [1, 2, 3, 8, 12, 20, 71])
def test_bloom_alibi(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    n = 29
    lengths = [n, 17]
    seen = torch.stack([torch.arange(n) >= n - length for length in lengths])  # left pads
    theirs = build_alibi_tensor(seen.long(), heads, torch.float32).view(2, heads, 1, n)
    q, k = torch.randn(2, 2, heads, n, 5)
    tokens = Tokens.padded(lengths, side="left")
    for pattern, width in ((Causal(), n), (sliding_window(6), 6)):
        i, j = torch.arange(n)[:, None], torch.arange(n)
        mask = (j <= i) & (j > i - width) & seen[:, None, None, :]
        score = q @ k.mT / 5**0.5 + theirs
        # They add slope · j where we add -slope · (i - j): the same up to a number of each row.
        right = score.masked_fill(~mask, -1e30).softmax(-1) * mask
        asked: dict[str, Any] = {"q_tokens": tokens, "k_tokens": tokens}
        weight = attention_weights(q, k, pattern, score_mod=ALiBi(heads), **asked)
        real = seen[:, None, :, None].expand_as(right)
        torch.testing.assert_close(weight[real], right[real], rtol=1e-4, atol=1e-6)
        v = torch.randn(2, heads, n, 5)
        out = attention(q, k, v, pattern, score_mod=ALiBi(heads), backend="tiles", **asked)
        torch.testing.assert_close(out, weight @ v, rtol=1e-4, atol=1e-5)
