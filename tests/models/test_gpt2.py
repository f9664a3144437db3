"""GPT-2 against one written out plainly, against itself in steps, and its files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from eyeline.errors import CheckpointError, InvalidArgument, NotSupported
from eyeline.generation import generate, stream
from eyeline.layers import PackedLinear, pack
from eyeline.loading import load
from eyeline.mechanisms import Mechanism, recipe
from eyeline.models import GPT2, GPT2Config, LanguageModel, trace
from eyeline.patterns import Causal, Pattern, PerHead, sliding_window, streaming
from eyeline.tokens import Tokens
from models.tiny import ids, save_hf
from models.tiny_gpt2 import CONFIG, GGUF, HF, gpt2, hf_tensors, save_gguf

PATTERNS = [Causal(), sliding_window(5), [Causal(), streaming(3, 1), Causal()]]


def plainly(model: GPT2, row: list[int], allows: Any) -> Tensor:
    """One text, one head and one query at a time, in float64."""
    state = {name: weight.double() for name, weight in model.state_dict().items()}
    x = state["embedding.weight"][row] + state["positions.weight"][: len(row)]

    def normed(x: Tensor, name: str) -> Tensor:
        spread = (x.var(-1, unbiased=False, keepdim=True) + CONFIG.norm_eps).sqrt()
        scaled = (x - x.mean(-1, keepdim=True)) / spread
        return scaled * state[f"{name}.weight"] + state[f"{name}.bias"]

    def projected(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    for layer in range(3):
        part = f"layers.{layer}."
        three = projected(normed(x, part + "attention_norm"), part + "attention.qkv").split(33, -1)
        seen = torch.zeros_like(x)
        for head in range(3):
            q, k, v = (each[:, 11 * head : 11 * head + 11] for each in three)
            for i in range(len(row)):
                keys = [j for j in range(len(row)) if allows(i, j)]
                weights = (q[i] @ k[keys].T / math.sqrt(11)).softmax(-1)
                seen[i, 11 * head : 11 * head + 11] = weights @ v[keys]
        x = x + projected(seen, part + "attention.out")
        up = projected(normed(x, part + "feed_forward_norm"), part + "feed_forward.up")
        gelu = up / 2 * (1 + (math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)).tanh())
        x = x + projected(gelu, part + "feed_forward.down")
    return normed(x, "norm") @ state["head.weight"].T


@pytest.mark.parametrize(
    ("pattern", "allows"),
    [
        (Causal(), lambda i, j: j <= i),
        (streaming(5, 2), lambda i, j: j <= i and (i - j < 5 or j < 2)),
    ],
    ids=["causal", "streaming"],
)
def test_logits_equal_the_plain_model(pattern: Pattern, allows: Any) -> None:
    model, text = gpt2(pattern=pattern), ids(2, 19)
    for row in range(2):
        want = plainly(model, text[row].tolist(), allows)
        torch.testing.assert_close(model(text)[row].double(), want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("step", [1, 2, 7])
def test_steps_equal_the_whole(pattern: Any, step: int) -> None:
    model, text = gpt2(pattern=pattern), ids(2, 23)
    caches, pieces = model.new_caches(2), []
    assert len(caches) == len(model.patterns)
    for start in range(0, 23, step):
        pieces.append(model(text[:, start : start + step], caches=caches))
    torch.testing.assert_close(torch.cat(pieces, 1), model(text), rtol=0, atol=2e-5)


def test_a_padded_batch_writes_what_each_prompt_does_alone() -> None:
    model = gpt2(pattern=sliding_window(5)).double()
    prompts = [ids(1, 11)[0].tolist(), ids(1, 4)[0].tolist(), [7]]
    alone = [list(stream(model, prompt, max_new_tokens=13)) for prompt in prompts]
    assert generate(model, prompts, max_new_tokens=13) == alone
    tokens = Tokens.padded([11, 4])
    padded = torch.tensor([prompts[0], [5] * 7 + prompts[1]])
    logits = model(padded, q_tokens=tokens)
    torch.testing.assert_close(logits[1, 7:], model(torch.tensor([prompts[1]]))[0])


def test_there_are_no_positions_past_the_learned_ones() -> None:
    model = gpt2()
    assert model.longest == 31 and model(ids(1, 31)).shape == (1, 31, 89)
    with pytest.raises(InvalidArgument, match=r"position 31: .* positions 0 to 30 and"):
        model(ids(1, 32))
    caches = model.new_caches()
    model(ids(1, 31), caches=caches)
    with pytest.raises(InvalidArgument, match="position 31"):
        model(ids(1, 1), caches=caches)
    assert caches[0].position == 31  # the token was not taken
    with pytest.raises(InvalidArgument, match=r"a prompt of 32 tokens: .*31 positions"):
        stream(model, [1] * 32)
    with pytest.raises(InvalidArgument, match="a prompt of 1 tokens after 31 that were read"):
        stream(model, [1], caches=caches)


def test_writing_ends_with_the_positions() -> None:
    """The last id is written after the last position has been read, and not read itself."""
    model = gpt2().double()
    prompts = [ids(1, 26)[0].tolist(), ids(1, 29)[0].tolist()]
    writers = [stream(model, prompt, max_new_tokens=9) for prompt in prompts]
    alone = [list(writer) for writer in writers]
    assert [len(text) for text in alone] == [6, 3]
    assert [writer.stopped for writer in writers] == ["positions"] * 2
    assert generate(model, prompts, max_new_tokens=9) == alone
    enough = stream(model, prompts[0], max_new_tokens=6)
    assert list(enough) == alone[0] and enough.stopped == "length"
    ended = stream(model, prompts[0], max_new_tokens=9, stop=alone[0][1:2])
    assert list(ended) == alone[0][:1] and ended.stopped == "end"


def test_packing_keeps_biases() -> None:
    model, text = gpt2(), ids(1, 1)
    want = model(text)
    assert pack(model) == 3 * 4 + 1 and isinstance(model.head, PackedLinear)
    with torch.inference_mode():
        torch.testing.assert_close(model(text), want, rtol=0, atol=1e-5)
        torch.testing.assert_close(model(ids(2, 9)), gpt2()(ids(2, 9)), rtol=0, atol=1e-5)
    assert model.head.weight is model.embedding.weight


def test_dropout_only_while_training() -> None:
    text = ids(1, 9)
    none = replace(CONFIG, embedding_dropout=0.0, attention_dropout=0.0, dropout=0.0)
    assert torch.equal(gpt2(none).train()(text), gpt2()(text))
    for name in ("dropout", "embedding_dropout", "attention_dropout"):
        model = gpt2(replace(none, **{name: 0.3})).train()
        assert not torch.equal(model(text), model(text))
        assert torch.equal(model.eval()(text), gpt2()(text))


def test_the_weights_start_as_published() -> None:
    model = GPT2(replace(CONFIG, width=129, hidden=257, vocabulary=997))
    state = model.state_dict()
    for name, std in {
        "embedding.weight": 0.02,
        "positions.weight": 0.02,
        "layers.0.attention.qkv.weight": 0.02,
        "layers.0.attention.out.weight": 0.02 / math.sqrt(6),
        "layers.2.feed_forward.up.weight": 0.02,
        "layers.2.feed_forward.down.weight": 0.02 / math.sqrt(6),
    }.items():
        assert abs(float(state[name].std()) / std - 1) < 0.05, name
    assert not state["layers.1.attention.qkv.bias"].any()


# --- The trace -----------------------------------------------------------------------------------


def test_a_trace_recomputes_the_logits() -> None:
    model, text = gpt2(pattern=[Causal(), streaming(5, 2), Causal()]), ids(2, 19)
    found = trace(model, text)
    torch.testing.assert_close(found["logits"], model(text), rtol=0, atol=2e-5)
    assert list(found)[:6] == [
        "embedding", "position", "sum", "layers.0.normed", "layers.0.query", "layers.0.key",
    ]  # fmt: skip
    assert found["layers.1.scores"].shape == (2, 3, 19, 19)
    weights = found["layers.1.weights"]
    assert torch.equal(weights[0, 0, 10].nonzero()[:, 0], torch.tensor([0, 1, 6, 7, 8, 9, 10]))
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 19))
    torch.testing.assert_close(
        found["layers.1.attention_sum"], found["layers.0.sum"] + found["layers.1.projected"]
    )


def test_a_trace_of_a_cached_step() -> None:
    pattern = PerHead([Causal(), sliding_window(2), sliding_window(3)])
    model, text = gpt2(pattern=pattern), ids(1, 19)
    caches, steps = model.new_caches(), []
    for start in range(0, 19, 5):
        steps.append(trace(model, text[:, start : start + 5], caches=caches))
    logits = torch.cat([step["logits"] for step in steps], 1)
    torch.testing.assert_close(logits, model(text), rtol=0, atol=2e-5)
    padded = Tokens.padded([4, 7])
    both = trace(model, ids(2, 7), q_tokens=padded)
    want = model(ids(2, 7), q_tokens=padded)
    torch.testing.assert_close(both["logits"][1], want[1], rtol=0, atol=2e-5)
    torch.testing.assert_close(both["logits"][0, 3:], want[0, 3:], rtol=0, atol=2e-5)


def test_what_was_traced_stays_as_it_was() -> None:
    """A cache that evicts writes new keys into the places of old ones."""
    model, text = gpt2(pattern=sliding_window(3)), ids(1, 9)
    caches = model.new_caches()
    first = trace(model, text[:, :5], caches=caches)
    trace(model, text[:, 5:6], caches=caches)
    second = trace(model, text[:, 6:7], caches=caches)
    before = {name: second[name].clone() for name in second}
    trace(model, text[:, 7:8], caches=caches)
    trace(model, text[:, 8:9], caches=caches)
    assert all(torch.equal(second[name], before[name]) for name in before)
    assert second["layers.0.key"].shape == (1, 3, 3, 11) != first["layers.0.key"].shape


def test_a_trace_of_another_mechanism_is_refused() -> None:
    with pytest.raises(NotSupported, match="not ExtraKeys"):
        trace(gpt2(mechanism=recipe("extra_keys(count=3)")), ids(1, 5))


# --- Mechanisms ----------------------------------------------------------------------------------


def test_layers_with_one_pattern_and_mechanism_share_a_cache() -> None:
    exact, extra = recipe("exact"), recipe("extra_keys(count=3)")
    model = gpt2(mechanism=[exact, extra, exact])
    assert model.groups == (0, 1, 0) and len(model.new_caches()) == 2
    assert [layer.attention.index for layer in model.layers] == [0, 0, 1]
    text, caches = ids(1, 17), model.new_caches()
    pieces = [model(text[:, i : i + 1], caches=caches) for i in range(17)]
    torch.testing.assert_close(torch.cat(pieces, 1), model(text), rtol=0, atol=2e-5)


class Blind(Mechanism):
    """Attends to nothing, and has no pattern."""

    def forward(  # type: ignore[override]
        self, query: Tensor, key: Tensor, value: Tensor, **_: Any
    ) -> Tensor:
        return query * 0


def test_a_mechanism_that_does_not_read_in_steps_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    model = gpt2()
    for layer in model.layers:
        layer.attention.mechanism = Blind()
    assert model(ids(1, 5)).shape == (1, 5, 89)
    with pytest.raises(NotSupported, match="Blind does not read in steps: it has no pattern"):
        model.new_caches()
    monkeypatch.setattr(Blind, "no_cache", "it is blind")
    with pytest.raises(NotSupported, match="Blind does not read in steps: it is blind"):
        stream(model, [1, 2])


@pytest.mark.parametrize("what", ["pattern", "mechanism"])
def test_one_for_all_layers_or_one_each(what: str) -> None:
    two = {"pattern": [Causal()] * 2, "mechanism": [recipe("exact")] * 2}[what]
    with pytest.raises(InvalidArgument, match=f"2 {what}s for 3 layers"):
        GPT2(CONFIG, **{what: two})
    with pytest.raises(InvalidArgument, match="2 patterns; the call has 3"):
        GPT2(CONFIG, PerHead([Causal(), sliding_window(3)]))


# --- Files ---------------------------------------------------------------------------------------


def loaded(path: Path, **options: Any) -> Any:
    return load(path, **{"dtype": torch.float32, "packed": False, **options})


def shards(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    """Two files with an index, as large models come."""
    import json

    from safetensors.torch import save_file

    save_hf(folder, tensors, HF if config is None else config)
    (folder / "model.safetensors").unlink()
    names, where = sorted(tensors), {}
    for number, some in enumerate((names[::2], names[1::2]), 1):
        file = f"model-0000{number}-of-00002.safetensors"
        save_file({name: tensors[name].clone() for name in some}, folder / file)
        where |= dict.fromkeys(some, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    return folder


def single(folder: Path, tensors: dict[str, Tensor], config: dict[str, Any] | None = None) -> Path:
    return save_hf(folder, tensors, HF if config is None else config)


@pytest.mark.parametrize("prefix", ["transformer.", ""])
@pytest.mark.parametrize("save", [single, shards, save_gguf])
def test_files_give_the_very_model(save: Any, prefix: str, tmp_path: Path) -> None:
    found = loaded(save(tmp_path / "model", hf_tensors(gpt2(), prefix)), kind=LanguageModel)
    none = {"dropout": 0.0, "embedding_dropout": None, "attention_dropout": 0.0}
    assert found.config == (replace(CONFIG, **none) if save is save_gguf else CONFIG)
    assert torch.equal(found.model(ids(2, 19)), gpt2()(ids(2, 19)))
    assert found.model.head.weight is found.model.embedding.weight


@pytest.mark.parametrize("change", ["qkv order", "transposed", "heads order"])
def test_a_wrong_layout_shows(change: str, tmp_path: Path) -> None:
    tensors = hf_tensors(gpt2())
    name = "transformer.h.1.attn.c_attn.weight"
    if change == "qkv order":
        tensors[name] = tensors[name].roll(33, 1)
    elif change == "heads order":
        tensors[name] = tensors[name].unflatten(1, (3, 3, 11)).transpose(1, 2).flatten(1)
    else:  # a square one: of other shapes the shape tells
        name = "transformer.h.1.attn.c_proj.weight"
        tensors[name] = tensors[name].T.contiguous()
    wrong = loaded(single(tmp_path / "model", tensors)).model(ids(1, 19))
    assert (wrong - gpt2()(ids(1, 19))).abs().max() > 0.1


def test_a_weight_as_linear_layers_store_it_is_refused(tmp_path: Path) -> None:
    tensors = hf_tensors(gpt2())
    name = "transformer.h.2.mlp.c_fc.weight"
    tensors[name] = tensors[name].T.contiguous()
    with pytest.raises(CheckpointError, match=r"c_fc.weight \(47, 33\).*asks for \(33, 47\)"):
        loaded(single(tmp_path / "model", tensors))


def test_the_masks_of_old_files_are_no_surplus(tmp_path: Path) -> None:
    tensors = hf_tensors(gpt2())
    tensors["transformer.h.0.attn.bias"] = torch.ones(1, 1, 31, 31).tril()
    tensors["transformer.h.0.attn.masked_bias"] = torch.tensor(-1e4)
    loaded(single(tmp_path / "one", tensors))
    tensors["transformer.h.0.attn.rotary"] = torch.ones(1)
    with pytest.raises(CheckpointError, match=r"surplus tensors: 'transformer.h.0.attn.rotary'"):
        loaded(single(tmp_path / "two", tensors))


@pytest.mark.parametrize("save", [single, save_gguf])
def test_a_head_of_its_own(save: Any, tmp_path: Path) -> None:
    model = gpt2(replace(CONFIG, tied=False))
    config = {**HF, "tie_word_embeddings": False} if save is single else None
    found = loaded(save(tmp_path / "model", hf_tensors(model), config))
    assert not found.config.tied and torch.equal(found.model(ids(1, 9)), model(ids(1, 9)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True), ("is_encoder_decoder", True), ("n_ctx", 30),
        ("activation_function", "mish"), ("activation_function", ["gelu"]), ("model_type", "gptj"),
        ("quantization_config", {"bits": 4}), ("rotary_dim", 8),
    ],
)  # fmt: skip
def test_what_would_change_the_model_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(NotSupported, match=name):
        GPT2Config.from_hf({**HF, name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_embd", None), ("n_head", 0), ("n_layer", "3"), ("resid_pdrop", 1.0),
        ("attn_pdrop", -0.1), ("embd_pdrop", True), ("layer_norm_epsilon", 0),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_named(name: str, value: object) -> None:
    with pytest.raises(CheckpointError, match=name):
        GPT2Config.from_hf({**HF, name: value})


def test_what_the_configuration_says_is_honoured() -> None:
    config = GPT2Config.from_hf({
        **HF, "n_inner": None, "activation_function": "relu", "resid_pdrop": 0.2, "embd_pdrop": 0,
        "attn_pdrop": 0.3, "reorder_and_upcast_attn": True, "n_ctx": 31,
    })  # fmt: skip
    assert config.hidden == 132 and config.activation == "relu"
    assert (config.dropout, config.first_dropout, config.attention_dropout) == (0.2, 0.0, 0.3)
    with pytest.raises(InvalidArgument, match="width=33 is no multiple of heads=4"):
        GPT2Config.from_hf({**HF, "n_head": 4})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpt2.attention.head_count_kv", 1), ("gpt2.rope.freq_base", 1.0),
        ("general.architecture", "gptneox"),
    ],
)  # fmt: skip
def test_gguf_keys_are_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(NotSupported, match=name):
        GPT2Config.from_gguf({**GGUF, "gpt2.vocab_size": 89, name: value}, tied=True)


def test_it_has_no_encodings_to_choose(tmp_path: Path) -> None:
    folder = single(tmp_path / "model", hf_tensors(gpt2()))
    with pytest.raises(NotSupported, match="GPT2 has no encodings; it has pattern, mechanism"):
        loaded(folder, encodings="recounted")
