"""The encoder–decoder against torch's nn.Transformer and transformers' Marian, weights copied."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from eyeline import Tokens
from eyeline.models import Transformer, TransformerConfig
from eyeline.translation import beam_search, greedy

pytestmark = pytest.mark.slow

V, WIDTH, HEADS, HIDDEN, S, T = 29, 24, 3, 31, 13, 11
LENGTHS, WRITTEN = [S, 7, 2], [5, T, 3]


def made(norm: Any, seed: int = 0) -> Transformer:
    torch.manual_seed(seed)
    config = TransformerConfig(
        V, width=WIDTH, hidden=HIDDEN, layers=2, decoder_layers=3, heads=HEADS, norm=norm
    )
    model = Transformer(config)
    for name, x in model.named_parameters():
        nn.init.normal_(x, mean=float("norm" in name and "weight" in name), std=0.2)
    return model.eval().requires_grad_(False)


def ids(batch: int, length: int, seed: int) -> Tensor:
    return torch.randint(3, V, (batch, length), generator=torch.Generator().manual_seed(seed))


# --- torch ---------------------------------------------------------------------------------------

# In torch's blocks: attention, cross attention, the two matrices, and the norms in their order.
TORCH_NAMES = {
    "attention.out_proj": "self_attn.out_proj", "self_attention.out_proj": "self_attn.out_proj",
    "cross_attention.out_proj": "multihead_attn.out_proj", "feed_forward.up": "linear1",
    "feed_forward.down": "linear2", "attention_norm": "norm1", "self_attention_norm": "norm1",
    "cross_attention_norm": "norm2",
}  # fmt: skip


def to_torch(model: Transformer) -> nn.Transformer:
    """torch's module with the same weights. It norms at the end of each half in pre-norm only."""
    config = model.config
    sizes = (WIDTH, HEADS, HIDDEN)
    given: dict[str, Any] = {
        "dropout": 0.0, "batch_first": True, "norm_first": config.norm == "pre",
        "layer_norm_eps": config.norm_eps,
    }  # fmt: skip

    def final() -> nn.Module | None:
        return nn.LayerNorm(WIDTH, eps=config.norm_eps) if config.norm == "pre" else None

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch tells which of these have no nested fast path
        encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(*sizes, **given), 2, final())
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(*sizes, **given), 3, final())
        theirs = nn.Transformer(
            WIDTH, HEADS, 2, 3, HIDDEN, custom_encoder=encoder, custom_decoder=decoder, **given
        )
    theirs.load_state_dict(torch_names(model.state_dict()))
    return theirs.eval()


def torch_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    packed: dict[str, dict[str, Tensor]] = {}
    for name, x in state.items():
        half, _, rest = name.partition(".blocks.")
        if name.startswith(("encoder.final_norm", "decoder.final_norm")):
            found[name.replace("final_norm", "norm")] = x
        if not rest:
            continue
        layer, part, kind = rest.split(".", 1)[0], *rest.split(".", 1)[1].rsplit(".", 1)
        place = f"{half}.layers.{layer}."
        if part.endswith(("q_proj", "k_proj", "v_proj")):
            attention = "multihead_attn" if "cross" in part else "self_attn"
            packed.setdefault(f"{place}{attention}.in_proj_{kind}", {})[part[-6]] = x
        elif part == "feed_forward_norm":
            found[f"{place}norm{3 if half == 'decoder' else 2}.{kind}"] = x
        else:
            found[f"{place}{TORCH_NAMES[part]}.{kind}"] = x
    return found | {name: torch.cat([x[i] for i in "qkv"]) for name, x in packed.items()}


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_torch_with_padding(norm: str, side: str) -> None:
    model = made(norm)
    theirs = to_torch(model)
    st, tt = Tokens.padded(LENGTHS, side), Tokens.padded(WRITTEN, side)
    source, target = ids(3, S, 1), ids(3, T, 2)

    def embedded(index: Tensor, tokens: Tokens) -> Tensor:
        p = model.position.table(tokens.positions, dtype=torch.float32)
        return model.embedding(index) * WIDTH**0.5 + p

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        hidden = theirs(
            embedded(source, st), embedded(target, tt),
            tgt_mask=torch.ones(T, T, dtype=torch.bool).triu(1), tgt_is_causal=False,
            src_key_padding_mask=st.positions < 0, memory_key_padding_mask=st.positions < 0,
            tgt_key_padding_mask=tt.positions < 0,
        )  # fmt: skip
    found = model(source, target, source_tokens=st, target_tokens=tt)
    there = tt.positions >= 0
    want = hidden @ model.embedding.weight.T
    torch.testing.assert_close(found[there], want[there], rtol=0, atol=1e-5)


# --- transformers --------------------------------------------------------------------------------

