"""The model against one written out plainly, and against itself in steps."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from eyeline.caches import Evicting, Growing
from eyeline.encodings import NTK, Linear, Llama3, Scaling, YaRN
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers import rms_norm
from eyeline.mechanisms import recipe
from eyeline.models import Llama
from eyeline.patterns import (
    Causal,
    Chunks,
    Full,
    Pattern,
    Sinks,
    Window,
    prefix_lm,
    sliding_window,
    streaming,
)
from eyeline.tokens import Tokens
from models.tiny import CONFIG, ids, llama

W = 5


def plainly(model: Llama, row: list[int], allows: Any) -> Tensor:
    """One text, one head and one token at a time, in float64 and complex numbers."""
    config, state = model.config, {n: w.double() for n, w in model.state_dict().items()}
    x = state["embedding.weight"][row]

    def normed(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config.norm_eps).sqrt() * weight

    def turned(head: Tensor) -> Tensor:
        half = config.head_dim // 2
        speed = config.rotary_base ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(len(row), dtype=torch.float64)[:, None] * speed
        spun = torch.complex(head[:, :half], head[:, half:]) * torch.exp(1j * angle)
        return torch.cat((spun.real, spun.imag), -1)

    for layer in range(config.layers):
        part = {n.removeprefix(f"layers.{layer}."): w for n, w in state.items()}
        heads = normed(x, part["attention_norm"]) @ part["attention.qkv.weight"].T
        heads = heads.split(config.head_dim, -1)
        seen = []
        for head in range(config.heads):
            shared = config.heads + head // (config.heads // config.kv_heads)
            q, k, v = turned(heads[head]), turned(heads[shared]), heads[shared + config.kv_heads]
            score = q @ k.T / math.sqrt(config.head_dim)
            for i in range(len(row)):
                for j in range(len(row)):
                    score[i, j] = score[i, j] if allows(i, j) else -math.inf
            seen.append(score.softmax(-1) @ v)
        x = x + torch.cat(seen, -1) @ part["attention.out.weight"].T
        gated = normed(x, part["feed_forward_norm"]) @ part["feed_forward.gate_up.weight"].T
        gate, up = gated.chunk(2, -1)
        x = x + (gate * gate.sigmoid() * up) @ part["feed_forward.down.weight"].T
    return normed(x, state["norm"]) @ state["head.weight"].T


@pytest.mark.parametrize(
    ("pattern", "allows"),
    [
        (Causal(), lambda i, j: j <= i),
        (streaming(W, 2), lambda i, j: j <= i and (i - j < W or j < 2)),
    ],
    ids=["causal", "streaming"],
)
def test_logits_equal_the_plain_model(pattern: Pattern, allows: Any) -> None:
    model, text = llama(pattern=pattern), ids(2, 19)
    logits = model(text)
    for row in range(2):
        want = plainly(model, text[row].tolist(), allows)
        torch.testing.assert_close(logits[row].double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("change", ["base", "layout", "eps", "kv order"])
def test_the_comparison_would_notice(change: str) -> None:
    model, text = llama(), ids(1, 19)
    want = plainly(model, text[0].tolist(), lambda i, j: j <= i)
    wrong = llama()
    weight = wrong.layers[1].attention.qkv.weight
    if change == "kv order":
        weight.copy_(weight.roll(10, 0))
    else:
        wrong = llama(_changed(change))
    assert (wrong(text)[0] - want).abs().max() > 1e-2


def _changed(change: str) -> Any:
    if change == "layout":
        return _Interleaved(**{f: getattr(CONFIG, f) for f in CONFIG.__dataclass_fields__})
    return replace(CONFIG, **({"rotary_base": 96.0} if change == "base" else {"norm_eps": 0.1}))


class _Interleaved(type(CONFIG)):  # type: ignore[misc]
    @property
    def rotary(self) -> Any:
        from eyeline.encodings import Rotary

        return Rotary(self.head_dim, base=self.rotary_base, layout="interleaved")


PATTERNS: list[Pattern | list[Pattern]] = [
    Causal(),
    sliding_window(W),
    streaming(W, 3),
    Causal() & (Chunks(W) | Sinks(2)),
    Causal() & ~Window(2, 0) | sliding_window(1),
    [Causal(), streaming(W, 3), Causal()],
    [sliding_window(W), sliding_window(W), Causal()],
]


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("step", [1, 2, W - 1, W, W + 1, 3 * W])
@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda p: str(p) if p is not list else "list")
def test_steps_equal_one_run(pattern: Pattern | Sequence[Pattern], step: int, padded: bool) -> None:
    """Up to 31 tokens: six times the window, and past the 23 that the model was trained on."""
    model, text = llama(pattern=pattern).double(), ids(3, 31)
    tokens = Tokens.padded([31, 17, 2]) if padded else Tokens.arange(0, 31)
    want = model(text, q_tokens=tokens)
    caches, got = model.new_caches(3), []
    for start in range(0, 31, step):
        new = Tokens(tokens.positions[..., start : start + step])
        cut = text[:, start : start + step]
        # Where no row is padded the model knows the positions by itself.
        got.append(model(cut, q_tokens=new if padded else None, caches=caches))
    there = (tokens.positions >= 0).expand(3, -1)
    torch.testing.assert_close(torch.cat(got, 1)[there], want[there], rtol=0, atol=1e-10)


@pytest.mark.parametrize("encodings", ["absolute", "recounted"])
@pytest.mark.parametrize(
    "scaling",
    [Linear(2.0), NTK(2.0), YaRN(4.0, 23), Llama3(2.0, original_length=23)],
    ids=["linear", "ntk", "yarn", "llama3"],
)
def test_steps_with_other_speeds_equal_one_run(scaling: Scaling, encodings: Any) -> None:
    model = llama(replace(CONFIG, rotary_scaling=scaling), encodings=encodings).double()
    text, caches = ids(2, 31), model.new_caches(2)
    want = model(text)
    got = torch.cat([model(text[:, i : i + 7], caches=caches) for i in range(0, 31, 7)], 1)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
    assert (want - llama(encodings=encodings).double()(text)).abs().max() > 0.1


def test_a_padded_row_equals_the_text_alone() -> None:
    model, text = llama(pattern=streaming(W, 2)).double(), ids(3, 19)
    lengths = [19, 7, 1]
    batch = model(text, q_tokens=Tokens.padded(lengths))
    for row, length in enumerate(lengths):
        alone = model(text[row : row + 1, 19 - length :])
        torch.testing.assert_close(batch[row, 19 - length :], alone[0], rtol=0, atol=1e-10)


def test_layers_with_one_pattern_share_one_cache() -> None:
    model = llama(pattern=[Causal(), sliding_window(3), Causal()])
    causal, window = model.new_caches()
    assert isinstance(causal, Growing) and isinstance(window, Evicting)
    assert (causal.layout.layers, window.layout.layers) == (2, 1)
    assert [layer.attention.index for layer in model.layers] == [0, 0, 1]


@pytest.mark.parametrize("steps", [[1] * 40, [2] * 20, [4, 1, 1, 7, 1, 9, 1, 1, 15]])
def test_recounted_steps_equal_the_kept_tokens_read_alone(steps: list[int]) -> None:
    """With one layer, what a key holds does not depend on what was evicted before it.

    So a step must equal reading the kept tokens alone, at positions 0 to m - 1, far past the
    trained length; and its positions never pass what is kept and read at once.
    """
    pattern = streaming(W, 2)
    model = llama(replace(CONFIG, layers=1), pattern, encodings="recounted").double()
    text, caches, start = ids(1, sum(steps)), model.new_caches(), 0
    for step in steps:
        kept = [p for p in caches[0]._tokens.positions.tolist() if p >= 0]
        needed = pattern.needed(Tokens.listed(kept), start) if kept else torch.zeros(0).bool()
        seen = [p for p, still in zip(kept, needed.tolist(), strict=True) if still]
        if step > 1:  # A longer step also sees what was kept and is not needed by its last tokens.
            seen = kept
        order = sorted(seen) + list(range(start, start + step))
        got = model(text[:, start : start + step], caches=caches)
        want = _alone(model, text[:, order], order, step)
        torch.testing.assert_close(got, want, rtol=0, atol=1e-10)
        assert len(order) <= W + 2 + step
        start += step


def _alone(model: Llama, text: Tensor, order: list[int], step: int) -> Tensor:
    """Rotary positions 0 … m - 1, the pattern's own positions as they are."""
    from eyeline.functional import attention

    block, length = model.layers[0], len(order)
    x = model.embedding(text)
    heads = (
        block.attention.qkv(rms_norm(x, block.attention_norm, block.eps))
        .view(1, length, -1, 10)
        .transpose(1, 2)
    )
    tables = model.config.rotary.tables(torch.arange(length), dtype=torch.float64)
    turned = model.config.rotary.rotate(heads[:, :9], tables)
    tokens = Tokens.listed(order)
    seen = attention(
        turned[:, :6], turned[:, 6:], heads[:, 9:], model.patterns[0],
        q_tokens=tokens, k_tokens=tokens,
    )  # fmt: skip
    x = x + block.attention.out(seen.transpose(1, 2).reshape(1, length, -1))
    x = x + block.feed_forward(rms_norm(x, block.feed_forward_norm, block.eps))
    return model.head(rms_norm(x, model.norm, block.eps))[:, -step:]


