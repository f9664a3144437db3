"""Every mechanism shows what check_mechanism asks for; mechanisms with a fault do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Full, Pattern, Tokens, sliding_window
from eyeline.functional import attention
from eyeline.mechanisms import Heads, Mechanism, recipe
from eyeline.testing import Claims, check_mechanism

HEADS, KV_HEADS, WIDTH = 4, 2, 8
FULL, CAUSAL = Full(), Causal()
PROJECTED = Claims(linear_in_value=False, weights_sum_to_one=False)
ITS_OWN_KEYS = Claims(kv_heads=4)
CASES = [
    ("exact", FULL, Claims()),
    ("exact", CAUSAL, Claims()),
    ("exact", sliding_window(13), Claims()),
    ("additive", CAUSAL, Claims()),
    ("linear", FULL, Claims()),
    ("linear", CAUSAL, Claims()),
    ("linear(feature_map=favor, features=32)", Causal(), Claims()),
    ("linformer(length=67, k=11)", FULL, PROJECTED),
    ("compressed(factor=5, by=mean)", FULL, Claims()),
    ("compressed(factor=5, by=mean, local=true)", Causal(), Claims()),
    ("compressed(factor=5, by=conv)", Causal(), PROJECTED),
    ("compressed(factor=5, by=centroids)", FULL, Claims()),
    ("topk(k=5)", FULL, Claims()),
    ("topk(k=5)", Causal(), Claims()),
    ("threshold(t=0.05)", Causal(), Claims()),
    ("threshold(t=0.05)", sliding_window(13), Claims()),
    ("lsh(bucket_size=7, rounds=3)", FULL, ITS_OWN_KEYS),
    ("lsh(bucket_size=7, rounds=3)", Causal(), ITS_OWN_KEYS),
    ("lsh(bucket_size=7, rounds=3, by=buckets, buckets=4)", Causal(), ITS_OWN_KEYS),
    ("kmeans(clusters=5, window=7)", FULL, Claims()),
    ("kmeans(clusters=5, window=7)", sliding_window(13), Claims()),
    ("extra_keys(count=3)", CAUSAL, Claims(weights_sum_to_one=False, linear_in_value=False)),
    ("clustered(clusters=5, topk=7)", FULL, Claims()),
    ("sinkhorn(block=7)", FULL, Claims()),
    ("sinkhorn(block=7)", Causal(), Claims()),
    ("sinkhorn(block=1, network=table, blocks=67)", Causal(), Claims()),
]


def made(text: str, pattern: Pattern, claims: Claims) -> Mechanism:
    torch.manual_seed(0)
    heads = Heads(claims.heads, claims.kv_heads, claims.head_dim)
    return recipe(text).make(pattern, heads)


@pytest.mark.parametrize(("text", "pattern", "claims"), CASES, ids=str)
def test_mechanism(text: str, pattern: Pattern, claims: Claims) -> None:
    check_mechanism(lambda: made(text, pattern, claims), claims)


class Faulty(Mechanism):
    """Causal attention with something wrong; see each test."""

    causality, pattern = "functional", Causal()

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault = fault

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        q_tokens: Tokens | None = None,
        k_tokens: Tokens | None = None,
    ) -> Tensor:
        pattern: Pattern = self.pattern
        if self.fault == "future":
            pattern = Full()
        elif self.fault == "documents" and k_tokens is not None:
            q_tokens = k_tokens = Tokens(k_tokens.positions)
        elif self.fault == "pads" and k_tokens is not None:
            k_tokens = q_tokens = Tokens.arange(0, key.shape[2])
        elif self.fault == "batch":
            key = key + value.mean() - value.mean(1, keepdim=True).mean()
            key = key + key.mean(0, keepdim=True)
        out = attention(query, key, value, pattern, q_tokens=q_tokens, k_tokens=k_tokens)
        if self.fault == "values":
            out = out + 1.0
        elif self.fault == "draws":
            out = out * (1.0 + 1e-12 * torch.rand((), dtype=out.dtype))
        elif self.fault == "steps" and query.shape[2] < key.shape[2]:
            out = out * 1.001
        elif self.fault == "type":
            out = out.float()
        return out


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("values", "v = 0 does not give 0"),
        ("type", "torch.float32"),
        ("batch", "depends on another"),
        ("pads", "reach real tokens"),
        ("future", "reaches what stands before"),
        ("documents", "a document reaches the next one"),
        ("draws", "two calls in eval differ"),
        ("steps", "steps of"),
    ],
)
def test_faults_are_found(fault: str, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        check_mechanism(lambda: Faulty(fault), Claims(lengths=(29,)))


def test_causality_must_be_declared() -> None:
    class Undeclared(Faulty):
        causality = "perhaps"  # type: ignore[assignment]

    with pytest.raises(AssertionError, match="causality is one of"):
        check_mechanism(lambda: Undeclared("none"))


def test_a_module_is_no_mechanism() -> None:
    with pytest.raises(AssertionError, match="Identity is no Mechanism"):
        check_mechanism(lambda: nn.Identity())  # type: ignore[arg-type, return-value]
