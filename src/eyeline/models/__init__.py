"""Models, one file each: configuration, name map and module, to be read from top to bottom."""

from collections.abc import Mapping

from eyeline.models import bert, gpt2, llama
from eyeline.models.base import Family as Family
from eyeline.models.base import LanguageModel as LanguageModel
from eyeline.models.base import Model as Model
from eyeline.models.bert import Bert as Bert
from eyeline.models.bert import BertClassifier as BertClassifier
from eyeline.models.bert import BertConfig as BertConfig
from eyeline.models.bert import BertMasked as BertMasked
from eyeline.models.gpt2 import GPT2 as GPT2
from eyeline.models.gpt2 import GPT2Config as GPT2Config
from eyeline.models.llama import Llama as Llama
from eyeline.models.llama import LlamaConfig as LlamaConfig
from eyeline.models.trace import trace as trace
from eyeline.models.transformer import Transformer as Transformer
from eyeline.models.transformer import TransformerConfig as TransformerConfig

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        LlamaConfig,
        Llama,
        llama.weight_names,
        hf=("llama", "mistral"),
        gguf="llama",
        derived=llama.derived,
        tied={"lm_head.weight": "embedding.weight"},
    ),
    "gpt2": Family(
        GPT2Config,
        GPT2,
        gpt2.weight_names,
        hf=("gpt2",),
        gguf="gpt2",
        derived=gpt2.derived,
        tied={"lm_head.weight": "embedding.weight"},
    ),
    "bert": Family(
        BertConfig,
        Bert,
        bert.weight_names,
        hf=("bert",),
        architectures=("BertModel",),
        derived=bert.derived,
    ),
    "bert_masked": Family(
        BertConfig,
        BertMasked,
        bert.masked_names,
        hf=("bert",),
        architectures=("BertForMaskedLM", "BertForPreTraining"),
        derived=bert.derived,
        tied={"cls.predictions.decoder.weight": "head.weight"},
    ),
    "bert_classifier": Family(
        BertConfig,
        BertClassifier,
        bert.classifier_names,
        hf=("bert",),
        architectures=("BertForSequenceClassification",),
        derived=bert.derived,
    ),
    "transformer": Family(TransformerConfig, Transformer),
}
