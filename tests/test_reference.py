"""The generated pages are what the code says now."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """scripts/reference.py as a module."""
    spec = importlib.util.spec_from_file_location("reference", ROOT / "scripts" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["job-spec.md", "cluster-profile.md", "commands.md", "fitted-constants.md", "megatron-performance-flags.md"]
)
def test_reference_page_is_not_stale(reference: ModuleType, name: str) -> None:
    assert (ROOT / "docs" / "reference" / name).read_text() == reference.pages()[name], "run `make docs`"


def test_every_field_of_a_spec_is_documented(reference: ModuleType) -> None:
    lines = [*reference.spec_page().splitlines(), *reference.profile_page().splitlines()]
    assert [line for line in lines if line.startswith("| `") and line.endswith("|  |")] == []


def test_every_command_has_an_example(reference: ModuleType) -> None:
    # A command that only groups others has its examples on those.
    without = []
    for section in reference.commands_page().split("\n#")[1:]:
        title, _, body = section.partition("\n")
        if "`orchestrator" in title and "```" not in body and "| `" in body:
            without.append(title)
    assert without == []
