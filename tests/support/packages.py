"""What tests need of the distribution: installed by root with apt-get, and by nobody else."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Sequence


class InstallationError(Exception):
    """The packages could not be installed; the message says why."""


def install(packages: Sequence[str]) -> None:
    """Install packages, after a look for newer lists where that is needed. Raises InstallationError."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "--no-install-recommends", "-o=DPkg::Lock::Timeout=120", *packages]
    for command in (install, ["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 0 and command is install:
            return
    raise InstallationError(done.stderr.strip())


def install_for(tests: str, packages: Sequence[str], reason: str | None, how: Callable[[], None]) -> None:
    """Install by `how` what is missing (`reason`) for some tests, where that is possible; say in one line what happens,
    or why it does not.
    """
    if reason is None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"The tests {tests} will be skipped: installing what they need takes root and apt-get. {reason}")
        return
    print(f"Installing for the tests {tests}: {' '.join(packages)}", flush=True)
    try:
        how()
    except InstallationError as error:
        print(f"The tests {tests} will be skipped: {error}")