def test_recounted_equals_absolute_while_nothing_is_evicted() -> None:
    text = ids(2, 19)
    tokens = Tokens.padded([19, 6])
    want = llama().double()(text, q_tokens=tokens)
    model = llama(encodings="recounted").double()
    caches = model.new_caches(2)
    first = model(text[:, :13], q_tokens=Tokens(tokens.positions[:, :13]), caches=caches)
    rest = [model(text[:, i : i + 1], caches=caches) for i in range(13, 19)]
    there = tokens.positions >= 0
    got = torch.cat((first, *rest), 1)
    torch.testing.assert_close(got[there], want[there], rtol=0, atol=1e-10)


def test_only_the_last_logits() -> None:
    model, text = llama(), ids(2, 11)
    torch.testing.assert_close(model(text, last_only=True), model(text)[:, -1:])


@pytest.mark.parametrize("chunk", [1, 4, 256])
def test_losses_are_the_cross_entropy_of_the_next_id(chunk: int) -> None:
    model, text = llama(), ids(2, 11)
    losses = model.losses(text, chunk=chunk)
    shares = functional.log_softmax(model(text), -1)
    for row in range(2):
        for i in range(10):
            want = -shares[row, i, text[row, i + 1]]
            torch.testing.assert_close(losses[row, i], want, rtol=1e-5, atol=1e-5)
    assert model.losses(text[:, :1]).shape == (2, 0)


