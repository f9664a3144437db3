"""The encoder–decoder against the formula of the paper, in steps, under padding, and refused."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from eyeline import Causal, Full, Pattern, Tokens, dense_mask, sliding_window
from eyeline.errors import InvalidArgument
from eyeline.loading import load, save
from eyeline.mechanisms import recipe
from eyeline.models import Transformer, TransformerConfig
from eyeline.patterns import Window

V, READ, WIDTH, HEADS, S, T = 23, 29, 22, 2, 13, 7
CONFIG = TransformerConfig(
    vocabulary=V, source_vocabulary=READ, width=WIDTH, hidden=31, layers=2, decoder_layers=3,
    heads=HEADS, norm_eps=2**-10,
)  # fmt: skip
PATTERNS: dict[str, Any] = {
    "pattern": [Causal(), sliding_window(3), sliding_window(5)],
    "encoder_pattern": [Full(), Window(2, 1)],
    "memory_pattern": [Full(), Window(5, 5), Full()],
}


def made(config: TransformerConfig = CONFIG, seed: int = 0, **choices: Any) -> Transformer:
    """A model in float64 with weights large enough that every part of it shows in the logits."""
    torch.manual_seed(seed)
    model = Transformer(config, **choices).double()
    for name, x in model.named_parameters():
        nn.init.normal_(x, mean=float("norm" in name and "weight" in name), std=0.3)
    return model.eval()


def ids(batch: int, length: int, most: int, seed: int = 1) -> Tensor:
    return torch.randint(0, most, (batch, length), generator=torch.Generator().manual_seed(seed))


# --- The formula ---------------------------------------------------------------------------------


def embedded(table: Tensor, index: Tensor) -> Tensor:
    """√width · E[id] + p, position by position."""
    width = table.shape[1]
    x = table[index] * math.sqrt(width)
    for i in range(index.shape[1]):
        for j in range(0, width, 2):
            angle = i / 10000 ** (j / width)
            x[:, i, j] += math.sin(angle)
            x[:, i, j + 1] += math.cos(angle)
    return x


def looked(state: dict[str, Tensor], x: Tensor, memory: Tensor, mask: Tensor) -> Tensor:
    """W_o of softmax(QKᵀ/√E)V, head by head. mask: True where query i may look at key j."""
    q, k, v = (
        functional.linear(given, state[f"{name}.weight"], state[f"{name}.bias"])
        for name, given in (("q_proj", x), ("k_proj", memory), ("v_proj", memory))
    )
    heads = []
    for one, two, three in zip(*(z.chunk(HEADS, -1) for z in (q, k, v)), strict=True):
        scores = one @ two.transpose(1, 2) / math.sqrt(WIDTH / HEADS)
        heads.append(scores.masked_fill(~mask, -math.inf).softmax(-1) @ three)
    return functional.linear(torch.cat(heads, -1), state["out_proj.weight"], state["out_proj.bias"])


def under(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)}


def normed(state: dict[str, Tensor], x: Tensor) -> Tensor:
    return functional.layer_norm(x, (WIDTH,), state["weight"], state["bias"], CONFIG.norm_eps)


def formula(model: Transformer, source: Tensor, target: Tensor) -> Tensor:
    """The whole of it from the paper, post-norm: LayerNorm(x + f(x)), layer by layer."""
    state = {name: x.detach() for name, x in model.state_dict().items()}

    def step(x: Tensor, change: Tensor, prefix: str) -> Tensor:
        return normed(under(state, prefix), x + change)

    def fed(x: Tensor, prefix: str) -> Tensor:
        part = under(state, prefix)
        inner = functional.linear(x, part["up.weight"], part["up.bias"]).relu()
        return functional.linear(inner, part["down.weight"], part["down.bias"])

    table = state.get("source_embedding.weight", state["embedding.weight"])
    memory = embedded(table, source)
    for layer, pattern in enumerate(model.encoder_pattern):
        name = f"encoder.blocks.{layer}."
        seen = looked(under(state, name + "attention."), memory, memory, dense_mask(pattern, S))
        memory = step(memory, seen, name + "attention_norm.")
        memory = step(memory, fed(memory, name + "feed_forward."), name + "feed_forward_norm.")
    x = embedded(state["embedding.weight"], target)
    for layer, (own, cross) in enumerate(zip(model.pattern, model.memory_pattern, strict=True)):
        name = f"decoder.blocks.{layer}."
        seen = looked(under(state, name + "self_attention."), x, x, dense_mask(own, T))
        x = step(x, seen, name + "self_attention_norm.")
        # Targets stand at 0 … T-1 and sources at 0 … S-1: not as the last T of S.
        mask = dense_mask(cross, S)[:T]
        seen = looked(under(state, name + "cross_attention."), x, memory, mask)
        x = step(x, seen, name + "cross_attention_norm.")
        x = step(x, fed(x, name + "feed_forward."), name + "feed_forward_norm.")
    return x @ state["head.weight"].T


@pytest.mark.parametrize("choices", [{}, PATTERNS], ids=["given none", "by layer"])
@pytest.mark.parametrize("shared", [False, True])
def test_it_is_the_formula_of_the_paper(choices: dict[str, Any], shared: bool) -> None:
    config = TransformerConfig(**{**asdict(CONFIG), "tied": shared})
    if shared:
        config = TransformerConfig(**{**asdict(config), "source_vocabulary": None})
    model = made(config, **choices)
    source, target = ids(3, S, V), ids(3, T, V, seed=2)
    torch.testing.assert_close(
        model(source, target), formula(model, source, target), rtol=0, atol=1e-10
    )


def test_pre_norm_norms_what_enters_and_what_leaves() -> None:
    """x + f(norm(x)): with projections back of 0 every block is x, and the last norm remains."""
    model = made(TransformerConfig(**{**asdict(CONFIG), "norm": "pre"}))
    for name, x in model.named_parameters():
        if name.endswith(("out_proj.weight", "out_proj.bias", "down.weight", "down.bias")):
            nn.init.zeros_(x)
    source, target = ids(2, S, READ), ids(2, T, V)
    state = model.state_dict()
    want = normed(
        under(state, "encoder.final_norm."),
        embedded(state["source_embedding.weight"], source),
    )
    torch.testing.assert_close(model.encode(source), want, rtol=0, atol=1e-12)
    want = normed(under(state, "decoder.final_norm."), embedded(state["embedding.weight"], target))
    torch.testing.assert_close(
        model(source, target), want @ state["head.weight"].T, rtol=0, atol=1e-12
    )


# --- Padding and steps ---------------------------------------------------------------------------

LENGTHS, WRITTEN = [S, 5, 1], [2, T, 3]


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("choices", [{}, PATTERNS], ids=["given none", "by layer"])
def test_a_padded_row_is_the_row_alone(choices: dict[str, Any], side: str) -> None:
    model = made(**choices)
    sources = [ids(1, n, READ, seed=n) for n in LENGTHS]
    targets = [ids(1, n, V, seed=n) for n in WRITTEN]
    st, tt = Tokens.padded(LENGTHS, side), Tokens.padded(WRITTEN, side)
    found = []
    for filler in (0, 19):  # what stands in pads changes nothing
        source, target = torch.full((3, S), filler), torch.full((3, T), filler)
        for row, (one, other) in enumerate(zip(sources, targets, strict=True)):
            source[row, st.positions[row] >= 0] = one
            target[row, tt.positions[row] >= 0] = other
        found.append(model(source, target, source_tokens=st, target_tokens=tt))
    for row, (one, other) in enumerate(zip(sources, targets, strict=True)):
        there = tt.positions[row] >= 0
        alone = model(one, other)[0]
        torch.testing.assert_close(found[0][row, there], alone, rtol=0, atol=1e-10)
        assert torch.equal(found[0][row, there], found[1][row, there])


@pytest.mark.parametrize("choices", [{}, PATTERNS], ids=["given none", "by layer"])
@pytest.mark.parametrize("steps", [[1] * T, [3, 1, 3], [5, 2]], ids=str)
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_writing_in_steps_is_writing_at_once(
    choices: dict[str, Any], steps: list[int], padded: bool
) -> None:
    model = made(**choices)
    source, target = ids(3, S, READ), ids(3, T, V, seed=2)
    tokens = Tokens.padded(LENGTHS, "right") if padded else None
    memory = model.encode(source, source_tokens=tokens)
    projected, caches = model.project(memory, source_tokens=tokens), model.new_caches(3)
    found, start = [], 0
    for step in steps:
        part = target[:, start : start + step]
        found.append(model.decode(part, projected, caches=caches))
        start += step
    want = model(source, target, source_tokens=tokens)
    torch.testing.assert_close(torch.cat(found, 1), want, rtol=0, atol=1e-10)
    last = model.decode(target, memory, source_tokens=tokens, last_only=True)
    torch.testing.assert_close(last, want[:, -1:], rtol=0, atol=1e-10)


def test_a_mechanism_by_layer_and_place() -> None:
    model = made(
        mechanism=[recipe("exact"), recipe("additive"), recipe("extra_keys(count=2)")],
        encoder_mechanism=recipe("additive(hidden=5)"),
        memory_mechanism=recipe("extra_keys(count=3)"),
    )

    def kinds(blocks: nn.Module, place: str) -> list[str]:
        return [type(getattr(block, place).mechanism).__name__ for block in blocks.children()]

    assert kinds(model.decoder.blocks, "self_attention") == ["Exact", "Additive", "ExtraKeys"]
    assert kinds(model.decoder.blocks, "cross_attention") == ["ExtraKeys"] * 3
    assert kinds(model.encoder.blocks, "attention") == ["Additive"] * 2
    assert [str(one) for one in model.choices()["memory_mechanism"]] == ["extra_keys(count=3)"] * 3
    source, target = ids(2, S, READ), ids(2, T, V)
    with torch.no_grad():
        caches, memory = model.new_caches(2), model.project(model.encode(source))
        found = [model.decode(target[:, i : i + 1], memory, caches=caches) for i in range(T)]
        want = model(source, target)
    torch.testing.assert_close(torch.cat(found, 1), want, rtol=0, atol=1e-10)


# --- Losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [256, 3])
@pytest.mark.parametrize("side", ["left", "right"])
def test_losses_are_those_of_the_next_ids(smoothing: float, chunk: int, side: str) -> None:
    model = made()
    source, target = ids(3, S, READ), ids(3, T, V)
    st, tt = Tokens.padded(LENGTHS, "right"), Tokens.padded(WRITTEN, side)
    found = model.losses(
        source, target, source_tokens=st, target_tokens=tt, label_smoothing=smoothing, chunk=chunk
    )
    log_p = model(source, target, source_tokens=st, target_tokens=tt).log_softmax(-1)
    want = torch.zeros(3, T - 1)
    for row, count in enumerate(WRITTEN):
        first = T - count if side == "left" else 0
        for i in range(first, first + count - 1):
            exact = -log_p[row, i, target[row, i + 1]]
            want[row, i] = (1 - smoothing) * exact - smoothing * log_p[row, i].mean()
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)
    assert found.dtype == torch.float32 and torch.equal(found == 0, want == 0)


def test_every_parameter_learns_and_pads_give_no_nan() -> None:
    model = made().train()
    st, tt = Tokens.padded(LENGTHS, "left"), Tokens.padded(WRITTEN, "right")
    losses = model.losses(ids(3, S, READ), ids(3, T, V), source_tokens=st, target_tokens=tt)
    losses.sum().backward()
    for name, x in model.named_parameters():
        assert x.grad is not None and x.grad.isfinite().all() and x.grad.abs().sum() > 0, name


def test_one_id_asks_for_nothing() -> None:
    found = made().losses(ids(3, S, READ), ids(3, 1, V))
    assert found.shape == (3, 0) and found.dtype == torch.float32


@pytest.mark.parametrize("name", ["dropout", "attention_dropout"])
def test_dropout_is_for_training(name: str) -> None:
    model, plain = made(TransformerConfig(**{**asdict(CONFIG), name: 0.3})), made()
    source, target = ids(2, S, READ), ids(2, T, V)
    assert torch.equal(model(source, target), plain(source, target))
    model.train()
    assert not torch.equal(model(source, target), model(source, target))


def test_dropout_takes_from_embeddings_with_their_positions() -> None:
    model = made(TransformerConfig(**{**asdict(CONFIG), "dropout": 0.5})).train()
    seen: list[Tensor] = []
    model.encoder.register_forward_pre_hook(lambda module, given: seen.append(given[0]))
    model.encode(ids(2, S, READ))
    assert 0.4 < float((seen[0] == 0).float().mean()) < 0.6


def test_it_learns_to_write_three_ids_backwards() -> None:
    torch.manual_seed(0)
    config = TransformerConfig(vocabulary=7, width=32, hidden=64, layers=1, heads=2, norm="pre")
    model = Transformer(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(80):
        source = torch.randint(2, 7, (32, 3))
        target = torch.cat((torch.zeros(32, 1, dtype=torch.int64), source.flip(1)), 1)
        optimizer.zero_grad()
        loss = model.losses(source, target).mean()
        loss.backward()
        optimizer.step()
    assert loss < 0.5 < math.log(5)


# --- Sizes, folders, refusals --------------------------------------------------------------------


def test_what_is_shared_is_one_parameter() -> None:
    model = Transformer(TransformerConfig(**{**asdict(CONFIG), "source_vocabulary": None}))
    assert model.source_embedding is None and model.head.weight is model.embedding.weight
    names = {name for name, _ in model.named_parameters()}
    assert "head.weight" not in names and "source_embedding.weight" not in names
    apart = Transformer(TransformerConfig(**{**asdict(CONFIG), "tied": False}))
    assert apart.head.weight is not apart.embedding.weight
    assert apart.source_embedding is not None and apart.source_embedding.num_embeddings == READ


def test_a_saved_model_is_given_back_bit_for_bit(tmp_path: Path) -> None:
    model = made(**PATTERNS, encoder_mechanism=recipe("additive(hidden=5)"))
    found = load(save(model, tmp_path / "saved"), kind=Transformer)
    assert found.config == CONFIG and found.model.choices() == model.choices()
    source, target = ids(2, S, READ), ids(2, T, V)
    assert torch.equal(found.model(source, target), model(source, target))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"heads": 3}, "width=22 is no multiple of heads=3"),
        ({"width": 23}, "width=23: an even number"),
        ({"layers": 0}, "layers=0: a whole number"),
        ({"decoder_layers": 0}, "writing_layers=0: a whole number"),
        ({"source_vocabulary": 0}, "read_vocabulary=0: a whole number"),
        ({"dropout": 1.0}, "dropout=1.0: a probability"),
        ({"attention_dropout": -0.1}, "attention_dropout=-0.1: a probability"),
        ({"norm_eps": 0.0}, "norm_eps=0.0"),
        ({"norm": "both"}, "norm='both'"),
        ({"activation": "tanh"}, "activation='tanh'"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        Transformer(TransformerConfig(**{**asdict(CONFIG), **change}))


@pytest.mark.parametrize("name", ["pattern", "encoder_pattern", "memory_pattern"])
def test_another_number_of_patterns_is_refused(name: str) -> None:
    wrong: list[Pattern] = [Full()] * 5
    with pytest.raises(InvalidArgument, match=r"5 .*patterns for [23] layers"):
        Transformer(CONFIG, **{name: wrong})  # type: ignore[arg-type]


def test_inputs_that_cannot_be_right_are_refused() -> None:
    model, source, target = made(), ids(2, S, READ), ids(2, T, V)
    cases: list[tuple[Tensor, Tensor, dict[str, Any], str]] = [
        (source + READ, target, {}, "source id .* the vocabulary has 29"),
        (source, target - V, {}, "target id -.* the vocabulary has 23"),
        (source.float(), target, {}, "source ids must be whole numbers"),
        (source[0], target, {}, "source ids must be whole numbers"),
        (source, target, {"source_tokens": Tokens.arange(0, 3)}, r"source_tokens has shape \(3,\)"),
        (
            source,
            target,
            {"target_tokens": Tokens.padded([T] * 3)},
            r"target_tokens has shape \(3, 7\)",
        ),
    ]
    for one, other, tokens, said in cases:
        with pytest.raises(InvalidArgument, match=said):
            model(one, other, **tokens)
