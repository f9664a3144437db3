"""How a folder says that vectors of tokens become vectors of texts.

sentence-transformers writes this: ``modules.json`` names the steps (the model, a pooling, perhaps
a norm), the folder of the pooling says which it is, and ``sentence_bert_config.json`` how many
tokens of a text are read. What is not understood there is refused, never ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyeline.checkpoints.base import damaged, read_list, read_object, shown
from eyeline.errors import NotSupported
from eyeline.models.bert import BertConfig
from eyeline.models.config_reader import Attributes
from eyeline.models.gpt2 import GPT2Config
from eyeline.models.pooling import Pooling

MODULES = "modules.json"
_STEPS = (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
_MODES: dict[str, Pooling] = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}


@dataclass(frozen=True)
class SentenceSettings:
    """how: the pooling. normalize: whether vectors are brought to length 1. max_tokens: how many
    tokens of a text are read, those that begin and end it among them; None for all.
    """

    how: Pooling = "mean"
    normalize: bool = False
    max_tokens: int | None = None

    @staticmethod
    def of_folder(folder: Path, config: Any) -> SentenceSettings:
        """What the folder says. Where it says nothing: the mean, as it is, of as many tokens as
        the model has positions for.

        config: the model's. Raises NotSupported for steps and options that are not built,
        CheckpointError for files that are damaged.
        """
        if not (folder / MODULES).is_file():
            return SentenceSettings(max_tokens=last_position(config))
        steps = _steps(folder)
        _refuse_prompts(folder)
        return SentenceSettings(
            how=_how(folder, steps["Pooling"], config.width),
            normalize="Normalize" in steps,
            max_tokens=_max_tokens(folder, config.trained_length),
        )


def last_position(config: Any) -> int | None:
    """How many tokens a model can read at most: where its positions are a table, that long."""
    table = isinstance(config, (BertConfig, GPT2Config))
    return int(config.trained_length) if table else None


def _steps(folder: Path) -> dict[str, str]:
    """The kind of each step, in order, with the folder of its files."""
    steps: list[tuple[str, str]] = []
    for step in read_list(folder / MODULES):
        if not isinstance(step, dict) or not isinstance(step.get("path"), str):
            raise damaged(folder / MODULES, f"{shown(step)} is no step with a path")
        kind = str(step.get("type"))
        if not kind.startswith("sentence_transformers."):
            raise NotSupported(f"{folder / MODULES}: the step {shown(kind)} is not built yet")
        steps.append((kind.rpartition(".")[2], step["path"]))
    if [kind for kind, _ in steps] not in _STEPS or steps[0][1]:
        raise NotSupported(
            f"{folder / MODULES}: the steps {shown(steps, limit=120)} are not built yet; the model"
            " in this folder, a pooling, and perhaps a norm are"
        )
    return dict(steps)


def _how(folder: Path, place: str, width: int) -> Pooling:
    if not re.fullmatch(r"\w[\w.-]*", place):  # nothing outside the folder is opened
        raise damaged(folder / MODULES, f"{shown(place)} is not the name of a folder in it")
    path = folder / place / "config.json"
    attributes = Attributes(read_object(path), model=str(path))
    attributes.expect("word_embedding_dimension", width)
    chosen = [how for name, how in _MODES.items() if attributes.flag(name, False)]
    attributes.expect("pooling_mode_mean_sqrt_len_tokens", False)
    attributes.expect("pooling_mode_weightedmean_tokens", False)
    attributes.expect("pooling_mode_lasttoken", False)
    attributes.expect("include_prompt", True)
    attributes.done()
    if len(chosen) != 1:
        raise NotSupported(f"{path}: {len(chosen)} poolings at once are not built yet; one is")
    return chosen[0]


def _max_tokens(folder: Path, positions: int) -> int:
    """As sentence-transformers: what is said, else what both tokenizer and model can take."""
    path = folder / "sentence_bert_config.json"
    attributes = Attributes(read_object(path, missing_ok=True), model=str(path))
    attributes.expect("do_lower_case", False)
    told = read_object(folder / "tokenizer_config.json", missing_ok=True).get("model_max_length")
    least = min(positions, told) if isinstance(told, int) else positions
    most = attributes.whole("max_seq_length", least)
    attributes.done()
    return most


def _refuse_prompts(folder: Path) -> None:
    path = folder / "config_sentence_transformers.json"
    attributes = Attributes(read_object(path, missing_ok=True), model=str(path))
    # Put before every text.
    attributes.expect("default_prompt_name", None)
    attributes.expect("similarity_fn_name", None, "cosine")
    attributes.expect("truncate_dim", None)
    attributes.expect("model_type", "SentenceTransformer")
    attributes.harmless(("__version__", "prompts"))
    attributes.done()
