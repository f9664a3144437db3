"""Documents that tokens name are apart: every answer equals a loop over the documents.

The pattern never names them: a word forgotten must not let one document see the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from operator import itemgetter
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline import attention, attention_weights, cost, dense_mask, max_path_length, pairs, plan
from eyeline.errors import InvalidArgument, PatternSyntaxError
from eyeline.exact import attention_with_lse
from eyeline.kernels import KERNELS
from eyeline.mechanisms import Exact, ExtraKeys, Heads, recipe
from eyeline.models import GPT2, Bert, BertConfig, GPT2Config, Llama, LlamaConfig
from eyeline.patterns import (
    Causal,
    Chunks,
    Dilated,
    FixedColumns,
    Full,
    Global,
    Pattern,
    PerHead,
    SameSegment,
    Sinks,
    Strided,
    Window,
    longformer,
    parse,
    prefix_lm,
    streaming,
)
from eyeline.testing.pattern import coverage
from eyeline.tokens import NOBODY, Tokens

L, B, H, HK, E = 53, 2, 4, 2, 6
SIZES = [19, 1, 0, 30, 3]
PATTERNS: list[Pattern] = [
    Full(), Causal(), ~Causal(), Sinks(2), Causal() & Sinks(1) | Window(3, 0), Global([0, 2]),
    Window(5, 2), ~Window(4, 4), streaming(7, 2), Strided(4), Causal() & Strided(3), Chunks(5, 1),
    Dilated(3, 2, 1), FixedColumns(5, 2), prefix_lm(4), longformer(3, 2),
    PerHead([Causal(), Strided(4), Global(1) | Window(1, 1), ~Sinks(3)]),
]  # fmt: skip
SITUATIONS = {
    "packed": Tokens.packed(SIZES),
    "pads at the end": Tokens.packed([19, 1, 20], length=L),
    "pads at the start": Tokens.numbered([-1] * 9 + [4] * 20 + [2] * 24),
    "pads between": Tokens.numbered([0] * 11 + [-1] * 5 + [0] * 9 + [1] * 13 + [-1] + [3] * 14),
    "mixed": Tokens.numbered(torch.arange(L) % 3),
    "a batch of packings": Tokens.packed([SIZES, [30, 12]], length=L),
}


def heads(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(B, count, L, E, generator=generator, dtype=torch.float64)
        for count in (H, HK, HK)
    )
    return query, key, value


def documents(tokens: Tokens) -> Iterator[tuple[int, Tensor]]:
    """The batch row and the slots of each document, in the order of its positions."""
    assert tokens.documents is not None
    for row in range(B):
        own = tokens.row(row)
        assert own.documents is not None
        for number in own.documents[own.positions != NOBODY].unique():
            slots = ((own.documents == number) & (own.positions != NOBODY)).nonzero()[:, 0]
            yield row, slots[own.positions[slots].argsort()]


def looped(call: Callable[..., Tensor], tokens: Tokens, inputs: tuple[Tensor, ...]) -> Tensor:
    """The outputs of one call for each document alone, at positions 0, 1, …; 0 for padding."""
    out = torch.zeros(B, H, L, E, dtype=torch.float64)
    for row, slots in documents(tokens):
        # Explicit tokens: a position that a pattern names may lie past the end of a document.
        own = Tokens.arange(0, len(slots))
        alone = call(*(x[row : row + 1, :, slots] for x in inputs), q_tokens=own, k_tokens=own)
        out[row, :, slots] = alone[0]
    return out


def close(found: Tensor, right: Tensor) -> None:
    torch.testing.assert_close(found, right, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_attention_equals_a_loop(pattern: Pattern, name: str) -> None:
    tokens, inputs = SITUATIONS[name], heads()
    right = looped(partial(attention, pattern=pattern, backend="reference"), tokens, inputs)
    for backend in ("auto", "reference", "tiles", "sdpa"):
        given = [x.clone().requires_grad_(backend != "sdpa") for x in inputs]
        out = attention(*given, pattern, q_tokens=tokens, k_tokens=tokens, backend=backend)
        close(out.detach(), right)
        if backend == "tiles":
            looped_inputs = tuple(x.clone().requires_grad_() for x in inputs)
            looped(partial(attention, pattern=pattern), tokens, looped_inputs).sum().backward()
            out.sum().backward()
            for x, y in zip(given, looped_inputs, strict=True):
                close(x.grad, y.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
def test_what_is_derived_equals_a_loop(pattern: Pattern) -> None:
    """The mask, its pairs, cost and longest path, and the plan, of one sequence and head."""
    tokens, rule = SITUATIONS["packed"], pattern.at(0, 2)
    mask = dense_mask(rule, q_tokens=tokens, k_tokens=tokens)
    alone = [Tokens.arange(0, size) for size in SIZES if size]
    masks = [dense_mask(rule, q_tokens=own, k_tokens=own) for own in alone]
    right = torch.block_diag(*masks).bool()
    assert torch.equal(mask, right)
    assert pairs(rule, q_tokens=tokens, k_tokens=tokens) == int(right.sum())
    made = plan(rule, q_tokens=tokens, k_tokens=tokens, tile=4)
    assert torch.equal(coverage(made), right.long())
    longest = max(max_path_length(rule, tokens=own) for own in alone)
    assert max_path_length(rule, tokens=tokens) == longest
    counted = cost(rule, q_tokens=tokens, k_tokens=tokens, heads=1, head_dim=E)
    assert counted.pairs == int(right.sum())


def test_a_plan_finds_whole_tiles_within_documents() -> None:
    """Documents cut the tiles at their edges only; no others are computed."""
    tokens = Tokens.packed([512, 512, 1024])
    made = plan(Full(), q_tokens=tokens, k_tokens=tokens)
    assert made.area == pairs(Full(), q_tokens=tokens, k_tokens=tokens) == 512**2 * 2 + 1024**2
    causal = plan(Causal(), q_tokens=tokens, k_tokens=tokens)
    assert causal.area < 0.6 * made.area


@pytest.mark.parametrize("kernel", [kernel.NAME for kernel in KERNELS if kernel.NAME != "flex"])
def test_no_kernel_lets_a_document_see_another(kernel: str) -> None:
    """A word forgotten: plain Causal(). A later document is equal to the bit."""
    tokens, before, other = Tokens.packed([5, 8]), heads(), heads(1)
    after = [torch.cat((y[:, :, :5], x[:, :, 5:]), 2) for x, y in zip(before, other, strict=True)]
    outs = []
    for query, key, value in (before, after):
        q = query[:, :, 5:13]
        options: dict[str, Any] = {"score_mod": _plain} if kernel == "short" else {}
        options |= {"q_tokens": tokens.last(8), "k_tokens": tokens, "backend": kernel}
        outs.append(attention(q, key[:, :, :13], value[:, :, :13], Causal(), **options))
    assert torch.equal(*outs) and bool(outs[0].any())


def _plain(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return score


def test_blocks_of_flex_attention_keep_documents_apart() -> None:
    from eyeline import block_mask

    tokens = Tokens.packed([200, 56, 300])
    found = block_mask(Causal(), q_tokens=tokens, k_tokens=tokens)
    slots = torch.arange(556)
    seen = found.mask_mod(torch.zeros(1), torch.zeros(1), slots[:, None], slots[None])
    assert torch.equal(seen, dense_mask(Causal(), q_tokens=tokens, k_tokens=tokens))


@pytest.mark.parametrize("name", SITUATIONS)
def test_weights_and_log_sums_equal_a_loop(name: str) -> None:
    tokens, (query, key, value) = SITUATIONS[name], heads()
    both = {"q_tokens": tokens, "k_tokens": tokens}
    weight = attention_weights(query, key, Sinks(2) | Window(3, 3), **both)
    lse = attention_with_lse(query, key, value, Sinks(2) | Window(3, 3), **both)[1]
    right, sums = torch.zeros_like(weight), torch.full_like(lse, -torch.inf)
    for row, slots in documents(tokens):
        q, k, v = (x[row : row + 1, :, slots] for x in (query, key, value))
        own = attention_weights(q, k, Sinks(2) | Window(3, 3))[0]
        right[row][:, slots[:, None], slots] = own
        sums[row, :, slots] = attention_with_lse(q, k, v, Sinks(2) | Window(3, 3))[1][0]
    close(weight, right)
    close(lse, sums)


ALONE = [
    ("exact", streaming(7, 2)), ("additive", Causal()), ("linear", Full()), ("linear", Causal()),
    ("linear(feature_map=favor, features=16)", Causal()), ("topk(k=5)", Sinks(9)),
    ("threshold(t=0.05)", Causal()), ("lsh(bucket_size=99, rounds=1)", Causal()),
    ("extra_keys(count=2)", Window(3, 0)), ("kmeans(clusters=1, window=99)", Window(7, 3)),
    ("clustered(clusters=60, topk=60)", Full()), ("sinkhorn(block=64)", Causal()),
]  # fmt: skip
"""Mechanisms with options under which what one document is given does not depend on others."""


@pytest.mark.parametrize("name", SITUATIONS)
@pytest.mark.parametrize(("text", "pattern"), ALONE, ids=str)
def test_mechanisms_equal_a_loop(text: str, pattern: Pattern, name: str) -> None:
    torch.manual_seed(0)
    shared = text.startswith("lsh")
    mechanism = recipe(text).make(pattern, Heads(H, H if shared else HK, E)).double().eval()
    tokens, (query, key, value) = SITUATIONS[name], heads()
    if shared:
        key, value = query, value.repeat_interleave(H // HK, 1)
    with torch.no_grad():
        out = mechanism(query, key, value, q_tokens=tokens, k_tokens=tokens)
        close(out, looped(mechanism, tokens, (query, key, value)))


def test_scores_by_distance_equal_a_loop() -> None:
    from eyeline import ALiBi, T5Bias

    tokens, inputs = SITUATIONS["packed"], heads()
    for mod in (ALiBi(H), T5Bias(H, bidirectional=True).double()):
        torch.manual_seed(0)
        right = looped(partial(attention, pattern=Causal(), score_mod=mod), tokens, inputs)
        both = {"q_tokens": tokens, "k_tokens": tokens, "score_mod": mod}
        close(attention(*inputs, Causal(), **both).detach(), right.detach())


def models() -> Iterator[tuple[str, Any]]:
    torch.manual_seed(0)
    yield "gpt2", GPT2(GPT2Config(89, 24, 37, 2, 4, 31), streaming(7, 2))
    llama = LlamaConfig(
        vocabulary=89, width=24, hidden=37, layers=2, heads=4, kv_heads=2, head_dim=6,
        trained_length=31, rotary_base=97.0, norm_eps=2**-16,
    )  # fmt: skip
    yield "llama", Llama(llama, Causal() & (Window(4, 0) | Sinks(2)))
    yield "llama, recounted", Llama(llama, streaming(7, 2), encodings="recounted")


@pytest.mark.parametrize(("name", "model"), list(models()), ids=[name for name, _ in models()])
def test_models_read_packed_texts_as_alone(name: str, model: Any) -> None:
    """Longer together than the positions that were learned; in one call, and in steps."""
    model = model.double().eval()
    ids, tokens = torch.randint(89, (1, L)), Tokens.packed(SIZES)
    with torch.no_grad():
        alone = torch.cat([model(part) for part in ids.split(SIZES, 1) if part.numel()], 1)
        close(model(ids, q_tokens=tokens), alone)
        for size in (1, 7, 23):
            caches = model.new_caches(batch=1)
            steps = []
            for start in range(0, L, size):
                part = tokens.mapped(itemgetter(slice(start, start + size)))
                step = ids[:, start : start + size]
                steps.append(model(step, q_tokens=part, caches=caches))
            if name != "llama, recounted":
                close(torch.cat(steps, 1), alone)


def test_encodings_may_use_other_positions() -> None:
    """Patterns compare positions; what is added and what turns uses encoding_positions."""
    for _, model in list(models())[:2]:
        model = model.double().eval()
        ids, places = torch.randint(89, (1, 11)), torch.arange(11)
        shifted = Tokens(places, encoding_positions=(places * 5) % 13)
        with torch.no_grad():
            out, plain = model(ids, q_tokens=shifted), model(ids)
            assert (out - plain).abs().max() > 1e-3
            same = Tokens(places + 9, encoding_positions=places)
            full = type(model)(model.config, Causal()).double().eval()
            close(full(ids, q_tokens=same), full(ids))


def test_the_word_is_gone_and_says_why() -> None:
    with pytest.raises(PatternSyntaxError, match=r"apart under every pattern.*same_segment"):
        parse("causal & same_document")
    import eyeline

    assert not hasattr(eyeline, "SameDocument")


def test_segments_are_what_patterns_compare() -> None:
    """Images in a text: causal, and both ways within each image; documents stay apart."""
    tokens = Tokens.packed([8, 8])
    # Two images, of the segments 1 and 2; each word is a segment of its own.
    tokens = replace(tokens, segments=torch.tensor([3, 1, 1, 1, 4, 2, 2, 5] * 2))
    mask = dense_mask(Causal() | SameSegment(), q_tokens=tokens, k_tokens=tokens)
    assert mask[1, 3] and mask[5, 6] and not mask[0, 4] and not mask[9, 3] and mask[9, 11]
    assert not (mask[:8, 8:].any() or mask[8:, :8].any())


def test_sides_that_name_different_things_are_refused() -> None:
    inputs, plain = heads(), Tokens.arange(0, L)
    for named in (SITUATIONS["packed"], Tokens(torch.arange(L), segments=torch.arange(L))):
        for q, k in ((named, plain), (plain, named)):
            for ask in (
                lambda q=q, k=k: attention(*inputs, q_tokens=q, k_tokens=k),
                lambda q=q, k=k: plan(Causal(), q_tokens=q, k_tokens=k),
                lambda q=q, k=k: dense_mask(Causal(), q_tokens=q, k_tokens=k),
            ):
                with pytest.raises(InvalidArgument, match="give both or neither"):
                    ask()


def test_extra_keys_are_seen_by_every_document() -> None:
    extra = ExtraKeys(Exact(Causal()), 2, num_kv_heads=HK, head_dim=E).double()
    torch.nn.init.normal_(extra.key)
    tokens, inputs = SITUATIONS["packed"], heads()
    with torch.no_grad():
        close(extra(*inputs, q_tokens=tokens, k_tokens=tokens), looped(extra, tokens, inputs))


def test_bert_in_a_batch_of_packings() -> None:
    torch.manual_seed(0)
    config = BertConfig(vocabulary=89, width=24, hidden=31, layers=2, heads=4, trained_length=31)
    model = Bert(config, Global(1) | Window(2, 2)).double().eval()
    ids, tokens = torch.randint(89, (2, L)), SITUATIONS["a batch of packings"]
    with torch.no_grad():
        out = model(ids, q_tokens=tokens)
        for row, slots in documents(tokens):
            close(out[row, slots], model(ids[row : row + 1, slots])[0])
