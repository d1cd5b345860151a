"""`hosts`: four machines that answer to `ssh`, started once for each process of the tests, and in order again after
each. Where there can be none, these tests are skipped; with ORCHESTRATOR_TEST_SLURM=required they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
from slurm.machine import MachineError, search_path
from ssh.hosts import Hosts
from ssh.runs import STEPS
from support.commands import Commands
from support.faults import CommandLine, Ranks, ranks_forked_in
from support.fixtures import inject
from support.held import HOLD, hold_at
from support.network import changing
from support.training import four_layer_job

from orchestrator.spec.job import JobSpec

__all__ = ["inject"]

PROGRAMS = ("sshd", "ssh", "ssh-keygen", "ip", "nsenter", "setpriv", "unshare")


@pytest.fixture(scope="session")
def _hosts(shared_folder: Path) -> Iterator[Hosts]:
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    if os.geteuid() != 0 or absent:
        unavailable(f"hosts need root and {', '.join(absent or PROGRAMS)}; `make install-slurm` installs them")
    hosts = Hosts(4, partial(changing, shared_folder))
    try:
        hosts.start()
        yield hosts
    except MachineError as error:
        unavailable(str(error))
    finally:
        hosts.stop()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks from a process that has also imported what starts them on several machines."""
    imported = ("cli.runs.run", "executors.ssh.__main__", "launch.__main__")
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), *(f"orchestrator.{name}" for name in imported)) as made:
        yield made


@pytest.fixture
def hosts(_hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("PATH", _hosts.path)
    yield _hosts
    _hosts.restore()


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where machines are required."""
    if os.environ.get("ORCHESTRATOR_TEST_SLURM") == "required":
        pytest.fail(f"ORCHESTRATOR_TEST_SLURM=required: {reason}")
    pytest.skip(reason)


@pytest.fixture
def make_job(tmp_path: Path, inject: Callable[[str], Path], ranks: Ranks) -> Callable[..., JobSpec]:
    """make_job(name, layout, hosts, held=False, **launch): a rank on each host, found by the address that it has."""

    def make(name: str, parallelism: dict[str, Any], *hosts: str, held: bool = False, **launch: Any) -> JobSpec:
        forked = ranks.for_commands(inject(HOLD).parent) if held else ranks.for_commands()
        env = {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1", **forked}
        if held:  # the first start and the second one, each when it has saved
            env |= hold_at(5, 8, None, since=0)
        return four_layer_job(
            name,
            model={"num_layers": 2, "hidden_dropout": 0.1},
            schedule={"train_iters": STEPS, "lr_decay_iters": STEPS},
            checkpoint={"save_interval": 3, "keep_last": 3},
            parallelism=parallelism,
            launch={"executor": "ssh", "hosts": list(hosts), "requeue_delay": 1, "env": env, **launch},
        )

    return make


@pytest.fixture
def here(ranks: Ranks, tmp_path: Path) -> Callable[[JobSpec], dict[int, float]]:
    """The losses of a job on one machine that nothing happens to."""

    def trained(job: JobSpec) -> dict[int, float]:
        alone = {"nodes": 1, "executor": None, "hosts": [], "copy_to": None, "env": {"OMP_NUM_THREADS": "1"}}
        return ranks.losses_of(job.changed(launch=alone), tmp_path / "here")

    return trained


@pytest.fixture
def command(tmp_path: Path, commands: Commands, ranks: Ranks) -> CommandLine:
    """Whose launches are forked, and so is a run in the foreground."""
    made = CommandLine(tmp_path, commands, ranks)
    made.env["FORKED_TOO"] = "orchestrator orchestrator.executors.ssh orchestrator.launch"
    return made
