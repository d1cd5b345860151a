"""What is noted down of a folder's code, and that looking at it runs nothing that its repository names."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from orchestrator.launch.code.code_version import code_state
from orchestrator.launch.code.snapshot import take_snapshot
from orchestrator.run_directory.rundir import RunDir

PROGRAMS = ("core.fsmonitor", "diff.external", "diff.own.command", "diff.own.textconv", "filter.own.clean")
SUBMODULE = "third_party/library"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def repository(root: Path) -> Path:
    root.mkdir()
    git(root, "init", "-q")
    (root / "train.py").write_text("print(1)\n")
    (root / "table.bin").write_text("1\n")
    (root / ".gitattributes").write_text("*.bin filter=own diff=own\n")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    return root


def make_hostile(root: Path, settings: Path, markers: Path) -> None:
    """A repository whose own settings name programs, each of which leaves a marker; and its hook does."""
    for name in PROGRAMS:
        program = markers.parent / f"{name}.sh"
        program.write_text(f"#!/bin/sh\ntouch '{markers}/{name}'\ncat\n")
        program.chmod(0o755)
        subprocess.run(["git", "config", "--file", str(settings / "config"), name, str(program)], check=True)
    hook = settings / "hooks" / "post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch '{markers}/hook'\n")
    hook.chmod(0o755)
    for name in ("train.py", "table.bin"):
        (root / name).write_text("changed\n")
        os.utime(root / name, (1_700_000_000, 1_700_000_000))
    (root / "new.py").write_text("new\n")


@pytest.fixture
def markers(tmp_path: Path) -> Path:
    (tmp_path / "markers").mkdir()
    return tmp_path / "markers"


def test_a_repository_runs_nothing(tmp_path: Path, markers: Path) -> None:
    root = repository(tmp_path / "root")
    make_hostile(root, root / ".git", markers)
    state = code_state(root)
    run = RunDir(tmp_path / "runs" / "tiny" / "0a1b2c3d")
    run.path.mkdir(parents=True)
    take_snapshot(run, root)
    assert os.listdir(markers) == []
    assert state.record["repositories"][0]["dirty"]
    for change in (b"\n-print(1)\n+changed\n", b"\n-1\n+changed\n", b"\n+new\n"):
        assert change in state.diff
    git(root, "diff", "HEAD")
    assert os.listdir(markers), "git itself runs them"


def test_a_submodule_runs_nothing_and_is_noted_down(tmp_path: Path, markers: Path) -> None:
    library, root = repository(tmp_path / "library"), repository(tmp_path / "root")
    git(root, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), SUBMODULE)
    git(root, "commit", "-q", "-m", "with a library")
    assert [each["dirty"] for each in code_state(root).record["repositories"][:2]] == [False, False]
    make_hostile(root / SUBMODULE, root / ".git" / "modules" / SUBMODULE, markers)
    state = code_state(root)
    assert os.listdir(markers) == []
    outer, inner = state.record["repositories"][:2]
    assert (outer["root"], outer["dirty"]) == (str(root), True)
    assert (inner["root"], inner["dirty"]) == (str(root / SUBMODULE), True)
    assert inner["commit"] == git(library, "rev-parse", "HEAD")
    assert b"\n-print(1)\n+changed\n" in state.diff


def test_filters_of_the_user_s_own_are_kept(tmp_path: Path, markers: Path) -> None:
    """As git-lfs has one: without it every file that it keeps elsewhere would seem to be changed."""
    git(tmp_path, "config", "--global", "filter.own.clean", "tr a-z A-Z")
    root = repository(tmp_path / "root")
    make_hostile(root, root / ".git", markers)
    (root / "train.py").write_text("print(1)\n")
    state = code_state(root)
    git(tmp_path, "config", "--global", "--unset", "filter.own.clean")
    assert b"\n-1\n+CHANGED\n" in state.diff
    assert os.listdir(markers) == []
