"""A store of MLflow's, for the tests of all folders."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.light_forks import LightForks


@pytest.fixture(scope="session")
def light_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightForks]:
    """Programs that import no torch from one process for the tests of all folders."""
    process = LightForks(
        tmp_path_factory.mktemp("light"),
        "orchestrator.cli.runs.drill",
        "orchestrator.cli.runs.run",
        "orchestrator.cli.runs.sweep",
        "orchestrator.data",
        "orchestrator.launch",
        "orchestrator.launch.notifications",
        "orchestrator.executors.kubernetes.pod",
        "orchestrator.executors.slurm.array_program",
        "orchestrator.sweeps",
        "orchestrator.sweeps.ending",
        "orchestrator.sweeps.search",
        "submitit.core._submit",
    )
    yield process
    process.close()


@pytest.fixture
def store_in(tmp_path: Path, empty_store: Path) -> Path:
    """The store of the runs folder `tmp_path`, made already."""
    return Path(shutil.copy(empty_store, tmp_path / "mlflow.db"))


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test begins, with the profile of a cluster `lab`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "lab.yaml").write_text("name: lab\ntime: 1h\n")
    return tmp_path
