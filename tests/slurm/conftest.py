"""Clusters for tests: `cluster`, with accounting, and `cluster_without_accounting`, all nodes idle.

Each is started when the first test of a process asks for it, and is put in order again after every test. In the test,
SLURM_CONF is set, so that whatever it starts finds the cluster. Where there can be none, these tests are skipped; with
ORCHESTRATOR_TEST_SLURM=required they fail.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from slurm.cluster import Cluster
from slurm.machine import MachineError
from slurm.packages import what_is_missing
from support.faults import Ranks, ranks_forked_in
from support.light_forks import LightForks
from support.network import changing

FOLDER = f"{Path(__file__).parent}{os.sep}"
FORKED = ("orchestrator.batch", "orchestrator.batch.node", "submitit.core._submit")
"""What a job on a cluster begins with, each with half a second of imports: for a test that is about none of them."""
FAKED = (
    "orchestrator.executors.slurm.array_program",  # first: when submitit is imported it reads a variable that this sets
    "orchestrator.data",
    "orchestrator.launch.notifications",
    "orchestrator.sweeps.search",
    *FORKED,
)
IMPORTED = tuple(
    f"orchestrator.{name}"
    for name in ("executors.slurm.array_program", "executors.slurm.supervisor.command_line", "sweeps.executor")
)
"""What FORKED imports."""
Start = Callable[[bool], Cluster]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever is in this folder is a test on a SLURM cluster."""
    for item in items:
        if str(item.path).startswith(FOLDER):
            item.add_marker("slurm")


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where a cluster is required."""
    if os.environ.get("ORCHESTRATOR_TEST_SLURM") == "required":
        pytest.fail(f"ORCHESTRATOR_TEST_SLURM=required: {reason}")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def clusters(shared_folder: Path) -> Iterator[Start]:
    """Starts a cluster, with accounting or without, or gives the one that was started before."""
    started: dict[bool, Cluster] = {}
    with ExitStack() as stack:

        def start(accounting: bool) -> Cluster:
            if reason := what_is_missing():
                unavailable(reason)
            if accounting not in started:
                cluster = Cluster(accounting=accounting, changing=partial(changing, shared_folder))
                stack.callback(cluster.stop)
                try:
                    cluster.start()
                except MachineError as error:
                    unavailable(str(error))
                started[accounting] = cluster
            return started[accounting]

        yield start


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks from a process that has also imported what FORKED does, and commands that are typed on a login node."""
    typed = ("cancel", "list", "logs", "resume", "status", "submit", "sweep", "sweeps.start")
    commands = (f"orchestrator.cli.runs.{name}" for name in typed)
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), *IMPORTED, *commands) as made:
        yield made


@pytest.fixture(scope="session")
def light_forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LightForks]:
    """The programs of jobs whose training is a fake one."""
    process = LightForks(tmp_path_factory.mktemp("light"), *FAKED)
    yield process
    process.close()


@pytest.fixture
def cluster(clusters: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with accounting."""
    yield from _in_order(clusters(True), monkeypatch)


@pytest.fixture
def cluster_without_accounting(clusters: Start, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster where sacct knows nothing."""
    yield from _in_order(clusters(False), monkeypatch)


def _in_order(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    for name, value in cluster.variables.items():
        monkeypatch.setenv(name, value)
    yield cluster
    cluster.restore()
