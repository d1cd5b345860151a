"""A folder appears whole, once, and a full disk or another writer leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.refusals import leave_room
from support.refused import refused

from orchestrator.conversion.staging import drafted, require_room
from orchestrator.errors import JobError


def test_it_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "some" / "model"
    with drafted(target) as draft:
        (draft / "file").write_text("content")
        assert not target.exists()
    assert (target / "file").read_text() == "content"
    assert [path.name for path in target.parent.iterdir()] == ["model"]


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fails() -> None:
        with drafted(tmp_path / "model") as draft:
            (draft / "file").write_text("content")
            raise OSError("the disk")

    with pytest.raises(OSError, match="disk"):
        fails()
    assert list(tmp_path.iterdir()) == []


def test_one_at_a_time(tmp_path: Path) -> None:
    with (
        drafted(tmp_path / "model"),
        refused("output_is_held", tmp_path / "model"),
        drafted(tmp_path / "model"),
    ):
        pass
    assert (tmp_path / "model").is_dir()


def test_what_a_killed_one_left_is_in_nobodys_way(tmp_path: Path) -> None:
    program = "from orchestrator.conversion.staging import drafted\nimport os, pathlib, sys\n"
    program += "with drafted(pathlib.Path(sys.argv[1])) as draft:\n    (draft / 'old').touch()\n    os._exit(9)"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "model")], check=False)
    assert [path.name for path in tmp_path.iterdir()] == [".model.export"]
    with drafted(tmp_path / "model"):
        pass
    assert [path.name for path in tmp_path.rglob("*")] == ["model"]


@pytest.mark.parametrize("kind", ["file", "full", "link"])
def test_what_is_there_stays(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "model"
    if kind == "file":
        target.touch()
    elif kind == "full":
        (target / "inside").mkdir(parents=True)
    else:
        target.symlink_to(tmp_path / "elsewhere")
    with refused("output_exists", target), drafted(target):
        pass
    assert target.is_symlink() or target.exists()


def test_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_room(tmp_path / "model", 1)
    with refused("disk_full", tmp_path / "model", "1,000,000 TB", kind=JobError):
        require_room(tmp_path / "model", 10**18)
    with refused("disk_full", "1,000,000 TB", kind=JobError):
        require_room(tmp_path / "model", 1, 10**18)
    leave_room(monkeypatch, 900_000)
    with refused("disk_full", "2.1 MB", "900 kB", kind=JobError):
        require_room(tmp_path / "model", 2_100_000)
