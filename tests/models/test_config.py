"""Nothing that a configuration says is ignored."""

from __future__ import annotations

from typing import Any

import pytest

from eyeline.encodings import Linear, Llama3, YaRN
from eyeline.errors import CheckpointError, EyelineError, InvalidArgument, NotSupported
from eyeline.models import LlamaConfig
from eyeline.patterns import Causal, sliding_window
from models.tiny import CONFIG, GGUF, HF


def without(values: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != name}


def test_both_forms_say_the_same() -> None:
    assert LlamaConfig.from_hf(HF) == CONFIG
    assert LlamaConfig.from_gguf(GGUF, tied=False) == CONFIG


def test_harmless_attributes_change_nothing() -> None:
    extra = {
        "transformers_version": "5.24.0", "_name_or_path": "x", "initializer_range": 0.02,
        "use_cache": True, "bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": None,
        "is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 1,
        "rope_scaling": None, "attention_dropout": 0.0, "sliding_window": None,
        "transformers.js_config": {"dtype": "q4"},
    }  # fmt: skip
    assert LlamaConfig.from_hf({**HF, **extra}) == CONFIG
    named = {"general.name": "x", "general.file_type": 3, "quantize.imatrix.file": "y"}
    assert LlamaConfig.from_gguf({**GGUF, **named}, tied=False) == CONFIG


def test_defaults_are_those_of_the_format() -> None:
    """Hugging Face's own: as many key heads as query heads, width / heads, 10000, 1e-6, 2048."""
    left = {"rope_theta", "num_key_value_heads", "head_dim", "rms_norm_eps"}
    left |= {"max_position_embeddings", "tie_word_embeddings"}
    config = LlamaConfig.from_hf(
        {**{k: v for k, v in HF.items() if k not in left}, "hidden_size": 36}
    )
    assert (config.kv_heads, config.head_dim, config.rotary_base) == (6, 6, 10000.0)
    assert (config.norm_eps, config.trained_length, config.tied) == (1e-6, 2048, False)


def test_the_base_may_stand_in_rope_parameters() -> None:
    values = without(HF, "rope_theta")
    rope = {"rope_theta": 97.0, "rope_type": "default"}
    assert LlamaConfig.from_hf({**values, "rope_parameters": rope}) == CONFIG


YARN = {"rope_type": "yarn", "factor": 4.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        ({"type": "linear", "factor": 2}, Linear(2.0)),
        ({"type": "linear", "rope_type": "linear", "factor": 2.5}, Linear(2.5)),
        (LLAMA3, Llama3(8.0, 1.0, 4.0, original_length=23)),
        ({**LLAMA3, "original_max_position_embeddings": 11}, Llama3(8.0, original_length=11)),
        (YARN, YaRN(4.0, 23)),
        ({**YARN, "attention_factor": 1.5, "truncate": False, "beta_fast": 16, "beta_slow": 2,
          "original_max_position_embeddings": 19, "partial_rotary_factor": 1.0},
         YaRN(4.0, 19, 16.0, 2.0, attention_factor=1.5, truncate=False)),
    ],
    ids=["linear", "both words", "llama3", "llama3 length", "yarn", "yarn in full"],
)  # fmt: skip
def test_scalings_are_read(rope: dict[str, Any], scaling: object) -> None:
    """The numbers of the file; where it says no original length, its own."""
    assert LlamaConfig.from_hf({**HF, "rope_scaling": rope}).rotary.scaling == scaling
    newer = {**without(HF, "rope_theta"), "rope_parameters": {**rope, "rope_theta": 97.0}}
    assert LlamaConfig.from_hf(newer).rotary.scaling == scaling
    assert LlamaConfig.from_hf(newer).rotary.base == 97.0


