"""`hosts`: four machines that answer to `ssh`, started once for each process of the tests, and in order again after
each. Where there can be none, these tests are skipped; with ORCHESTRATOR_TEST_SLURM=required they fail.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
from slurm.machine import MachineError, search_path
from ssh.hosts import Hosts
from support.network import changing

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


@pytest.fixture
def hosts(_hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    monkeypatch.setenv("PATH", _hosts.path)
    yield _hosts
    for name in _hosts.names:
        _hosts.boot(name)
        _hosts.heal(name)


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it where machines are required."""
    if os.environ.get("ORCHESTRATOR_TEST_SLURM") == "required":
        pytest.fail(f"ORCHESTRATOR_TEST_SLURM=required: {reason}")
    pytest.skip(reason)
