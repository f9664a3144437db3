"""The names that pycountry translates: countries, languages, scripts, subdivisions, currencies.

Its message catalogues come from Debian's iso-codes. A name that nobody has translated is not in
them; one whose translation is the same word is, and counts.
"""

from __future__ import annotations

import gettext
import hashlib
import re
import sys
from pathlib import Path

try:
    import pycountry
except ImportError:
    sys.exit("this example needs pycountry; install it with: pip install pycountry")

# The catalogue of each list, countries first: where two translate one name, the first is taken.
LISTS = {
    "iso3166-1": pycountry.countries,
    "iso639-3": pycountry.languages,
    "iso639-5": pycountry.language_families,
    "iso15924": pycountry.scripts,
    "iso4217": pycountry.currencies,
    "iso3166-3": pycountry.historic_countries,
    "iso3166-2": pycountry.subdivisions,
}
FIELDS = ("name", "official_name", "common_name", "inverted_name")
HELD_OUT = 10
"""Per cent of the names that training does not see."""


class _Untranslated(gettext.NullTranslations):
    """Asked for what a catalogue lacks."""

    def gettext(self, message: str) -> str:
        return ""


def translations(language: str) -> dict[str, str]:
    """From English to the language, for every name that its catalogues hold."""
    found: dict[str, str] = {}
    for domain, entries in LISTS.items():
        try:
            catalogue = gettext.translation(domain, pycountry.LOCALES_DIR, [language])
        except FileNotFoundError:
            continue  # nobody has translated this list
        catalogue.add_fallback(_Untranslated())
        names = {getattr(entry, field, None) for entry in entries for field in FIELDS}
        for name in sorted(name for name in names if name):
            translated = catalogue.gettext(name)
            if translated and not set("\t\n\r") & set(name + translated):
                found.setdefault(name, translated)
    return found


def languages() -> list[str]:
    """The languages that there are catalogues of."""
    return sorted(path.name for path in Path(pycountry.LOCALES_DIR).iterdir() if path.is_dir())


def held_out(name: str) -> bool:
    """Whether a name is kept from training, by its words: "North Babar" is "Babar, North"."""
    words = " ".join(sorted(re.findall(r"\w+", name.casefold())))
    return int.from_bytes(shuffled(words)[:4], "big") % 100 < HELD_OUT


def shuffled(text: str) -> bytes:
    """What to sort by for an order that is always the same and has no reason."""
    return hashlib.sha256(text.encode()).digest()


def write(folder: Path, rows: list[tuple[str, str]], *, kept: list[bool]) -> tuple[Path, Path]:
    """FOLDER/train.tsv and FOLDER/held_out.tsv, two columns each, in an order without a reason."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "train.tsv", folder / "held_out.tsv"
    for path, wanted in zip(paths, (False, True), strict=True):
        some = [row for row, side in zip(rows, kept, strict=True) if side is wanted]
        some.sort(key=lambda row: shuffled("\t".join(row)))
        path.write_text("".join(f"{one}\t{other}\n" for one, other in some), "utf-8")
    return paths
