"""SLURM from the distribution's packages: `PYTHONPATH=tests python -m slurm.packages` installs it (root, apt-get)."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from slurm.machine import search_path
from support.packages import install, install_for

PACKAGES = ["slurmctld", "slurmd", "slurm-client", "munge", "iproute2", "util-linux"]
PACKAGES += ["slurmdbd", "mariadb-server-core", "mariadb-client-core"]  # accounting
PACKAGES += ["shellcheck"]  # for the batch scripts
PACKAGES += ["openssh-server", "openssh-client", "rsync"]  # for the tests in tests/ssh
PROGRAMS = ["slurmctld", "slurmd", "sbatch", "munged", "slurmdbd", "mariadbd", "mariadb", "ip"]
PROGRAMS += ["nsenter", "setpriv", "unshare", "sshd", "ssh"]


def what_is_missing() -> str | None:
    """Why no cluster can be started here; None where one can."""
    if os.geteuid() != 0:
        return "only root may start a SLURM cluster (its nodes are network namespaces)"
    absent = [name for name in PROGRAMS if shutil.which(name, path=search_path()) is None]
    return (
        f"SLURM is not installed: {', '.join(absent)} not found; `make install-slurm` installs it" if absent else None
    )


def install_quietly() -> None:
    """Install the packages, none of whose daemons is to start. Raises InstallationError."""
    # Packages start their daemons unless this file says no. The tests start their own.
    policy = Path("/usr/sbin/policy-rc.d")
    is_ours = not policy.exists()
    if is_ours:
        policy.write_text("#!/bin/sh\nexit 101\n")
        policy.chmod(0o755)
    try:
        install(PACKAGES)
    finally:
        if is_ours:
            policy.unlink()


def main() -> None:
    """Install SLURM where that is possible."""
    install_for("on a SLURM cluster", PACKAGES, what_is_missing(), install_quietly)


if __name__ == "__main__":
    main()
