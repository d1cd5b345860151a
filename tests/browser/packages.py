"""Chromium from the distribution's packages: `PYTHONPATH=tests python -m browser.packages` installs it."""

from __future__ import annotations

import os
import shutil
import subprocess

PROGRAM = "chromium"


class InstallationError(Exception):
    """The package could not be installed; the message says why."""


def what_is_missing() -> str | None:
    """Why no browser can be started here; None where one can."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not installed; `make install-browser` installs it"


def install() -> None:
    """Install it. Raises InstallationError."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-qq", "--no-install-recommends", "-o=DPkg::Lock::Timeout=120", PROGRAM]
    for command in (install, ["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 0 and command is install:
            return
    raise InstallationError(done.stderr.strip())


def main() -> None:
    """Install the browser where that is possible; say in one line what happens, or why it does not."""
    reason = what_is_missing()
    if reason is None:
        return
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        print(f"The tests in a browser will be skipped: installing one needs root and apt-get. {reason}")
        return
    print(f"Installing for the tests in a browser: {PROGRAM}", flush=True)
    try:
        install()
    except InstallationError as error:
        print(f"The tests in a browser will be skipped: {error}")


if __name__ == "__main__":
    main()