BOS, EOS, PAD = 0, 1, 2
MARIAN_NAMES = {
    "attention.out_proj": "self_attn.out_proj", "self_attention.out_proj": "self_attn.out_proj",
    "cross_attention.out_proj": "encoder_attn.out_proj", "feed_forward.up": "fc1",
    "feed_forward.down": "fc2", "attention_norm": "self_attn_layer_norm",
    "self_attention_norm": "self_attn_layer_norm", "feed_forward_norm": "final_layer_norm",
    "cross_attention_norm": "encoder_attn_layer_norm",
}  # fmt: skip


def to_marian(model: Transformer) -> Any:
    """Marian with the same weights, and with our positions: it has all sines before all cosines."""
    transformers = pytest.importorskip("transformers")
    sizes: dict[str, Any] = {
        "vocab_size": V, "d_model": WIDTH, "encoder_layers": 2, "decoder_layers": 3,
        "encoder_attention_heads": HEADS, "decoder_attention_heads": HEADS,
        "encoder_ffn_dim": HIDDEN, "decoder_ffn_dim": HIDDEN, "max_position_embeddings": 64,
    }  # fmt: skip
    others: dict[str, Any] = {
        "activation_function": "relu", "scale_embedding": True, "dropout": 0.0,
        "pad_token_id": PAD, "eos_token_id": EOS, "bos_token_id": BOS,
        "decoder_start_token_id": BOS, "forced_eos_token_id": None,
    }  # fmt: skip
    theirs = transformers.MarianMTModel(transformers.MarianConfig(**sizes, **others))
    p = model.position.table(torch.arange(64), dtype=torch.float32)
    state = theirs.state_dict()
    for name in state:
        if name.endswith("embed_positions.weight"):
            state[name] = p
        elif name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            state[name] = model.embedding.weight
    state |= marian_names(model.state_dict())
    theirs.load_state_dict(state)
    return theirs.eval()


def marian_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    found = {}
    for name, x in state.items():
        half, _, rest = name.partition(".blocks.")
        if not rest:
            continue
        layer, rest = rest.split(".", 1)
        part, kind = rest.rsplit(".", 1)
        attention = "encoder_attn" if "cross" in part else "self_attn"
        theirs = MARIAN_NAMES.get(part) or f"{attention}.{part.rsplit('.', 1)[1]}"
        found[f"model.{half}.layers.{layer}.{theirs}.{kind}"] = x
    return found


@torch.no_grad()
def test_marian_with_padding() -> None:
    model = made("post")
    tokens = Tokens.padded(LENGTHS, "right")
    source, target = ids(3, S, 1), ids(3, T, 2)
    want = to_marian(model)(
        input_ids=source, attention_mask=(tokens.positions >= 0).long(), decoder_input_ids=target
    ).logits
    found = model(source, target, source_tokens=tokens)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-5)


def ending(seed: int) -> Transformer:
    """A model whose texts come to an end soon, and hold neither BOS nor PAD."""
    model = made("post", seed)
    rows = nn.functional.normalize(model.embedding.weight)
    bias = model.get_parameter("decoder.blocks.2.feed_forward_norm.bias")
    bias += 3 * rows[EOS] - 6 * rows[BOS] - 6 * rows[PAD]
    return model


@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(3))
@torch.no_grad()
def test_marians_beams(seed: int, penalty: float) -> None:
    """transformers' beam search with early_stopping="never", which is exact as ours is."""
    model = ending(seed)
    theirs = to_marian(model)
    sources = [ids(1, n, n)[0].tolist() for n in LENGTHS]
    padded = torch.tensor([[*one, *[PAD] * (S - len(one))] for one in sources])
    asked: dict[str, Any] = {
        "input_ids": padded, "attention_mask": (padded != PAD).long(), "max_new_tokens": 9,
        "do_sample": False, "output_scores": True, "return_dict_in_generate": True,
    }  # fmt: skip
    beams: dict[str, Any] = {"num_beams": 4, "num_return_sequences": 4, "early_stopping": "never"}
    want = theirs.generate(**asked, **beams, length_penalty=penalty)
    scores = want.sequences_scores.view(3, 4).tolist()
    found = beam_search(
        model, sources, beams=4, max_new_tokens=9, length_penalty=penalty, bos=BOS, eos=EOS
    )
    compared = 0
    for row, answers in enumerate(found):
        # Theirs ranks texts without an end among those that came to it.
        ended = [
            (written(one), score)
            for one, score in zip(
                want.sequences[4 * row : 4 * row + 4].tolist(), scores[row], strict=True
            )
            if EOS in one
        ]
        compared += len(ended)
        for (text, score), one in zip(ended, answers, strict=False):
            assert one.finished and list(one.ids) == text
            assert one.score == pytest.approx(score, abs=1e-4)
    assert compared > 3
    alone = theirs.generate(**asked, num_beams=1).sequences.tolist()
    for row, one in zip(
        alone, greedy(model, sources, max_new_tokens=9, bos=BOS, eos=EOS), strict=True
    ):
        assert written(row) == list(one.ids)


def written(row: list[int]) -> list[int]:
    return [index for index in row if index not in (BOS, EOS, PAD)]
