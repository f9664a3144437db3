"""Attention for PyTorch in which a pattern, who may look at whom, is a value.

The table of contents. Names are looked up when they are used: ``eyeline --help`` answers without
importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eyeline.embedding import embed as embed
    from eyeline.encodings import ComplexOrder as ComplexOrder
    from eyeline.encodings import Learned as Learned
    from eyeline.encodings import Rotary as Rotary
    from eyeline.encodings import Sinusoidal as Sinusoidal
    from eyeline.functional import additive_attention as additive_attention
    from eyeline.functional import attention as attention
    from eyeline.functional import attention_weights as attention_weights
    from eyeline.functional import attention_with_lse as attention_with_lse
    from eyeline.functional import column_sums as column_sums
    from eyeline.functional import explain as explain
    from eyeline.functional import linear_attention as linear_attention
    from eyeline.functional import merge as merge
    from eyeline.functional import sparse_attention_weights as sparse_attention_weights
    from eyeline.generation import generate as generate
    from eyeline.generation import stream as stream
    from eyeline.layers import Block as Block
    from eyeline.layers import DecoderBlock as DecoderBlock
    from eyeline.layers import DecoderStack as DecoderStack
    from eyeline.layers import FeedForward as FeedForward
    from eyeline.layers import GatedFeedForward as GatedFeedForward
    from eyeline.layers import MultiHeadAttention as MultiHeadAttention
    from eyeline.layers import RMSNorm as RMSNorm
    from eyeline.layers import Stack as Stack
    from eyeline.layers.conversion import convert as convert
    from eyeline.layers.conversion import from_torch as from_torch
    from eyeline.layers.conversion import restore as restore
    from eyeline.layers.conversion import to_torch as to_torch
    from eyeline.loading import load as load
    from eyeline.loading import save as save
    from eyeline.mechanisms import LSH as LSH
    from eyeline.mechanisms import Additive as Additive
    from eyeline.mechanisms import ClusteredQueries as ClusteredQueries
    from eyeline.mechanisms import Compressed as Compressed
    from eyeline.mechanisms import Exact as Exact
    from eyeline.mechanisms import KMeans as KMeans
    from eyeline.mechanisms import LinearAttention as LinearAttention
    from eyeline.mechanisms import Linformer as Linformer
    from eyeline.mechanisms import Sinkhorn as Sinkhorn
    from eyeline.mechanisms import Threshold as Threshold
    from eyeline.mechanisms import TopK as TopK
    from eyeline.mechanisms import auxiliary_loss as auxiliary_loss
    from eyeline.mechanisms import recipe as recipe
    from eyeline.models import GPT2 as GPT2
    from eyeline.models import Bert as Bert
    from eyeline.models import BertClassifier as BertClassifier
    from eyeline.models import BertConfig as BertConfig
    from eyeline.models import BertMasked as BertMasked
    from eyeline.models import GPT2Config as GPT2Config
    from eyeline.models import Llama as Llama
    from eyeline.models import LlamaConfig as LlamaConfig
    from eyeline.models import Transformer as Transformer
    from eyeline.models import TransformerConfig as TransformerConfig
    from eyeline.patterns import Blocks as Blocks
    from eyeline.patterns import Causal as Causal
    from eyeline.patterns import Chunks as Chunks
    from eyeline.patterns import Dilated as Dilated
    from eyeline.patterns import Explicit as Explicit
    from eyeline.patterns import FixedColumns as FixedColumns
    from eyeline.patterns import Full as Full
    from eyeline.patterns import Global as Global
    from eyeline.patterns import Grid as Grid
    from eyeline.patterns import Pattern as Pattern
    from eyeline.patterns import PerHead as PerHead
    from eyeline.patterns import Predicate as Predicate
    from eyeline.patterns import Random as Random
    from eyeline.patterns import SameSegment as SameSegment
    from eyeline.patterns import Sinks as Sinks
    from eyeline.patterns import Strided as Strided
    from eyeline.patterns import Window as Window
    from eyeline.patterns import bigbird as bigbird
    from eyeline.patterns import longformer as longformer
    from eyeline.patterns import parse as parse
    from eyeline.patterns import prefix_lm as prefix_lm
    from eyeline.patterns import sliding_window as sliding_window
    from eyeline.patterns import sparse_transformer as sparse_transformer
    from eyeline.patterns import streaming as streaming
    from eyeline.planning import Cost as Cost
    from eyeline.planning import block_mask as block_mask
    from eyeline.planning import cost as cost
    from eyeline.planning import dense_mask as dense_mask
    from eyeline.planning import looks_ahead as looks_ahead
    from eyeline.planning import max_path_length as max_path_length
    from eyeline.planning import pairs as pairs
    from eyeline.planning import picture as picture
    from eyeline.planning import plan as plan
    from eyeline.scores import ALiBi as ALiBi
    from eyeline.scores import OffsetBias as OffsetBias
    from eyeline.scores import OffsetFactor as OffsetFactor
    from eyeline.scores import ScoreMod as ScoreMod
    from eyeline.scores import Shaw as Shaw
    from eyeline.scores import Softcap as Softcap
    from eyeline.scores import T5Bias as T5Bias
    from eyeline.scores import TransformerXL as TransformerXL
    from eyeline.tokenizer import ByteTokenizer as ByteTokenizer
    from eyeline.tokens import Tokens as Tokens
    from eyeline.translation import translate as translate

__version__ = "0.1.0"

_CONTENTS = {
    "embedding": ("embed",),
    "encodings": ("ComplexOrder", "Learned", "Rotary", "Sinusoidal"),
    "functional": (
        "additive_attention", "attention", "attention_weights", "attention_with_lse", "column_sums",
        "explain", "linear_attention", "merge", "sparse_attention_weights",
    ),
    "generation": ("generate", "stream"),
    "layers": (
        "Block", "DecoderBlock", "DecoderStack", "FeedForward", "GatedFeedForward",
        "MultiHeadAttention", "RMSNorm", "Stack",
    ),
    "layers.conversion": ("convert", "from_torch", "restore", "to_torch"),
    "loading": ("load", "save"),
    "mechanisms": (
        "Additive", "ClusteredQueries", "Compressed", "Exact", "KMeans", "LSH", "LinearAttention",
        "Linformer", "Sinkhorn", "Threshold", "TopK", "auxiliary_loss", "recipe",
    ),
    "models": (
        "Bert", "BertClassifier", "BertConfig", "BertMasked", "GPT2", "GPT2Config", "Llama",
        "LlamaConfig", "Transformer", "TransformerConfig",
    ),
    "patterns": (
        "Blocks", "Causal", "Chunks", "Dilated", "Explicit", "FixedColumns", "Full", "Global",
        "Grid", "Pattern", "PerHead", "Predicate", "Random", "SameSegment", "Sinks", "Strided",
        "Window", "bigbird", "longformer", "parse", "prefix_lm", "sliding_window",
        "sparse_transformer", "streaming",
    ),
    "planning": (
        "Cost", "block_mask", "cost", "dense_mask", "looks_ahead", "max_path_length",
        "pairs", "picture", "plan",
    ),
    "scores": (
        "ALiBi", "OffsetBias", "OffsetFactor", "ScoreMod", "Shaw", "Softcap", "T5Bias",
        "TransformerXL",
    ),
    "tokenizer": ("ByteTokenizer",),
    "tokens": ("Tokens",),
    "translation": ("translate",),
}  # fmt: skip
_HOME = {name: module for module, names in _CONTENTS.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name == "memory":
        return import_module("eyeline.memory")
    if name not in _HOME:
        raise AttributeError(f"module 'eyeline' has no attribute {name!r}")
    return getattr(import_module(f"eyeline.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME])
