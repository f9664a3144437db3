"""Texts to tell languages apart: names in ten languages of Latin script, from pycountry.

    python examples/languages.py --out languages
    eyeline train classify languages/train.tsv --held-out languages/held_out.tsv --out tell

A name that two of the languages share, or that is the English one, tells nothing and is left out.
"""

from __future__ import annotations

import argparse
from collections import Counter, defaultdict
from pathlib import Path

from catalogues import held_out, shuffled, translations, write

LANGUAGES = ("de", "es", "fr", "hu", "it", "nl", "pl", "sv", "tr")
MOST = 1400


def labelled() -> dict[str, tuple[str, str]]:
    """From each name that only one language has to that language and the English name."""
    seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for language in LANGUAGES:
        for name, translated in translations(language).items():
            seen[translated].add((language, name))
            seen[name].add(("en", name))
    return {
        text: min(where)
        for text, where in seen.items()
        if len({language for language, _ in where}) == 1
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="Names and their languages, as TSV.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--most", type=int, default=MOST, help="names of a language at most")
    asked = parser.parse_args()
    rows, kept, counts = [], [], Counter[str]()
    for text, (language, name) in sorted(labelled().items(), key=lambda row: shuffled(row[0])):
        counts[language] += 1
        if counts[language] <= asked.most:
            rows.append((text, language))
            kept.append(held_out(name))
    paths = write(asked.out, rows, kept=kept)
    for path, side in zip(paths, (False, True), strict=True):
        some = Counter(row[1] for row, is_kept in zip(rows, kept, strict=True) if is_kept is side)
        listed = ", ".join(f"{language} {count:,}" for language, count in sorted(some.items()))
        print(f"{path}: {some.total():,} names ({listed})")


if __name__ == "__main__":
    main()
