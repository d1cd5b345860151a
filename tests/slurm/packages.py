"""SLURM from the distribution's packages: `PYTHONPATH=tests python -m slurm.packages` installs it (root, apt-get)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from slurm.machine import search_path

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "util-linux"]
PACKAGES += ["slurmdbd", "mariadb-server-core", "mariadb-client-core"]  # accounting
PACKAGES += ["shellcheck"]  # for the batch scripts
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd", "mariadb", "ip"]
PROGRAMS += ["nsenter", "setpriv", "unshare"]


class InstallationError(Exception):
    """The packages could not be installed; the message says why."""


def what_is_missing() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if os.geteuid() != 0:
        return "only root may start a SLURM cluster (its nodes are network namespaces)"
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    return (
        f"SLURM is not installed: {', '.join(absent)} not found; `make install-slurm` installs it" if absent else None
    )


def install() -> None:
    """Install what is missing. Raises InstallationError."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "--no-install-recommends", "-o=DPkg::Lock::Timeout=120", *PACKAGES]
    # Packages start their daemons unless this file says no. The tests start their own.
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        for command in (install, ["apt-get", "update", "-qq"], install):
            done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
            if done.returncode == 0 and command is install:
                return
    finally:
        if is_ours:
            policy.unlink()
    raise InstallationError(done.stderr.strip())


def main() -> None:
    """Install SLURM where that is possible; say in one line what happens, or why it does not."""
    reason = what_is_missing()
    if reason is None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"The tests on a SLURM cluster will be skipped: installing it needs root and apt-get. {reason}")
        return
    print(f"Installing for the tests on a SLURM cluster: {' '.join(PACKAGES)}", flush=True)
    try:
        install()
    except InstallationError as error:
        print(f"The tests on a SLURM cluster will be skipped: {error}")


if __name__ == "__main__":
    main()
