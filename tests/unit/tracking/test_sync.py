"""`orchestrator sync`, as a person or a program calls it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from support.commands import Commands, Said

from tests.unit.tracking.conftest import free_port, log_steps, losses, make_run, only_run


def sync(commands: Commands, *arguments: str, runs_dir: Path) -> Said:
    return commands("sync", *arguments, "--runs-dir", runs_dir, cwd=Path.cwd(), env=os.environ, timeout=240)


@pytest.mark.usefixtures("forked_sending")
def test_what_a_dead_server_missed_is_sent_by_hand(commands: Commands, tmp_path: Path, store_in: Path) -> None:
    fine = make_run(tmp_path, "00000001")
    address = f"http://127.0.0.1:{free_port()}"
    make_run(tmp_path, "00000002", tracking={"uri": address})
    make_run(tmp_path, "00000003", tracking={"mlflow": False})
    log_steps(fine, range(1, 4))

    first = sync(commands, "--all", runs_dir=tmp_path)
    assert first.code == 1
    assert first.out.splitlines() == [
        "tiny/00000001: 9 values sent",
        "tiny/00000003: not tracked (tracking.mlflow is false in its spec)",
    ]
    assert first.err == f"tiny/00000002: not sent: MLflow at {address}: it cannot be reached: connection refused\n"
    assert len(losses(only_run(store_in))) == 3

    again = sync(commands, "00000001", "--json", runs_dir=tmp_path)
    assert (again.code, again.err) == (0, "")
    [record] = json.loads(again.out)
    expected = {"run_id": "00000001", "run_dir": str(fine.path), "state": "sent", "message": "", "metrics": 0}
    assert record == {**expected, "mlflow_run_id": only_run(store_in).run_id}


def test_what_to_send_must_be_said(commands: Commands, tmp_path: Path) -> None:
    neither, both = sync(commands, runs_dir=tmp_path), sync(commands, "x", "--all", runs_dir=tmp_path)
    assert neither.code == both.code == 2
    assert neither.err == both.err
    assert neither.err.startswith("error: name runs, or add --all")
    assert sync(commands, "nothing", runs_dir=tmp_path).code == 2
    empty = sync(commands, "--all", runs_dir=tmp_path)
    assert (empty.code, empty.out) == (0, f"no runs in {tmp_path}\n")
