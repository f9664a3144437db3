"""What pyproject.toml promises is run by the public CI: the oldest Python and torch, no extras."""

from __future__ import annotations

import re

from architecture.source import ROOT

PROJECT = (ROOT / "pyproject.toml").read_text("utf-8")
WORKFLOW = (ROOT / ".github" / "workflows" / "ci.yml").read_text("utf-8")


def claimed(pattern: str) -> str:
    match = re.search(pattern, PROJECT, re.MULTILINE)
    assert match is not None, pattern
    return match[1]


def test_the_oldest_versions_are_run() -> None:
    assert f'"{claimed(r"^requires-python = .>=([0-9.]+).$")}"' in WORKFLOW
    assert f'"torch=={claimed(r"^dependencies = ..torch>=([0-9.]+)..$")}.*"' in WORKFLOW


def test_the_python_versions_named_are_run() -> None:
    named = re.findall(r"Python :: (3\.\d+)", PROJECT)
    assert named and all(f'"{version}"' in WORKFLOW for version in named)


def test_actions_are_pinned_by_commit() -> None:
    uses = re.findall(r"uses: (\S+)", WORKFLOW)
    assert uses and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in uses)


def test_the_tests_without_extras_exist() -> None:
    script = (ROOT / ".ci" / "wheel").read_text("utf-8")
    named = re.findall(r"tests/[\w/.]+", script)
    assert named and all((ROOT / path).exists() for path in named)
