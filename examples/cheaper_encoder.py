"""What a cheaper attention does to the sentence vectors of a real encoder, not trained anew.

    python examples/cheaper_encoder.py > benchmarks/results/cheaper_encoder.txt

Topics of Python's language reference become vectors under full attention and under patterns that
look at less. `cosine` compares each vector with its full one; `same nearest` counts the topics
whose most similar other topic is still the same.
"""

from __future__ import annotations

import pydoc_data.topics
from dataclasses import asdict

import torch

from eyeline import load, pairs, parse
from eyeline.embedding import cosines, embed_ids, encode_texts
from eyeline.models.sentence import SentenceSettings

MODEL = "all-MiniLM-L6-v2"
TOKENS = 256
TOPICS = 48
LAYERS = 6
FULL = "full"
# One pattern for all layers, or one for each.
PATTERNS = (
    [FULL] * LAYERS,
    ["window(left=64, right=64)"] * LAYERS,
    ["window(left=32, right=32)"] * LAYERS,
    ["window(left=16, right=16)"] * LAYERS,
    ["window(left=16, right=16)"] * 3 + [FULL] * 3,
    [FULL] * 3 + ["window(left=16, right=16)"] * 3,
    ["window(left=16, right=16) | global(1)"] * LAYERS,
    ["window(left=8, right=8) | global(1)"] * LAYERS,
)


def topics(count: int) -> list[str]:
    """The beginnings of that many topics, those with the most letters."""
    texts = sorted(pydoc_data.topics.topics.values(), key=len, reverse=True)
    return [" ".join(text.split())[:2000] for text in texts[:count]]


def vectors(patterns: list[str], texts: list[str]) -> torch.Tensor:
    """Their sentence vectors where each layer looks under its pattern."""
    rules = [parse(pattern) for pattern in patterns]
    found = load(MODEL, pattern=rules, dtype=torch.float32, packed=False)
    assert found.tokenizer is not None
    settings = asdict(SentenceSettings.of_folder(found.source, found.config))
    encoded = encode_texts(found.tokenizer, texts, max_tokens=settings.pop("max_tokens"))
    assert all(len(each.ids) == TOKENS for each in encoded)
    return embed_ids(found.model, [each.ids for each in encoded], **settings)


def nearest(found: torch.Tensor) -> torch.Tensor:
    """For each vector the index of the most similar other one."""
    return cosines(found).fill_diagonal_(-2.0).argmax(1)


def named(patterns: list[str]) -> str:
    """In the words of --pattern: one for all layers, or one for each half of them."""
    if len(set(patterns)) == 1:
        return patterns[0]
    half = LAYERS // 2
    return f"0-{half - 1}: {patterns[0]}; {half}-{LAYERS - 1}: {patterns[-1]}"


def main() -> None:
    texts = topics(TOPICS)
    full = vectors(PATTERNS[0], texts)
    print(f"{MODEL}, {TOPICS} texts of {TOKENS} tokens")
    print()
    print(f"{'pattern':<43}{'pairs':>7}{'cosine, mean':>14}{'least':>7}{'same nearest':>14}")
    for patterns in PATTERNS:
        found = vectors(patterns, texts)
        cosine = (found * full).sum(1)
        same = int((nearest(found) == nearest(full)).sum())
        looked = sum(pairs(parse(pattern), TOKENS, TOKENS) for pattern in patterns)
        print(
            f"{named(patterns):<43}{looked / (LAYERS * TOKENS**2):>7.1%}{cosine.mean():>14.3f}"
            f"{cosine.min():>7.3f}{same:>8} of {TOPICS}"
        )


if __name__ == "__main__":
    main()
