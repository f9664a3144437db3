"""What each modifier is: its numbers, its layout, what it starts as, and what it refuses."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from eyeline import Causal, attention
from eyeline.errors import InvalidArgument
from eyeline.scores import (
    ALiBi,
    OffsetBias,
    OffsetFactor,
    ScoreMod,
    Shaw,
    T5Bias,
    TransformerXL,
)  # fmt: skip
from eyeline.scores.by_distance import Bias
from scores.formulas import t5_bucket


def tensors(heads: int = 4, width: int = 6, value_width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    q, k = (torch.randn(1, heads, 11, width) for _ in range(2))
    return q, k, torch.randn(1, heads, 11, value_width)


def test_alibi_slopes_of_the_paper() -> None:
    assert ALiBi(8).per_head == tuple(2.0**-h for h in range(1, 9))
    assert ALiBi(1).per_head == (2.0**-8,)
    twelve = ALiBi(12).per_head
    assert twelve[:8] == ALiBi(8).per_head
    assert twelve[8:] == pytest.approx([2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5])
    assert ALiBi(3).per_head == (2.0**-4, 2.0**-8, 2.0**-2)


def test_alibi_is_a_value() -> None:
    assert ALiBi(6) == ALiBi(6) and hash(ALiBi(6)) == hash(ALiBi(6)) and ALiBi(6) != ALiBi(5)
    own = ALiBi(2, slopes=[1, 0.5])  # type: ignore[arg-type]
    assert own.per_head == (1.0, 0.5) and own == ALiBi(2, slopes=(1.0, 0.5))
    distances = torch.tensor([-2, 0, 3])
    assert own.curve(distances).tolist() == [[-2, 0, -3], [-1, 0, -1.5]]


def test_alibi_by_hand() -> None:
    q, k, v = torch.zeros(1, 1, 3, 2), torch.zeros(1, 1, 3, 2), torch.eye(3)[None, None]
    weight = attention(q, k, v, Causal(), score_mod=ALiBi(1, slopes=(1.0,)))[0, 0]
    e = torch.e
    right = [[1, 0, 0], [1, e, 0], [1, e, e**2]]
    torch.testing.assert_close(weight, torch.tensor([[x / sum(r) for x in r] for r in right]))


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize(("buckets", "most"), [(32, 128), (8, 20), (12, 1000), (4, 3), (64, 33)])
def test_t5_buckets_one_by_one(both: bool, buckets: int, most: int) -> None:
    mod = T5Bias(2, num_buckets=buckets, max_distance=most, bidirectional=both)
    distances = torch.arange(-3 * most, 3 * most + 1)
    right = [t5_bucket(d, buckets, most, both=both) for d in distances.tolist()]
    assert mod.buckets(distances).tolist() == right
    assert min(right) == 0 and max(right) == buckets - 1


def test_t5_edges_of_the_published_sizes() -> None:
    both, one = (T5Bias(1, bidirectional=x) for x in (True, False))
    at = torch.tensor([-128, -127, -91, -90, -16, -8, -7, -1, 0, 1, 7, 8, 16, 90, 91, 5000])
    assert both.buckets(at).tolist() == [15, 15, 15, 14, 10, 8, 7, 1, 0, 17, 23, 24, 26, 30, 31, 31]
    at = torch.tensor([-5000, -113, -112, -17, -16, -15, -1, 0, 1, 40])
    assert one.buckets(at).tolist() == [31, 31, 30, 16, 16, 15, 1, 0, 0, 0]


MODULES: list[Callable[[], ScoreMod]] = [
    lambda: T5Bias(4, bidirectional=True),
    lambda: OffsetBias(4, 3),
    lambda: OffsetFactor(4, 3),
    lambda: Shaw(6, 3),
    lambda: Shaw(6, 3, num_heads=4),
    lambda: TransformerXL(4, 6),
]


@pytest.mark.parametrize("make", MODULES)
def test_modules_copy_store_and_train(make: Callable[[], ScoreMod]) -> None:
    q, k, v = tensors()
    mod = make()
    other = copy.deepcopy(mod)
    assert isinstance(mod, torch.nn.Module) and isinstance(other, torch.nn.Module)
    before = attention(q, k, v, Causal(), score_mod=other)
    optimizer = torch.optim.SGD(mod.parameters(), lr=0.02)
    for _ in range(3):
        optimizer.zero_grad()
        attention(q, k, v, Causal(), score_mod=mod)[..., 0].square().sum().backward()
        optimizer.step()
    after = attention(q, k, v, Causal(), score_mod=mod)
    assert not torch.allclose(before, after), "training changed nothing"
    other.load_state_dict(mod.state_dict())
    assert torch.equal(attention(q, k, v, Causal(), score_mod=other), after)
    assert after[..., 0].square().sum() < before[..., 0].square().sum()
    assert type(mod).__name__ in repr(mod) and "=" in repr(mod)


@pytest.mark.parametrize("make", MODULES)
@pytest.mark.parametrize("learned", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("given", [torch.float64, torch.bfloat16, torch.float16])
def test_parameters_of_any_dtype(
    make: Callable[[], ScoreMod], learned: torch.dtype, given: torch.dtype
) -> None:
    mod = make()
    assert isinstance(mod, torch.nn.Module)
    mod.to(learned)
    q, k, v = (x.to(given).requires_grad_() for x in tensors())
    for backend in ("tiles", "reference"):
        out = attention(q, k, v, Causal(), score_mod=mod, backend=backend)
        assert out.dtype == given and out.isfinite().all()
        grads = torch.autograd.grad(out.sum(), [q, *mod.parameters()])
        assert all(g.isfinite().all() and g.dtype in (given, learned) for g in grads)


def test_what_they_start_as() -> None:
    q, k, v = tensors()
    plain = attention(q, k, v)
    assert torch.equal(attention(q, k, v, score_mod=OffsetBias(4, 3), backend="reference"),
                       attention(q, k, v, backend="reference"))  # fmt: skip
    torch.testing.assert_close(attention(q, k, v, score_mod=OffsetFactor(4, 3)), plain)
    for mod in (T5Bias(4, bidirectional=False), Shaw(64, 9), TransformerXL(4, 64)):
        for parameter in mod.parameters():
            assert 0.005 < parameter.std() < 0.04


def test_layouts() -> None:
    assert T5Bias(3, num_buckets=10, bidirectional=True).weight.shape == (10, 3)
    assert OffsetBias(3, 7).weight.shape == OffsetFactor(3, 7).weight.shape == (15, 3)
    assert Shaw(6, 7).key.shape == (15, 6)
    assert Shaw(6, 7, value_dim=5, num_heads=3).state_dict().keys() == {"key", "value"}
    assert Shaw(6, 7, value_dim=0).state_dict().keys() == {"key"}
    xl = TransformerXL(3, 6)
    assert xl.weight.shape == (18, 18) and xl.u.shape == xl.v.shape == (3, 6)
    assert TransformerXL(3, 6, width=10).weight.shape == (18, 10)


def test_reach_says_where_a_curve_ends() -> None:
    for mod in (T5Bias(4, bidirectional=False), OffsetBias(4, 3), OffsetFactor(4, 3), Shaw(6, 2)):
        for step in mod.steps():
            low, high = step.reach
            assert low is not None and high is not None and step.curve is not None
            ends = step.curve(torch.tensor([low - 1000, low, low + 1, high - 1, high, high + 1000]))
            assert torch.equal(ends[:, 0], ends[:, 1]) and torch.equal(ends[:, 4], ends[:, 5])


def test_transformer_xl_relative_places_are_rotations() -> None:
    """R[i - j] · R[i' - j] depends on i - i' alone, over negative distances too."""
    mod = TransformerXL(1, 8).double()
    torch.nn.init.eye_(mod.weight)
    r = mod.places(torch.arange(-9, 10))[0].detach()
    inner = r @ r.T
    assert torch.allclose(inner[1:, 1:], inner[:-1, :-1])
    assert r[9].tolist() == [0, 1] * 4  # distance 0
    assert float(r[8, 0]) == pytest.approx(math.sin(1.0))  # one back


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: ALiBi(0), "num_heads=0"),
    (lambda: ALiBi(2.0), "num_heads=2.0"),  # type: ignore[arg-type]
    (lambda: ALiBi(3, slopes=(1.0, 2.0)), r"slopes=\(1.0, 2.0\): 3 finite"),
    (lambda: ALiBi(1, slopes=(float("nan"),)), "slopes"),
    (lambda: T5Bias(0, bidirectional=True), "num_heads=0"),
    (lambda: T5Bias(2, num_buckets=7, bidirectional=True), "num_buckets=7"),
    (lambda: T5Bias(2, num_buckets=2, bidirectional=True), "num_buckets=2: at least 4"),
    (lambda: T5Bias(2, num_buckets=1, bidirectional=False), "num_buckets=1"),
    (lambda: T5Bias(2, max_distance=8, bidirectional=True), "max_distance=8: more than 8"),
    (lambda: OffsetBias(2, 0), "OffsetBias max_distance=0"),
    (lambda: OffsetFactor(-1, 3), "OffsetFactor num_heads=-1"),
    (lambda: Shaw(0, 3), "head_dim=0"),
    (lambda: Shaw(4, 0), "max_distance=0"),
    (lambda: Shaw(4, 2, value_dim=-1), "value_dim=-1"),
    (lambda: Shaw(4, 2, num_heads=0), "num_heads=0"),
    (lambda: TransformerXL(3, 0), "head_dim=0"),
    (lambda: TransformerXL(3, 3), "width=9: an even number"),
]


@pytest.mark.parametrize(("make", "message"), WRONG, ids=[message for _, message in WRONG])
def test_constructors_refuse(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        make()


MISFITS: list[tuple[ScoreMod, str]] = [
    (ALiBi(8), "ALiBi was made for 8 heads, the query has 4"),
    (T5Bias(2, bidirectional=True), "T5Bias was made for 2 heads, the query has 4"),
    (OffsetBias(1, 3), "OffsetBias was made for 1 heads, the query has 4"),
    (OffsetFactor(8, 3), "OffsetFactor was made for 8 heads, the query has 4"),
    (Shaw(5, 3), "Shaw key vectors are 5 wide, a head's are 6"),
    (Shaw(6, 3, value_dim=7), "Shaw value vectors are 7 wide, a head's are 6"),
    (Shaw(6, 3, num_heads=2), "Shaw was made for 2 heads, the query has 4"),
    (TransformerXL(2, 6), "TransformerXL was made for 2 heads, the query has 4"),
    (TransformerXL(4, 8), "TransformerXL vectors are 8 wide, a head's are 6"),
]


@pytest.mark.parametrize(("mod", "message"), MISFITS, ids=[message for _, message in MISFITS])
def test_calls_refuse_what_was_made_for_others(mod: ScoreMod, message: str) -> None:
    q, k, v = tensors()
    with pytest.raises(InvalidArgument, match=message):
        attention(q, k, v, score_mod=mod)
    with pytest.raises(InvalidArgument, match=message):
        attention(q, k, v, score_mod=[ALiBi(4), mod])


def test_a_class_in_place_of_a_value_is_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(InvalidArgument, match="ALiBi"):
        attention(q, k, v, score_mod=ALiBi)
    with pytest.raises(TypeError, match="num_heads"):
        ALiBi()  # type: ignore[call-arg]


def test_a_curve_of_a_wrong_shape_is_refused_by_every_kernel() -> None:
    class Wrong(ScoreMod):
        def __init__(self, curve: Callable[[Tensor], Tensor]) -> None:
            self.curve = curve

        def steps(self) -> tuple[Bias, ...]:
            return (Bias(self.curve),)

    q, k, v = tensors()
    for curve in (lambda d: d, lambda d: d.expand(8, -1) * 0.1, lambda d: d[None, 1:]):
        for backend in ("tiles", "reference", "sdpa"):
            with pytest.raises(InvalidArgument, match="a curve gave"):
                attention(q, k, v, score_mod=Wrong(curve), backend=backend)
