"""Words for classes: tables that modules add to, explicitly, and how such modules are imported."""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from importlib.metadata import entry_points
from typing import Any

from eyeline.errors import EyelineError, InvalidArgument

PLUGINS = "eyeline.plugins"
"""The group of entry points whose modules are imported when a word is not known."""

_WORD = re.compile(r"[a-z_][a-z_0-9]*")
_imported: list[str] = []
_changes, _plugins_loaded = 0, False


def add_word(table: MutableMapping[str, Any], word: str, new: type) -> None:
    """table[word] = new. A class that is defined anew, in a notebook, takes its own place.

    Raises InvalidArgument for what is no word, and for a word that means something else.
    """
    global _changes
    if not isinstance(word, str) or not _WORD.fullmatch(word):
        raise InvalidArgument(f"the word {word!r}: small letters, digits and _, a letter first")
    taken = table.get(word)
    if taken is not None and _name(taken) != _name(new):
        raise InvalidArgument(
            f"the word {word!r} is that of {_name(taken)}: give {_name(new)} another one"
        )
    table[word] = new
    _changes += 1


def has_word(table: Mapping[str, Any], word: str) -> bool:
    """Whether the table has the word, if need be after all installed plugins are imported."""
    return word in table or (load_plugins() and word in table)


def load_plugins() -> bool:
    """Imports what installed packages name as plugins, once; whether that added a word.

    Raises InvalidArgument for a plugin that cannot be imported.
    """
    global _plugins_loaded
    if _plugins_loaded:
        return False
    _plugins_loaded, before = True, _changes
    for entry in entry_points(group=PLUGINS):
        try:
            entry.load()
        except Exception as error:
            what = f"plugin {entry.name}, {entry.value}"
            raise InvalidArgument(f"{what}: {type(error).__name__}: {error}") from error
    return _changes > before


def changes() -> int:
    """How often words were added: what was read from a text before may have changed since."""
    return _changes


def import_named(name: str) -> None:
    """Imports a module that somebody named, from the current folder too, for what it registers.

    Raises InvalidArgument, in one line, where it cannot be imported.
    """
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        raise InvalidArgument(
            f"--import {name}: a module's name is due, such as my_module, no file"
        )
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)
    try:
        importlib.import_module(name)
    except EyelineError:
        raise
    except Exception as error:
        raise InvalidArgument(f"--import {name}: {type(error).__name__}: {error}") from error
    if name not in _imported:
        _imported.append(name)


def imported() -> tuple[str, ...]:
    """The modules of ``import_named``, which a process that this one starts has to import too."""
    return tuple(_imported)


def _name(what: Any) -> str:
    return f"{what.__module__}.{what.__qualname__}"
