"""`orchestrator sync`, as a person or a program calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.tracking.conftest import free_port, log_steps, losses, make_run, only_run


def sync(*arguments: str, runs_dir: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "orchestrator", "sync", *arguments, "--runs-dir", str(runs_dir)]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, stdin=subprocess.DEVNULL)


@pytest.mark.usefixtures("forked_sending")
def test_what_a_dead_server_missed_is_sent_by_hand(tmp_path: Path, store_in: Path) -> None:
    fine = make_run(tmp_path, "00000001")
    address = f"http://127.0.0.1:{free_port()}"
    make_run(tmp_path, "00000002", tracking={"uri": address})
    make_run(tmp_path, "00000003", tracking={"mlflow": False})
    log_steps(fine, range(1, 4))

    first = sync("--all", runs_dir=tmp_path)
    assert first.returncode == 1
    assert first.stdout.splitlines() == [
        "tiny/00000001: 9 values sent",
        "tiny/00000003: not tracked (tracking.mlflow is false in its spec)",
    ]
    assert first.stderr == f"tiny/00000002: not sent: MLflow at {address}: it cannot be reached: connection refused\n"
    assert len(losses(only_run(store_in))) == 3

    again = sync("00000001", "--json", runs_dir=tmp_path)
    assert (again.returncode, again.stderr) == (0, "")
    [record] = json.loads(again.stdout)
    expected = {"run_id": "00000001", "run_dir": str(fine.path), "state": "sent", "message": "", "metrics": 0}
    assert record == {**expected, "mlflow_run_id": only_run(store_in).run_id}


def test_what_to_send_must_be_said(tmp_path: Path) -> None:
    neither, both = sync(runs_dir=tmp_path), sync("x", "--all", runs_dir=tmp_path)
    assert neither.returncode == both.returncode == 2
    assert neither.stderr == both.stderr
    assert neither.stderr.startswith("error: name runs, or add --all")
    assert sync("nothing", runs_dir=tmp_path).returncode == 2
    empty = sync("--all", runs_dir=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, f"no runs in {tmp_path}\n")