def test_both_weights_of_the_yarn_factor_count_together() -> None:
    rope = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.3}
    scaling = LlamaConfig.from_hf({**HF, "rope_scaling": rope}).rotary.scaling
    assert scaling is not None
    assert scaling.magnitude == pytest.approx((0.07 * 1.3862944 + 1) / (0.03 * 1.3862944 + 1))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling.* lacks factor"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "rope_scaling: Linear factor=0.5"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 1.0}}, "Llama3 high_freq_factor=1.0"),
        ({"rope_scaling": {**YARN, "attention_factor": -1.0}}, "attention_factor=-1.0"),
        ({"rope_scaling": {**YARN, "type": "linear"}}, "rope_type='yarn' and type='linear'"),
        ({"rope_scaling": YARN, "rope_parameters": LLAMA3}, "rope_scaling and rope_parameters"),
        ({"rope_parameters": {"rope_theta": 1e4}}, "rope_theta=10000.0, outside it stands 97.0"),
        ({"rope_parameters": {"rope_theta": "1e4"}}, "rope_theta='1e4'"),
    ],
    ids=["missing", "below 1", "order", "negative", "two types", "two tables", "two bases", "text"],
)
def test_damaged_scalings_are_named(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(CheckpointError, match=named):
        LlamaConfig.from_hf({**HF, **changes})


@pytest.mark.parametrize("values", [HF, GGUF], ids=["hf", "gguf"])
def test_a_sliding_window_is_honoured(values: dict[str, Any]) -> None:
    name = "sliding_window" if values is HF else "llama.attention.sliding_window"
    read = LlamaConfig.from_hf if values is HF else _gguf
    assert read(values).pattern == Causal()
    assert read({**values, name: 7}).pattern == sliding_window(7)
    with pytest.raises(CheckpointError, match="sliding_window=0"):
        read({**values, name: 0})


def _gguf(values: dict[str, Any]) -> LlamaConfig:
    return LlamaConfig.from_gguf(values, tied=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rope_scaling", {"type": "dynamic", "factor": 2.0}),
        ("rope_scaling", {"rope_type": "longrope", "short_factor": [1.0] * 5}),
        ("rope_scaling", {"type": "mrope", "mrope_section": [2, 3]}),
        ("rope_scaling", {"type": "linear", "factor": 2.0, "beta_fast": 32.0}),
        ("rope_scaling", {"type": "yarn", "factor": 2.0, "mscale": 0.7}),
        ("rope_scaling", {"rope_type": "default", "factor": 2.0}),
        ("rope_scaling", "linear"),
        ("rope_parameters", {"rope_theta": 97.0, "partial_rotary_factor": 0.5}),
        ("rope_parameters", {"full_attention": {"rope_theta": 97.0, "rope_type": "default"}}),
        ("rope_interleaved", True),
        ("attention_bias", True),
        ("mlp_bias", True),
        ("attention_dropout", 0.1),
        ("hidden_act", "gelu"),
        ("pretraining_tp", 2),
        ("model_type", "gemma"),
        ("layer_types", ["full_attention"]),
        ("quantization_config", {"bits": 4}),
        ("attn_logit_softcapping", 30.0),
    ],
)
def test_what_would_change_the_model_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(NotSupported, match=name):
        LlamaConfig.from_hf({**HF, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("general.architecture", "qwen2"),
        ("llama.rope.scaling.type", "linear"),
        ("llama.rope.scaling.factor", 2.0),
        ("llama.rope.dimension_count", 5),
        ("llama.attention.value_length", 8),
        ("llama.expert_count", 8),
        ("llama.logit_scale", 0.5),
    ],
)
def test_gguf_keys_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(NotSupported, match=name.split(".")[-1]):
        _gguf({**GGUF, name: value})


@pytest.mark.parametrize("value", [0, -3, 1.5, "30", True, None, [30]])
def test_sizes_must_be_whole_numbers(value: object) -> None:
    with pytest.raises(CheckpointError, match="hidden_size"):
        LlamaConfig.from_hf({**HF, "hidden_size": value})
    with pytest.raises(CheckpointError, match=r"llama\.embedding_length"):
        _gguf({**GGUF, "llama.embedding_length": value})


@pytest.mark.parametrize("value", [0, -1e-5, "1e-5", True, float("nan"), float("inf")])
def test_numbers_must_be_above_zero(value: object) -> None:
    with pytest.raises(CheckpointError, match="rms_norm_eps"):
        LlamaConfig.from_hf({**HF, "rms_norm_eps": value})


def test_sizes_must_fit_together() -> None:
    with pytest.raises(InvalidArgument, match="6 query heads cannot share 4"):
        LlamaConfig.from_hf({**HF, "num_key_value_heads": 4})
    with pytest.raises(InvalidArgument, match="head_dim=7"):
        LlamaConfig.from_hf({**HF, "head_dim": 7})


@pytest.mark.parametrize("name", ["vocab_size", "hidden_size", "num_hidden_layers", "model_type"])
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(EyelineError, match=name):
        LlamaConfig.from_hf(without(HF, name))
