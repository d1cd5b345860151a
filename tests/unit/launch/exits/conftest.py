"""A run whose ranks have ended."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.run_directory.rundir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "tiny" / "abcd1234")
    run.logs.mkdir(parents=True)
    return run


@pytest.fixture
def record(run: RunDir) -> Callable[..., None]:
    """record(rank, cause, message, iteration): an exit record of launch "a"."""

    def write(rank: int, cause: str, message: str = "", iteration: int | None = 9) -> None:
        path = run.exit_record("a", rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"cause": cause, "message": message, "iteration": iteration}))

    return write