def test_gradients_reach_every_weight() -> None:
    model = llama().requires_grad_(True)
    model.losses(ids(2, 7)).mean().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_what_does_not_fit_is_refused() -> None:
    model = llama()
    with pytest.raises(InvalidArgument, match="2 patterns for 3 layers"):
        Llama(CONFIG, [Causal(), Causal()])
    with pytest.raises(InvalidArgument, match="encodings='relative'"):
        Llama(CONFIG, encodings="relative")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"torch\.float32"):
        model(torch.zeros(1, 3))
    with pytest.raises(
        InvalidArgument, match=r"q_tokens has shape \(4,\); the input needs .* \(1, 3\)"
    ):
        model(ids(1, 3), q_tokens=Tokens.arange(0, 4))
    with pytest.raises(InvalidArgument, match="0 caches for 1 patterns"):
        model(ids(1, 3), caches=[])


@pytest.mark.parametrize("pattern", [Full(), prefix_lm(9)], ids=str)
def test_a_pattern_that_looks_ahead_is_not_written_with_in_steps(pattern: Pattern) -> None:
    model = llama(pattern=pattern)
    caches = model.new_caches()
    model(ids(1, 7), caches=caches)
    with pytest.raises(NotSupported, match="attend to later ones"):
        model(ids(1, 1), caches=caches)


@pytest.mark.parametrize(
    "mechanism",
    [
        recipe("linear(feature_map=elu)"),
        [recipe("extra_keys(count=3)"), recipe("linear(feature_map=elu)"), recipe("exact")],
    ],
    ids=["linear", "mixed"],
)
def test_any_mechanism_reads_in_steps(mechanism: Any) -> None:
    model, text = llama(mechanism=mechanism), ids(2, 19)
    caches = model.new_caches(2)
    pieces = [model(piece, caches=caches) for piece in text.split(5, 1)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(text), rtol=0, atol=1e-4)
    assert not torch.allclose(model(text), llama()(text), atol=1e-2)


def test_one_mechanism_for_all_layers_or_one_each() -> None:
    with pytest.raises(InvalidArgument, match="2 mechanisms for 3 layers"):
        Llama(CONFIG, mechanism=[recipe("exact")] * 2)
