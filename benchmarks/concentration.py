"""On a real model: on how few keys the weight lies, and how alike the columns of weights are."""

from __future__ import annotations

from torch import Tensor

from eyeline.measuring import concentration, redundancy

from .pretrained import ours
from .report import Report
from .settings import MODEL, Settings
from .texts import reference_ids

SHARE, COSINE = 0.95, 0.99


def run(settings: Settings) -> None:
    long, short = settings.size(2048, 64), settings.size(512, 32)
    report = Report(
        "concentration",
        "What weight lies where, while a real model reads the language reference",
        settings,
        [
            "layer",
            "keys that hold 95 %",
            "least head",
            "most",
            "effective rank",
            "repeated columns",
        ],
        {"model": MODEL, "tokens": long, "tokens for rank and columns": short},
    )
    loaded = ours("float32")
    ids = reference_ids(loaded.tokenizer, long)
    held = concentration(loaded.model, ids, share=SHARE)
    alike = redundancy(loaded.model, ids[:short], cosine=COSINE)
    for layer, of_heads in enumerate(held):
        least, most = (_percent(x) for x in of_heads.aminmax())
        rank = f"{alike.rank[layer].mean():.0f} of {short}"
        repeated = _percent(alike.repeated[layer].mean())
        report.rows.append([str(layer), _percent(of_heads.mean()), least, most, rank, repeated])
    mean = [_percent(x.mean()) for x in (held, alike.repeated)]
    rank = f"{alike.rank.mean():.0f} of {short}"
    report.rows.append(["mean", mean[0], _percent(held.min()), _percent(held.max()), rank, mean[1]])
    report.notes += [
        "keys that hold 95 %: the mean over queries of the fewest keys whose weights sum to 0.95, "
        "over the keys that the causal pattern allows; over a layer's heads the mean, the least "
        "and the most.",
        "effective rank: exp of the entropy of the shares of the singular values; repeated: "
        f"columns whose cosine with an earlier one exceeds {COSINE}.",
    ]
    report.finish()


def _percent(share: Tensor) -> str:
    return f"{100 * float(share):.1f} %"
