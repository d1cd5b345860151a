"""A store of MLflow's, for the tests of all folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.light_forks import LightForks
from support.made_once import made_once


@pytest.fixture(scope="session")
def empty_store(shared_folder: Path) -> Path:
    """A store without runs, made once: its dozens of tables take seconds."""
    return made_once(shared_folder / "store", _make_store) / "mlflow.db"


def _make_store(folder: Path) -> None:
    """In an environment that asks for nothing, in which MLflow would report to its makers by default."""
    program = """if True:
        import pathlib, sys
        import orchestrator.tracking.program
        from orchestrator.tracking.mlflow.store import connect
        from mlflow.telemetry import get_telemetry_client
        from mlflow.telemetry.utils import is_telemetry_disabled
        connect(pathlib.Path(sys.argv[1]), None)
        print(is_telemetry_disabled(), get_telemetry_client())
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [sys.executable, "-c", program, str(folder)]
    made = subprocess.run(command, env=environment, check=True, timeout=240, capture_output=True, text=True)
    assert (made.stdout, made.stderr) == ("True None\n", "")


@pytest.fixture(scope="session")
def light_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightForks]:
    """Programs that import no torch from one process for the tests of all folders."""
    process = LightForks(
        tmp_path_factory.mktemp("light"),
        "orchestrator.cli.runs.drill",
        "orchestrator.cli.runs.run",
        "orchestrator.cli.runs.sweep",
        "orchestrator.launch",
        "orchestrator.launch.notifications",
        "orchestrator.executors.kubernetes.pod",
        "orchestrator.executors.slurm.array_program",
        "orchestrator.sweeps",
        "orchestrator.sweeps.search",
        "submitit.core._submit",
    )
    yield process
    process.close()


@pytest.fixture
def store_in(tmp_path: Path, empty_store: Path) -> Path:
    """The store of the runs folder `tmp_path`, made already."""
    return Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))
