"""Pairs to train a translator on: English names and their translations, from pycountry.

python examples/names.py --language de --out pairs
eyeline train seq2seq pairs/train.tsv --held-out pairs/held_out.tsv --out names-de
eyeline translate names-de "New Zealand" --best 3
eyeline translate names-de --score pairs/held_out.tsv
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from catalogues import held_out, languages, translations, write


def main() -> None:
    parser = argparse.ArgumentParser(description="English names and their translations, as TSV.")
    parser.add_argument("--language", default="de", help="such as de or es")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    asked = parser.parse_args()
    pairs = sorted(translations(asked.language).items())
    if not pairs:
        sys.exit(f"pycountry has no names in {asked.language!r}; it has {' '.join(languages())}")
    kept = [held_out(name) for name, _ in pairs]
    for path, side in zip(write(asked.out, pairs, kept=kept), (False, True), strict=True):
        some = [pair for pair, is_kept in zip(pairs, kept, strict=True) if is_kept is side]
        copies = sum(name == translated for name, translated in some)
        print(f"{path}: {len(some):,} pairs, {100 * copies / len(some):.1f} % the same word")


if __name__ == "__main__":
    main()
