"""Linear attention in layers and models: what it follows, and that steps equal one run."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.caches import LayerCache, Layout, State, cache_in
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.functional import attention_weights, linear_attention
from eyeline.generation import stream
from eyeline.layers import Block, FeedForward, MultiHeadAttention, Stack
from eyeline.mechanisms import Exact, Heads, LinearAttention, recipe
from eyeline.models import Llama, LlamaConfig
from eyeline.patterns import Causal, Full, Sinks, sliding_window
from eyeline.tokens import Tokens

HEADS, KEY_HEADS, WIDTH, LENGTH = 6, 3, 5, 37
LAYOUT = Layout(1, 2, KEY_HEADS, WIDTH, WIDTH, torch.float64, torch.device("cpu"))


def linear(pattern: Any = Causal(), feature_map: str = "favor") -> LinearAttention:
    features = 7 if feature_map == "favor" else None
    return LinearAttention(
        HEADS, WIDTH, feature_map=feature_map, pattern=pattern, features=features
    )


def inputs(seed: int = 0) -> list[Tensor]:
    torch.manual_seed(seed)
    each = (HEADS, KEY_HEADS, KEY_HEADS)
    return [torch.randn(2, h, LENGTH, WIDTH, dtype=torch.float64) for h in each]


def some(tokens: Tokens, start: int, stop: int) -> Tokens:
    documents = None if tokens.documents is None else tokens.documents[..., start:stop]
    return Tokens(tokens.positions[..., start:stop], documents)


SITUATIONS = {
    "plain": (Causal(), Tokens.arange(0, LENGTH)),
    "left pads": (Causal(), Tokens.padded([LENGTH, 5])),
    "one row of nobody": (Causal(), Tokens.padded([LENGTH - 1, 0], length=LENGTH)),
    "documents": (Causal(), Tokens.packed([5, 0, 1, 19, 9], length=LENGTH)),
    "a batch of packings": (Causal(), Tokens.packed([[5, 20, 12], [30, 4]], length=LENGTH)),
    "documents by row": (
        Causal(),
        Tokens(
            torch.arange(LENGTH).expand(2, -1),
            torch.stack((torch.arange(LENGTH) // 10, torch.arange(LENGTH) // 4)),
        ),
    ),
}


@pytest.mark.parametrize("feature_map", ["elu", "relu", "favor"])
@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("step", [1, 2, 7, LENGTH])
def test_steps_equal_one_run(
    situation: str, feature_map: str, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("eyeline.mechanisms.linear.scan.CHUNK", 5)
    pattern, tokens = SITUATIONS[situation]
    mechanism, (q, k, v) = linear(pattern, feature_map), inputs()
    whole = mechanism(q, k, v, q_tokens=tokens, k_tokens=tokens)
    cache = mechanism.new_cache(LAYOUT)
    sizes = set()
    for start in range(0, LENGTH, step):
        stop = min(start + step, LENGTH)
        part = some(tokens, start, stop)
        cache.advance(part)
        heads = [x[:, :, start:stop] for x in (q, k, v)]
        out = mechanism.step(*heads, place=LayerCache(cache, 0), q_tokens=part)
        torch.testing.assert_close(out, whole[:, :, start:stop], rtol=0, atol=1e-10)
        sizes.add(cache.nbytes)
    assert len(sizes) == 1


@pytest.mark.parametrize("pattern", [Full(), Causal()])
@pytest.mark.parametrize("feature_map", ["elu", "favor"])
def test_follows_its_pattern(pattern: Any, feature_map: str) -> None:
    """The weights are 0 where those of exact attention are, and the output is theirs."""
    tokens, (q, k, v) = Tokens.packed([5, 1, 19, 9], length=LENGTH), inputs()
    mechanism = linear(pattern, feature_map)
    weight = mechanism.weights(q, k, q_tokens=tokens, k_tokens=tokens)
    exact = attention_weights(q, k, pattern, q_tokens=tokens, k_tokens=tokens)
    assert torch.equal(weight > 0, exact > 0)
    out = mechanism(q, k, v, q_tokens=tokens, k_tokens=tokens)
    torch.testing.assert_close(out, weight @ v.repeat_interleave(2, 1), rtol=0, atol=1e-10)


def test_what_it_declares_and_refuses() -> None:
    assert linear().causality == "functional" and linear().no_cache is None
    assert linear(Full()).causality == "none"
    for pattern in (sliding_window(4), Causal() | Sinks(1), ~Causal(), Causal() & Sinks(2)):
        with pytest.raises(NotSupported, match="follows full or causal"):
            linear(pattern)
    with pytest.raises(NotSupported, match="under full tokens look ahead"):
        linear(Full()).new_cache(LAYOUT)
    with pytest.raises(NotSupported, match="does not read in steps: under full"):
        MultiHeadAttention(30, HEADS, mechanism=linear(Full())).new_cache()
    with pytest.raises(InvalidArgument, match="linear was made for num_heads=6, head_dim=5"):
        MultiHeadAttention(30, 3, mechanism=linear())
    with pytest.raises(InvalidArgument, match="only feature_map="):
        LinearAttention(2, 3, features=4)
    with pytest.raises(InvalidArgument, match="heads of 5, these are 4"):
        linear()(*[x[..., :4] for x in inputs()])
    with pytest.raises(NotSupported, match="no weights to leave out"):
        recipe("linear").make(Causal(), Heads(6, 3, 5), dropout=0.1)


def test_recipes() -> None:
    heads = Heads(HEADS, KEY_HEADS, WIDTH)
    made = recipe("linear(feature_map=favor, features=64, seed=3)").make(Causal(), heads)
    assert isinstance(made, LinearAttention) and made.features == 64
    assert str(recipe("linear(feature_map=elu)")) == "linear(feature_map=elu)"
    other = recipe("linear(feature_map=favor, features=64, seed=3)").make(Causal(), heads)
    assert torch.equal(made(*inputs()), other(*inputs()))
    other.load_state_dict(made.state_dict())
    assert list(made.state_dict()) == ["feature_map.projection"]


def test_the_state_keeps_its_books() -> None:
    mechanism, (q, k, v) = linear(), inputs()
    cache = mechanism.new_cache(LAYOUT)
    assert isinstance(cache, State) and cache.length == 0

    def step(start: int, stop: int) -> Tensor:
        tokens = Tokens.arange(start, stop)
        cache.advance(tokens)
        heads = [x[:, :, start:stop] for x in (q, k, v)]
        return mechanism.step(*heads, place=LayerCache(cache, 0), q_tokens=tokens)

    step(0, 5)
    first = step(5, 9)
    assert cache.position == 9
    cache.truncate(5)  # to where the last step began
    assert cache.position == 5 and torch.equal(step(5, 9), first)
    with pytest.raises(NotSupported, match="sums cannot forget single tokens"):
        cache.truncate(7)
    cache.truncate(9)  # forgets nothing
    cache.reorder(torch.tensor([1, 1]))
    assert not torch.equal(step(9, 11)[0], step(11, 13)[0])
    kept = cache.kept
    cache.truncate(0)
    due = linear_attention(
        *[x[:, :, :5] for x in (q, k, v)], feature_map=mechanism.feature_map, causal=True
    )
    torch.testing.assert_close(step(0, 5), due, rtol=0, atol=1e-10)
    with pytest.raises(InvalidArgument, match="each layer appends once"):
        kept(0, k, v)
    with pytest.raises(NotSupported, match="keeps sums, not keys"):
        cache.append(0, k, v)
    with pytest.raises(InvalidArgument, match="keeps a State"):
        other = cache_in(Causal(), LAYOUT)
        mechanism.step(q, k, v, place=LayerCache(other, 0), q_tokens=Tokens.arange(0, LENGTH))


def test_rows_change_places_with_their_sums() -> None:
    mechanism, (q, k, v) = linear(), inputs()
    cache = mechanism.new_cache(LAYOUT)
    tokens = Tokens.arange(0, 9)
    cache.advance(tokens)
    mechanism.step(*[x[:, :, :9] for x in (q, k, v)], place=LayerCache(cache, 0), q_tokens=tokens)
    cache.reorder(torch.tensor([1, 0]))
    tokens = Tokens.arange(9, 10)
    cache.advance(tokens)
    heads = [x[:, :, 9:10].flip(0) for x in (q, k, v)]
    out = mechanism.step(*heads, place=LayerCache(cache, 0), q_tokens=tokens)
    whole = mechanism(q, k, v)[:, :, 9:10].flip(0)
    torch.testing.assert_close(out, whole, rtol=0, atol=1e-10)


def test_documents_in_steps_come_one_after_another() -> None:
    mechanism = linear(Causal())
    cache = mechanism.new_cache(LAYOUT)
    cache.advance(Tokens.listed([0, 1], [3, 4]))
    with pytest.raises(InvalidArgument, match="numbers that go up"):
        cache.advance(Tokens.listed([2], [3]))


def stack(*mechanisms: Any) -> Stack:
    torch.manual_seed(0)
    blocks = [
        Block(
            MultiHeadAttention(30, HEADS, num_kv_heads=KEY_HEADS, mechanism=mechanism),
            FeedForward(30, 11), norm="pre",
        )
        for mechanism in mechanisms
    ]  # fmt: skip
    return Stack(blocks).eval()


def test_a_stack_of_several_kinds_reads_in_steps() -> None:
    model = stack(linear(), linear(feature_map="elu"), Exact(Causal()), linear(), linear())
    kinds = {x.attention.mechanism.cache_kind for x in model.blocks}  # type: ignore[union-attr]
    assert len(model.new_caches()) == len(kinds) == 3
    x = torch.randn(2, 12, 30)
    with torch.no_grad():
        whole = model(x)
        caches = model.new_caches(2)
        parts = [model(x[:, a:b], caches=caches) for a, b in ((0, 5), (5, 6), (6, 12))]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=0, atol=1e-5)


def test_training_moves_the_projections() -> None:
    model = stack(linear(), linear(Full(), "relu"))
    model(torch.randn(2, 9, 30)).square().mean().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), name


def test_it_is_deterministic() -> None:
    mechanism, given = linear().eval(), inputs()
    first = mechanism(*given)
    assert all(torch.equal(mechanism(*given), first) for _ in range(30))


CONFIG = LlamaConfig(
    vocabulary=89, width=30, hidden=37, layers=2, heads=6, kv_heads=3, head_dim=10,
    trained_length=23,
)  # fmt: skip


@pytest.mark.parametrize("text", ["linear", "linear(feature_map=favor, features=13)"])
def test_a_model_writes_with_a_state_of_fixed_size(text: str) -> None:
    torch.manual_seed(0)
    model = Llama(CONFIG, mechanism=recipe(text)).eval()
    writing = stream(model, [1, 2, 3, 4, 5], max_new_tokens=12)
    sizes, written = set(), []
    for chosen in writing:
        written.append(chosen)
        sizes.add(sum(cache.nbytes for cache in writing.caches))
    assert len(sizes) == 1
    with torch.no_grad():
        ids = torch.tensor([[1, 2, 3, 4, 5, *written]])
        logits = model(ids)[0, 4:-1]
    assert logits.argmax(-1).tolist() == written
    with pytest.raises(NotSupported, match="recounted"):
        Llama(CONFIG, mechanism=recipe(text), encodings="recounted").new_caches()
