"""torch's masks turned round: which pattern, which tokens, and that each is read once."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from eyeline import Causal, Explicit, Full, Pattern, memory
from eyeline.errors import InvalidArgument, NotSupported
from eyeline.layers.conversion import convert, masks, pattern_of_mask, tokens_of_padding

FUTURE = torch.ones(7, 7).triu(1).bool()


def floats(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(mask, -torch.inf)


@pytest.mark.parametrize(
    ("mask", "pattern"),
    [
        (FUTURE, Causal()),
        (floats(FUTURE), Causal()),
        (floats(FUTURE, torch.bfloat16), Causal()),
        (nn.Transformer.generate_square_subsequent_mask(7), Causal()),
        (FUTURE.repeat(6, 1, 1), Causal()),
        (torch.zeros(7, 5).bool(), Full()),
        (torch.zeros(7, 5), Full()),
        (torch.zeros(6, 7, 5), Full()),
        (torch.zeros(1, 1), Full()),
    ],
)
def test_what_it_recognises(mask: Tensor, pattern: Pattern) -> None:
    assert pattern_of_mask(mask, batch=2, heads=3) == pattern


def test_what_is_nearly_causal_is_not() -> None:
    for i, j in ((0, 1), (3, 3), (6, 0), (5, 6)):
        mask = FUTURE.clone()
        mask[i, j] = ~mask[i, j]
        found = pattern_of_mask(mask)
        assert isinstance(found, Explicit)
        assert torch.equal(found.mask, ~mask)
    assert isinstance(pattern_of_mask(torch.ones(7, 5).triu(1).bool()), Explicit)


def test_rank_3_keeps_no_more_than_differs() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.rand(2, 3, 5, 7, generator=generator) < 0.5
    for mask, shape in (
        (drawn, (2, 3)),
        (drawn[:1].expand(2, 3, 5, 7), (1, 3)),
        (drawn[:, :1].expand(2, 3, 5, 7), (2, 1)),
        (drawn[:1, :1].expand(2, 3, 5, 7), ()),
    ):
        found = pattern_of_mask(mask.flatten(0, 1), batch=2, heads=3)
        assert isinstance(found, Explicit)
        assert found.mask.shape == (*shape, 5, 7)
        assert torch.equal(found.mask.broadcast_to(2, 3, 5, 7), ~mask)


def test_padding_becomes_nobody_and_the_others_keep_their_place() -> None:
    mask = torch.tensor([[True, False, False], [False, True, False]])
    queries, keys = tokens_of_padding(mask, 2)
    assert keys is not None
    assert queries is not None
    assert keys.positions.tolist() == [[-1, 1, 2], [0, -1, 2]]
    assert queries.positions.tolist() == [1, 2]
    for same in (mask.clone(), floats(mask)):
        assert tokens_of_padding(same, 2)[1] is keys, "equal padding shares its plans"
    assert tokens_of_padding(torch.zeros(2, 3).bool()) == (None, None)
    one = tokens_of_padding(mask[0])[1]
    assert one is not None
    assert one.positions.tolist() == [-1, 1, 2]


def test_a_mask_is_read_once_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    plain = masks._allowed
    monkeypatch.setattr(masks, "_allowed", lambda n, m: read.append(n) or plain(n, m))
    mask = floats(FUTURE)
    first = pattern_of_mask(mask)
    assert pattern_of_mask(mask) is first
    assert len(read) == 1
    mask[3, 0] = -torch.inf
    assert isinstance(pattern_of_mask(mask), Explicit)
    assert len(read) == 2
    # The same tensor in another role is another question.
    assert tokens_of_padding(mask)[1] is not None
    assert len(read) == 3


def test_what_was_found_goes_with_the_mask() -> None:
    memory.clear()
    mask = floats(FUTURE)
    pattern_of_mask(mask)
    assert [row.entries for row in memory.report().kept] == [1]
    del mask
    assert memory.report().kept == ()


def test_inference_tensors_have_no_version() -> None:
    with torch.inference_mode():
        mask = torch.ones(7, 7).triu(1).bool()
        assert pattern_of_mask(mask) == Causal()
        mask[3, 0] = True
        assert isinstance(pattern_of_mask(mask), Explicit)


def test_shapes_that_are_no_mask() -> None:
    with pytest.raises(InvalidArgument, match=r"key_padding_mask \(2, 3, 4\): its shape is"):
        tokens_of_padding(torch.zeros(2, 3, 4))
    with pytest.raises(InvalidArgument, match=r"attn_mask \(4,\): its shape is"):
        pattern_of_mask(torch.zeros(4))


def test_a_trained_mask_is_not_dropped() -> None:
    bias = nn.Parameter(torch.zeros(9, 9))
    with pytest.raises(NotSupported, match=r"attn_mask \(9, 9\) is trained"):
        pattern_of_mask(bias)
    with pytest.raises(NotSupported, match="key_padding_mask"):
        tokens_of_padding(nn.Parameter(torch.zeros(2, 9)))


def test_a_causal_hint_does_not_hide_the_mask_beside_it() -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True)
    ours, x = copy.deepcopy(theirs), torch.randn(2, 9, 12)
    convert(nn.ModuleDict({"a": (model := nn.ModuleList([ours]))}), Full())
    band = torch.ones(9, 9).tril(-3).bool() | torch.ones(9, 9).triu(1).bool()
    options = {"attn_mask": band, "is_causal": True}
    right = theirs(x, x, x, need_weights=True, **options)[0]
    torch.testing.assert_close(model[0](x, x, x, need_weights=False, **options)[0], right)
