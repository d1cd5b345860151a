"""`make test-fast` begins with the tests that a change is most likely to break."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.affected import Graph, affected, changed_since, dependencies

GRAPH = {
    "tests/test_near.py": {"package/changed.py"},
    "tests/test_far.py": {"package/between.py"},
    "package/between.py": {"package/changed.py"},
    "tests/test_other.py": {"package/other.py"},
}


def test_the_nearest_come_first_and_what_does_not_depend_on_it_never(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    for file in GRAPH:
        if file.startswith("tests/"):
            (tmp_path / file).touch()
    assert affected(["package/changed.py"], GRAPH, tmp_path) == ["tests/test_near.py", "tests/test_far.py"]
    assert affected(["tests/test_other.py"], GRAPH, tmp_path) == ["tests/test_other.py"]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return dependencies()


@pytest.mark.parametrize(
    ("changed", "test"),
    [
        ("orchestrator/spec/layout/ramp.py", "tests/unit/planning/test_batch.py"),
        ("orchestrator/cli/main.py", "tests/unit/cli/test_main.py"),
        ("orchestrator/data/chat/jinja.py", "tests/unit/data/test_rendering.py"),
        ("tests/support/pace.py", "tests/unit/spec/test_files.py"),
    ],
    ids=["imported", "through a fixture", "started by its name", "a part of the tests"],
)
def test_a_test_is_near_what_it_imports_or_starts(graph: Graph, changed: str, test: str) -> None:
    assert test in affected([changed], graph)[:100]


def test_a_change_is_what_differs_from_the_base_committed_or_not(
    tmp_path: Path,
) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    def write(**files: str) -> None:
        for name, text in files.items():
            (tmp_path / name).write_text(text)

    git("init", "-q")
    write(same="1", committed="1", edited="1", gone="1")
    git("add", ".")
    git("commit", "-qm", "base")
    write(committed="2")
    git("commit", "-qam", "change")
    write(edited="2", new="1")
    (tmp_path / "gone").unlink()
    assert changed_since("HEAD~1", tmp_path) == {"committed", "edited", "new", "gone"}
    assert changed_since(None, tmp_path) == {"edited", "new", "gone"}
