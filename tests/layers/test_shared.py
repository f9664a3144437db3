"""A layer whose keys are its queries: one projection under two names."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from eyeline import Causal, Tokens
from eyeline.checkpoints.folder import SafeTensors
from eyeline.encodings import Rotary
from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.layers import MultiHeadAttention
from eyeline.layers.conversion import to_torch
from eyeline.layers.packed import pack
from eyeline.loading import load, save
from eyeline.loading.weights import fill, own_names
from eyeline.mechanisms import Exact, recipe
from eyeline.mechanisms.routed.lsh import LSH
from eyeline.models import Bert, BertConfig
from eyeline.models.base import Part
from eyeline.planning.cost import Asked
from layers.dense import drawn, heads_of, random

D, HEADS, LENGTH = 12, 3, 23


def layer(**options: object) -> MultiHeadAttention:
    by = str(options.pop("by", "buckets"))
    ours = LSH(5, 3, pattern=Causal(), by=by, buckets=4)  # type: ignore[arg-type]
    made = MultiHeadAttention(D, HEADS, mechanism=ours, **options).double()  # type: ignore[arg-type]
    drawn(made)
    return made


def test_one_projection_makes_both() -> None:
    ours, x = layer(), random(2, LENGTH, D)
    assert ours.k_proj is ours.q_proj
    q, v = (heads_of(x, linear, D // HEADS) for linear in (ours.q_proj, ours.v_proj))
    seen = ours.mechanism(q, q, v).transpose(1, 2).flatten(2)
    want = ours.out_proj(seen)
    torch.testing.assert_close(ours(x), want, rtol=0, atol=1e-10)
    (one,) = torch.autograd.grad(ours(x).sum(), ours.q_proj.weight)
    (two,) = torch.autograd.grad(want.sum(), ours.q_proj.weight)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-10)


def test_it_is_multiplied_once() -> None:
    ours, calls = layer(), []
    ours.q_proj.register_forward_hook(lambda *_: calls.append(1))
    ours(random(2, LENGTH, D))
    assert len(calls) == 1


def test_parameters_count_once_and_are_drawn_once() -> None:
    ours, apart = layer(), MultiHeadAttention(D, HEADS)
    counts = [sum(p.numel() for p in x.parameters()) for x in (ours, apart)]
    assert counts[0] == counts[1] - D * D - D
    assert len(list(ours.parameters())) == 6
    ours.reset_parameters()
    bound = (6 / (3 * D)) ** 0.5  # torch's packed matrix would have 2d rows
    assert 0.9 * bound < float(ours.q_proj.weight.detach().abs().max()) <= bound


def test_work_projects_once() -> None:
    asked = Asked(LENGTH)
    ours, apart = layer().work(asked), MultiHeadAttention(D, HEADS).work(asked)
    assert ours.projections == apart.projections - LENGTH * D * D
    assert layer().work(Asked(4, LENGTH)).projections == (2 * LENGTH + 4) * D * D


def test_state_and_copies_keep_it_one() -> None:
    ours, x = layer(), random(2, LENGTH, D)
    state = ours.state_dict()
    assert {"q_proj.weight", "k_proj.weight"} <= set(state)
    other = MultiHeadAttention(D, HEADS, mechanism=ours.mechanism).double()
    for assign in (False, True):
        other.load_state_dict({k: v.clone() for k, v in state.items()}, assign=assign)
        assert other.k_proj.weight is other.q_proj.weight and torch.equal(other(x), ours(x))
    twin = copy.deepcopy(ours)
    assert twin.k_proj is twin.q_proj and torch.equal(twin(x), ours(x))
    names = own_names(ours)
    assert "q_proj.weight" in names and "k_proj.weight" not in names


@pytest.mark.parametrize("name", ["weight", "bias"])
def test_two_projections_are_not_loaded_into_one(name: str) -> None:
    ours = nn.Sequential(layer())
    state = {key: x.clone() for key, x in ours.state_dict().items()}
    state[f"0.k_proj.{name}"] += 1.0
    with pytest.raises(RuntimeError, match=rf"0.q_proj.{name} and 0.k_proj.{name} differ"):
        ours.load_state_dict(state)
    apart = nn.Sequential(MultiHeadAttention(D, HEADS)).double()
    with pytest.raises(RuntimeError, match="one projection"):
        ours.load_state_dict(apart.state_dict())


def test_what_cannot_be_compared_is_loaded() -> None:
    """A diverged checkpoint, weights of another type, and a layer without memory."""
    ours, other = layer(), layer()
    with torch.no_grad():
        ours.q_proj.weight[0, 0] = float("nan")
    state = {key: x.clone() for key, x in ours.state_dict().items()}
    state["k_proj.weight"] = state["k_proj.weight"].to(torch.bfloat16)
    for strict in (True, False):
        other.load_state_dict(state, strict=strict)
        assert other.q_proj.weight[0, 0].isnan()
    with torch.device("meta"):
        empty = layer()
    empty.load_state_dict(empty.state_dict(), assign=True)
    empty.load_state_dict(ours.state_dict(), assign=True)
    assert (
        empty.k_proj.weight is empty.q_proj.weight is ours.q_proj.weight
        or not empty.q_proj.weight.is_meta
    )


def test_safetensors(tmp_path: Path) -> None:
    ours = layer()
    state = ours.state_dict()
    save_file({name: state[name] for name in own_names(ours)}, tmp_path / "a.safetensors")
    other = layer()
    with torch.no_grad():
        other.q_proj.weight.zero_()
    other.load_state_dict(load_file(tmp_path / "a.safetensors"), strict=False)
    assert all(torch.equal(x, y) for x, y in zip(ours.state_dict().values(),
               other.state_dict().values(), strict=True))  # fmt: skip


def test_weights_that_were_not_shared_are_not_taken_by_half(tmp_path: Path) -> None:
    apart = MultiHeadAttention(D, HEADS).double()
    save_file(apart.state_dict(), tmp_path / "model.safetensors")
    names = {name: [Part(name)] for name in apart.state_dict()}
    tensors = SafeTensors({tmp_path / "model.safetensors": None})
    fill(apart, tensors, names, source=tmp_path)
    with pytest.raises(CheckpointError, match=r"q_proj.weight and k_proj.weight are one param"):
        fill(layer(), tensors, names, source=tmp_path)


def test_a_saved_model_comes_back(tmp_path: Path) -> None:
    config = BertConfig(vocabulary=31, width=D, hidden=7, layers=2, heads=HEADS, trained_length=29)
    ours, ids = Bert(config, mechanism=recipe("lsh(bucket_size=3)")).eval(), torch.arange(23)[None]
    save(ours, tmp_path)
    for packed in (False, True):
        back = load(tmp_path, kind=Bert, packed=packed).model
        assert torch.equal(ours(ids), back(ids))
        attention = back.blocks[0].attention
        assert attention.k_proj.weight is attention.q_proj.weight


@pytest.mark.filterwarnings("ignore:Dynamo detected a call")
def test_a_graph_goes_on_after_it() -> None:
    ours, x = layer(), random(2, LENGTH, D)
    compiled = torch.compile(ours, backend="eager")
    assert torch.equal(compiled(x), ours(x))
    (one,), (two,) = (
        torch.autograd.grad(y(x).square().sum(), ours.q_proj.weight) for y in (compiled, ours)
    )
    assert torch.equal(one, two)


def read(ours: MultiHeadAttention, x: Tensor, step: int) -> Tensor:
    cache, parts = ours.new_cache(len(x)), []
    for start in range(0, x.shape[1], step):
        now = Tokens.arange(start, min(start + step, x.shape[1]))
        cache.cache.advance(now)
        parts.append(ours(x[:, start : start + step], q_tokens=now, cache=cache))
    return torch.cat(parts, 1)


@torch.no_grad()
@pytest.mark.parametrize("step", [1, 4])
def test_rotary_caches_and_packed_weights(step: int) -> None:
    ours, x = layer(position=Rotary(D // HEADS)), random(2, LENGTH, D)
    whole = ours(x)
    torch.testing.assert_close(read(ours, x, step), whole, rtol=0, atol=1e-10)
    small = layer().float()
    want = read(small, x.float(), step)
    assert pack(small)  # replaces q_proj; k_proj holds the same weight still
    if small.k_proj is not small.q_proj:
        small.k_proj.register_forward_hook(lambda *_: pytest.fail("keys are made apart"))
    torch.testing.assert_close(read(small, x.float(), step), want, rtol=0, atol=1e-4)


def test_another_mechanism_afterwards() -> None:
    """A mechanism that is exchanged later finds what the layer has, or refuses it."""
    ours, x = layer(), random(2, LENGTH, D)
    ours.mechanism = Exact(Causal())
    assert ours(x).isfinite().all()
    apart = MultiHeadAttention(D, HEADS).double()
    apart.mechanism = layer().mechanism
    with pytest.raises(InvalidArgument, match="pass the query as the key"):
        apart(x)


def test_refusals() -> None:
    with pytest.raises(InvalidArgument, match="kdim=7 is not embed_dim=12"):
        layer(kdim=7)
    with pytest.raises(InvalidArgument, match="num_kv_heads=num_heads"):
        layer(num_kv_heads=1)
    with pytest.raises(NotSupported, match="cannot look as LSH"):
        to_torch(layer())
