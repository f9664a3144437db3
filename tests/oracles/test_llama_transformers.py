"""Logits and greedy texts against transformers: tiny random models, and the real one."""

from __future__ import annotations

import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest
import torch

from eyeline.generation import generate, stream
from eyeline.loading import Loaded, load
from models.tiny import HF, ids

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")


def theirs(kind: str, **changes: Any) -> Any:
    torch.manual_seed(0)
    values = {
        k: v for k, v in HF.items() if k not in ("model_type", "architectures", "torch_dtype")
    }
    if kind == "Mistral":
        values = {k: v for k, v in values.items() if not k.endswith("_bias")}
    config = getattr(transformers, f"{kind}Config")(**{**values, **changes})
    model = getattr(transformers, f"{kind}ForCausalLM")(config).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return model


@pytest.mark.parametrize("heads", [(6, 6), (6, 2), (6, 1)])
@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("Llama", {}),
        ("Llama", {"tie_word_embeddings": True}),
        ("Llama", {"head_dim": 14, "rms_norm_eps": 1e-2}),
        ("Mistral", {"sliding_window": 5}),
        ("Mistral", {"sliding_window": None}),
    ],
)
def test_tiny_models_saved_by_transformers(
    kind: str, changes: dict[str, Any], heads: tuple[int, int], tmp_path: Path
) -> None:
    model = theirs(kind, num_attention_heads=heads[0], num_key_value_heads=heads[1], **changes)
    model.save_pretrained(tmp_path)
    mine = load(tmp_path, dtype=torch.float32, packed=False).model
    text = ids(2, 19)
    with torch.no_grad():
        want = model(text).logits
        torch.testing.assert_close(mine(text), want, rtol=0, atol=1e-5 * float(want.abs().max()))


def test_a_wrong_rotary_layout_would_fail(tmp_path: Path) -> None:
    model = theirs("Llama")
    for layer in model.model.layers:
        for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
            weight = projection.weight.data
            heads = weight.view(-1, 10, weight.shape[1])
            order = [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]
            projection.weight.data = heads[:, order].reshape(weight.shape)
    with torch.no_grad():
        right = theirs("Llama")(ids(1, 19)).logits
    model.save_pretrained(tmp_path)
    wrong = load(tmp_path, dtype=torch.float32, packed=False).model(ids(1, 19))
    assert (wrong - right).abs().max() > 0.1


def test_left_padded_batches_as_transformers_writes_them(tmp_path: Path) -> None:
    model = theirs("Llama").double()
    model.save_pretrained(tmp_path)
    mine = load(tmp_path, dtype=torch.float64, packed=False).model
    prompts = [ids(1, 11)[0].tolist(), ids(1, 4)[0].tolist()]
    padded = torch.tensor([prompts[0], [0] * 7 + prompts[1]])
    mask = torch.tensor([[1] * 11, [0] * 7 + [1] * 4])
    out = model.generate(
        padded, attention_mask=mask, max_new_tokens=13, min_new_tokens=13, do_sample=False
    )
    assert generate(mine, prompts, max_new_tokens=13) == out[:, 11:].tolist()


@pytest.fixture(scope="module")
def mine(model_file: Path) -> Loaded:
    return load(model_file, dtype=torch.float32)


@pytest.fixture(scope="module")
def real(model_file: Path) -> Any:
    """The same file as transformers reads it; its own entrance also wants `accelerate`."""
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    config = load_gguf_checkpoint(str(model_file))["config"]
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config))
    read = load_gguf_checkpoint(str(model_file), return_tensors=True, model_to_load=model)
    model = transformers.LlamaForCausalLM(model.config)
    missing = model.load_state_dict(read["tensors"], strict=False)
    assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys
    return model.eval()


@pytest.mark.model
def test_real_logits_over_512_tokens_of_text(mine: Loaded, real: Any) -> None:
    assert mine.tokenizer is not None
    text = torch.tensor([mine.tokenizer.encode(pydoc_data.topics.topics["assignment"])[:512]])
    assert text.shape == (1, 512)
    with torch.no_grad():
        assert (mine.model(text) - real(text).logits).abs().max() <= 2e-3


@pytest.mark.model
@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 13, 31, 64, 101, 150, 211, 300])
def test_real_greedy_texts_of_64_tokens(length: int, mine: Loaded, real: Any) -> None:
    assert mine.tokenizer is not None
    prompt = mine.tokenizer.encode(pydoc_data.topics.topics["specialnames"])[length : 2 * length]
    written = list(stream(mine.model, prompt, max_new_tokens=64))
    # One run over prompt and text: each id is transformers' choice after those before it.
    with torch.no_grad():
        logits = real(torch.tensor([prompt + written])).logits[0, length - 1 : -1]
    assert written == logits.argmax(-1).tolist()
