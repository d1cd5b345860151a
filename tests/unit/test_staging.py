"""Folders of checkpoints that are no longer there."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from support.refusals import before

from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE
from orchestrator.runtime.checkpointing.staging import Removals, drafts_beside


def test_a_removed_checkpoint_is_none_at_once_and_gone_after_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def wait(*arguments: Any) -> None:
        assert go_on.wait(60)

    before(monkeypatch, "shutil.rmtree", wait)
    checkpoint = tmp_path / "iter_0000010"
    checkpoint.mkdir()
    (checkpoint / COMMIT_FILE).write_text("{}")
    removals = Removals()
    removals.start(checkpoint, 3)
    assert not checkpoint.exists()
    [left] = drafts_beside(checkpoint)
    assert (left / COMMIT_FILE).exists()
    go_on.set()
    removals.wait()
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_removed_is_said(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="iter_0000010"):
        Removals().start(tmp_path / "iter_0000010", 3)
