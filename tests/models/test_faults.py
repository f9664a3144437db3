"""What a hostile reading of models and mechanisms found, each once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyeline import Causal, Tokens, save
from eyeline.errors import InvalidArgument
from eyeline.mechanisms import Compressed, Heads, recipe
from eyeline.models import GPT2, GPT2Config, Transformer, TransformerConfig

CONFIG = GPT2Config(29, width=12, hidden=20, layers=2, heads=3, trained_length=17)


def test_pads_and_borders_of_documents_have_no_loss() -> None:
    torch.manual_seed(0)
    model, ids = GPT2(CONFIG, Causal()), torch.randint(29, (2, 7))
    padded = model.losses(ids, q_tokens=Tokens.padded([7, 3]))
    assert (padded != 0).tolist() == [[True] * 6, [False] * 4 + [True] * 2]
    packed = model.losses(ids[:1], q_tokens=Tokens.packed([3, 4]))
    assert (packed != 0).tolist() == [[True, True, False, True, True, True]]


def test_the_decoder_has_no_loss_at_borders_of_documents() -> None:
    torch.manual_seed(0)
    model = Transformer(TransformerConfig(29, 12, 20, 1, 3), Causal())
    ids, packed = torch.randint(29, (1, 7)), Tokens.packed([3, 4])
    losses = model.losses(ids, ids, source_tokens=packed, target_tokens=packed)
    assert (losses != 0).tolist() == [[True, True, False, True, True, True]]


def test_folders_of_other_libraries_keep_their_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InvalidArgument, match="another library"):
        save(GPT2(CONFIG), tmp_path)


def test_nothing_to_read_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="nothing to read"):
        GPT2(CONFIG)(torch.zeros(1, 0, dtype=torch.int64))
    with pytest.raises(InvalidArgument, match="chunk"):
        GPT2(CONFIG).losses(torch.zeros(1, 3, dtype=torch.int64), chunk=0)


def test_means_of_half_types_do_not_overflow() -> None:
    x = torch.full((1, 2, 13, 3), 1e4, dtype=torch.float16)
    assert Compressed(8, by="mean")(x, x, x).isfinite().all()


def test_words_and_ids_that_do_not_serve_are_refused() -> None:
    with pytest.raises(InvalidArgument, match=r"write recipe\('linear'\)"):
        GPT2(CONFIG, mechanism="linear")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match=r"write parse\('causal'\)"):
        GPT2(CONFIG, "causal")  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="id 29: they go from 0 to 28"):
        GPT2(CONFIG)(torch.tensor([[3, 29]]))
    with pytest.raises(InvalidArgument, match="below 2,147,483,648"):
        recipe("extra_keys(count=100000000000)")
    with pytest.raises(InvalidArgument, match="local=3"):
        recipe("compressed(factor=2, by=mean, local=3)").make(Causal(), Heads(3, 3, 4))
