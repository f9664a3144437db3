"""GPT-2's logits and greedy texts against transformers, on tiny random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from eyeline.generation import generate
from eyeline.loading import load, save
from eyeline.models import LanguageModel, trace
from models.tiny import ids

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")


def theirs(**changes: Any) -> Any:
    torch.manual_seed(0)
    values = {
        "vocab_size": 89, "n_positions": 31, "n_embd": 33, "n_layer": 3, "n_head": 3,
        "layer_norm_epsilon": 2**-10, "bos_token_id": 88, "eos_token_id": 88,
    }  # fmt: skip
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**values, **changes)).eval()
    for name, parameter in model.named_parameters():
        scale = "ln_" in name and name.endswith("weight")
        torch.nn.init.normal_(parameter, mean=1.0 if scale else 0.0, std=0.2)
    return model


def mine(folder: Path, **options: Any) -> Any:
    options = {"dtype": torch.float32, "packed": False, **options}
    return load(folder, kind=LanguageModel, **options).model


@pytest.mark.parametrize("shard", ["1GB", "20KB"])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_inner": 47},
        {"activation_function": "gelu"},
        {"activation_function": "relu", "tie_word_embeddings": False},
    ],
    ids=str,
)
def test_logits_of_what_transformers_saved(
    changes: dict[str, Any], shard: str, tmp_path: Path
) -> None:
    model = theirs(**changes)
    model.save_pretrained(tmp_path / "theirs", max_shard_size=shard)
    several = len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1
    assert several is (shard == "20KB")
    ours, text = mine(tmp_path / "theirs"), ids(2, 31)
    save(ours, tmp_path / "ours")
    again = load(tmp_path / "ours", packed=False).model
    with torch.no_grad():
        want = model(text).logits
        atol = 1e-5 * float(want.abs().max())
        torch.testing.assert_close(ours(text), want, rtol=0, atol=atol)
        torch.testing.assert_close(trace(ours, text)["logits"], want, rtol=0, atol=atol)
        assert torch.equal(again(text), ours(text))


def test_hidden_states_have_names(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    text = ids(2, 19)
    with torch.no_grad():
        want = model(text, output_hidden_states=True).hidden_states
    found = trace(mine(tmp_path), text)
    for layer, name in enumerate(("sum", "layers.0.sum", "layers.1.sum", "norm")):
        torch.testing.assert_close(found[name], want[layer], rtol=0, atol=2e-5)


@pytest.mark.parametrize("change", ["qkv order", "transposed"])
def test_a_wrong_layout_would_fail(change: str, tmp_path: Path) -> None:
    model, text = theirs(), ids(1, 19)
    with torch.no_grad():
        right = model(text).logits
        for block in model.transformer.h:
            if change == "qkv order":
                block.attn.c_attn.weight.copy_(block.attn.c_attn.weight.roll(33, 1))
            else:
                block.attn.c_proj.weight.copy_(block.attn.c_proj.weight.T.clone())
    model.save_pretrained(tmp_path)
    assert (mine(tmp_path)(text) - right).abs().max() > 0.1


def test_left_padded_batches_as_transformers_writes_them(tmp_path: Path) -> None:
    model = theirs().double()
    model.save_pretrained(tmp_path)
    ours = mine(tmp_path, dtype=torch.float64)
    prompts = [ids(1, 11)[0].tolist(), ids(1, 4)[0].tolist()]
    padded = torch.tensor([prompts[0], [0] * 7 + prompts[1]])
    mask = torch.tensor([[1] * 11, [0] * 7 + [1] * 4])
    out = model.generate(
        padded, attention_mask=mask, max_new_tokens=13, min_new_tokens=13, do_sample=False
    )
    assert generate(ours, prompts, max_new_tokens=13) == out[:, 11:].tolist()


def test_a_training_step_has_their_gradients(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    ours, text = mine(tmp_path), ids(3, 19)
    ours.losses(text).mean().backward()
    model(text, labels=text).loss.backward()
    for name, want in {
        "embedding.weight": model.transformer.wte.weight.grad,
        "layers.1.attention.qkv.weight": model.transformer.h[1].attn.c_attn.weight.grad.T,
        "positions.weight": model.transformer.wpe.weight.grad,
    }.items():
        got = ours.get_parameter(name).grad
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))
