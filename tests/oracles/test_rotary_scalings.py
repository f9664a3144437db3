"""Rotary scalings against transformers: the frequencies, and the logits of small random models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.encodings import NTK, Linear, Llama3, Rotary, Scaling, YaRN
from eyeline.errors import NotSupported
from eyeline.loading import load
from models.tiny import HF, ids

pytestmark = pytest.mark.slow
transformers = pytest.importorskip("transformers")

YARN = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 509}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 509,
}  # fmt: skip
CASES: dict[str, tuple[dict[str, Any], Scaling]] = {
    "linear": ({"rope_type": "linear", "factor": 2.5}, Linear(2.5)),
    "yarn": (YARN, YaRN(8.0, 509)),
    "yarn betas": (
        {**YARN, "beta_fast": 16.0, "beta_slow": 2.0}, YaRN(8.0, 509, 16.0, 2.0),
    ),
    "yarn exact": ({**YARN, "truncate": False}, YaRN(8.0, 509, truncate=False)),
    "yarn magnitude": (
        {**YARN, "attention_factor": 1.75}, YaRN(8.0, 509, attention_factor=1.75),
    ),
    "llama3": (LLAMA3, Llama3(8.0, original_length=509)),
    "llama3 narrow": (
        {**LLAMA3, "low_freq_factor": 2.0, "high_freq_factor": 3.0}, Llama3(8.0, 2.0, 3.0, 509),
    ),
}  # fmt: skip


def config(rope: dict[str, Any], **changes: Any) -> Any:
    values = {k: v for k, v in HF.items() if k not in ("model_type", "architectures")}
    base = changes.pop("rope_theta", values.pop("rope_theta"))
    values |= {"max_position_embeddings": 4072, "rope_parameters": {**rope, "rope_theta": base}}
    return transformers.LlamaConfig(**{**values, **changes})


def frequencies(rope: dict[str, Any], **changes: Any) -> tuple[Tensor, float]:
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    length = changes.pop("length", None)
    function = ROPE_INIT_FUNCTIONS[rope["rope_type"]]
    return function(config(rope, **changes), "cpu", seq_len=length)


@pytest.mark.parametrize("base", [97.0, 10000.0, 500000.0])
@pytest.mark.parametrize("head_dim", [6, 10, 64, 128])
@pytest.mark.parametrize("name", CASES)
def test_frequencies(name: str, head_dim: int, base: float) -> None:
    rope, scaling = CASES[name]
    want, magnitude = frequencies(rope, head_dim=head_dim, rope_theta=base)
    got = Rotary(head_dim, base=base, scaling=scaling).frequencies
    torch.testing.assert_close(got.float(), want, rtol=2e-6, atol=0)
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-12)


@pytest.mark.parametrize("length", [97, 4072, 4073, 9001])
@pytest.mark.parametrize("head_dim", [6, 128])
def test_dynamic_ntk_of_one_length(head_dim: int, length: int) -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0}
    want, _ = frequencies(rope, head_dim=head_dim, length=length)
    scaling = NTK.dynamic(4.0, length=length, trained_length=4072)
    got = Rotary(head_dim, base=97.0, scaling=scaling).frequencies
    torch.testing.assert_close(got.float(), want, rtol=2e-6, atol=0)


def test_partial_rotation_counts_speeds_over_the_rotated_features() -> None:
    rope = {"rope_type": "linear", "factor": 2.5, "partial_rotary_factor": 0.25}
    want, _ = frequencies(rope, head_dim=64)
    got = Rotary(64, base=97.0, scaling=Linear(2.5), rotated=16).frequencies
    torch.testing.assert_close(got.float(), want, rtol=2e-6, atol=0)


def theirs(rope: dict[str, Any], **changes: Any) -> Any:
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config(rope, **changes)).eval()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.2)
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_of_a_small_random_model(name: str, tmp_path: Path) -> None:
    """Far past its original length; close positions, since transformers' angles are float32."""
    rope, length = dict(CASES[name][0]), "original_max_position_embeddings"
    rope |= {length: 31} if length in rope else {}
    model = theirs(rope)
    model.save_pretrained(tmp_path)
    mine = load(tmp_path, dtype=torch.float32, packed=False).model
    text = ids(2, 97)
    with torch.no_grad():
        want, plain = model(text).logits, theirs({"rope_type": "default"})(text).logits
        limit = 3e-5 * float(want.abs().max())
        torch.testing.assert_close(mine(text), want, rtol=0, atol=limit)
    assert (want - plain).abs().max() > 1000 * limit


def test_both_weights_of_the_yarn_factor(tmp_path: Path) -> None:
    rope = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}
    _, magnitude = frequencies(rope)
    theirs(rope).save_pretrained(tmp_path)
    scaling = load(tmp_path, packed=False).model.config.rotary.scaling
    assert scaling is not None
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-12)


def test_the_original_length_is_theirs_if_the_file_says_none(tmp_path: Path) -> None:
    rope = {k: v for k, v in YARN.items() if k != "original_max_position_embeddings"}
    theirs(rope, max_position_embeddings=509).save_pretrained(tmp_path)
    assert load(tmp_path, packed=False).model.config.rotary.scaling == YaRN(8.0, 509)


def test_dynamic_ntk_in_a_file_is_refused(tmp_path: Path) -> None:
    theirs({"rope_type": "dynamic", "factor": 2.0}).save_pretrained(tmp_path)
    with pytest.raises(NotSupported, match=r"'dynamic'.*keys in a cache"):
        load(tmp_path)
