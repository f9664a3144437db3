"""No public name appears or disappears unseen: each face gives what public_names.txt lists.

``make architecture`` writes the list anew; the difference belongs in the changelog.
"""

from __future__ import annotations

from importlib import import_module

import pytest

import eyeline
from architecture.names import faces, listed


@pytest.mark.parametrize("face", sorted({*faces(), *listed()}))
def test_a_face_gives_what_the_list_has(face: str) -> None:
    given, names = faces().get(face, set()), listed().get(face, set())
    assert given == names, f"new: {sorted(given - names)}; gone: {sorted(names - given)}"


@pytest.mark.parametrize("face", sorted(listed()))
def test_each_name_can_be_had(face: str) -> None:
    home = import_module(face)
    assert not [name for name in listed()[face] if not hasattr(home, name)]
    assert listed()[face] <= set(dir(home))


def test_the_table_of_contents_says_it_twice_alike() -> None:
    assert set(eyeline.__all__) == listed()["eyeline"], "__all__ and the imports for types differ"
