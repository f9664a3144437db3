"""Files of both kinds give the very model; every tensor is accounted for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eyeline.errors import CheckpointError, InvalidArgument
from eyeline.loading import load
from eyeline.models.base import half_split
from eyeline.patterns import sliding_window, streaming
from models.tiny import CONFIG, GGUF, HF, hf_tensors, ids, interleaved, llama, save_gguf, save_hf


def loaded(path: Path, **options: Any) -> Any:
    return load(path, **{"dtype": torch.float32, "packed": False, **options})


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("save", [save_hf, save_gguf])
def test_a_saved_model_comes_back(save: Any, packed: bool, tmp_path: Path) -> None:
    model = llama()
    found = loaded(save(tmp_path / "model", hf_tensors(model)), packed=packed)
    assert found.config == CONFIG and found.tokenizer is None
    want = model(ids(2, 19))
    with torch.no_grad():
        got = found.model(ids(2, 19))
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 if packed else 0)


def test_the_wrong_rotary_layout_shows(tmp_path: Path) -> None:
    """The weights of a GGUF file taken as Hugging Face's: other logits, not an error."""
    tensors = hf_tensors(llama())
    for name in tensors:
        if "q_proj" in name or "k_proj" in name:
            tensors[name] = interleaved(tensors[name], 6 if "q_proj" in name else 3)
    wrong = loaded(save_hf(tmp_path / "model", tensors)).model(ids(1, 19))
    assert (wrong - llama()(ids(1, 19))).abs().max() > 0.1


def test_half_split_undoes_the_interleaving() -> None:
    weight = torch.randn(3 * 14, 5)
    assert not torch.equal(interleaved(weight, 3), weight)
    assert torch.equal(half_split(interleaved(weight, 3), 3), weight)


@pytest.mark.parametrize("kind", ["missing", "surplus"])
@pytest.mark.parametrize("save", [save_hf, save_gguf])
def test_every_tensor_is_accounted_for(save: Any, kind: str, tmp_path: Path) -> None:
    tensors = hf_tensors(llama())
    if kind == "missing":
        del tensors["model.layers.1.self_attn.k_proj.weight"]
    else:
        tensors["model.layers.1.self_attn.k_proj.bias"] = torch.zeros(30)
    with pytest.raises(CheckpointError, match=rf"{kind} tensors: .*1\.(self_attn|attn)_?\.?k"):
        loaded(save(tmp_path / "model", tensors))


def test_derived_frequencies_of_old_files_are_no_surplus(tmp_path: Path) -> None:
    tensors = hf_tensors(llama())
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(5)
    loaded(save_hf(tmp_path / "model", tensors))


@pytest.mark.parametrize(
    "name", ["model.layers.2.mlp.up_proj.weight", "model.norm.weight", "model.embed_tokens.weight"]
)
def test_a_tensor_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    tensors = hf_tensors(llama())
    tensors[name] = tensors[name][:-1]
    with pytest.raises(CheckpointError, match=rf"{name} \(.*the configuration asks for"):
        loaded(save_hf(tmp_path / "model", tensors))
    tensors[name] = torch.zeros(())
    with pytest.raises(CheckpointError, match=rf"{name} \(\)"):
        loaded(save_hf(tmp_path / "model", tensors))


def test_a_claim_of_many_layers_costs_nothing(tmp_path: Path) -> None:
    folder = save_hf(tmp_path / "m", hf_tensors(llama()), {**HF, "num_hidden_layers": 10**12})
    with pytest.raises(CheckpointError, match="1,000,000,000,000 layers are claimed"):
        loaded(folder)


@pytest.mark.parametrize("stored", ["not", "same", "other"])
def test_a_tied_head_is_the_embedding(stored: str, tmp_path: Path) -> None:
    model = llama(replace(CONFIG, tied=True))
    tensors = hf_tensors(model)
    if stored != "not":
        tensors["lm_head.weight"] = model.embedding.weight + (stored == "other")
    folder = save_hf(tmp_path / "model", tensors, {**HF, "tie_word_embeddings": True})
    if stored == "other":
        with pytest.raises(CheckpointError, match=r"lm_head\.weight differs"):
            loaded(folder)
        return
    found = loaded(folder).model
    assert found.head.weight is found.embedding.weight
    assert torch.equal(found(ids(1, 7)), model(ids(1, 7)))


def test_gguf_without_an_output_matrix_is_tied(tmp_path: Path) -> None:
    tensors = hf_tensors(llama(replace(CONFIG, tied=True)))
    found = loaded(save_gguf(tmp_path / "model.gguf", tensors))
    assert found.config.tied and found.model.head.weight is found.model.embedding.weight


def test_the_pattern_is_the_trained_one_unless_another_is_given(tmp_path: Path) -> None:
    folder = save_hf(tmp_path / "m", hf_tensors(llama()), {**HF, "sliding_window": 5})
    assert loaded(folder).model.patterns == (sliding_window(5),)
    assert loaded(folder, pattern=streaming(3, 1)).model.patterns == (streaming(3, 1),)


def test_dtypes(tmp_path: Path) -> None:
    folder = save_hf(tmp_path / "m", hf_tensors(llama()))
    for dtype in (torch.bfloat16, torch.float64):
        assert {p.dtype for p in loaded(folder, dtype=dtype).model.parameters()} == {dtype}
    assert loaded(folder, dtype="auto").model.norm.dtype in (torch.bfloat16, torch.float32)
    for wrong in (torch.int8, "float33"):
        with pytest.raises(InvalidArgument, match="dtype="):
            loaded(folder, dtype=wrong)


def test_gguf_sizes_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    config = {**GGUF, "llama.attention.head_count": 5}
    with pytest.raises(InvalidArgument, match="5 query heads"):
        loaded(save_gguf(tmp_path / "m.gguf", hf_tensors(llama()), config))
