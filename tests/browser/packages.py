"""Chromium from the distribution's packages: `PYTHONPATH=tests python -m browser.packages` installs it."""

from __future__ import annotations

import shutil

from support.packages import install, install_for

PROGRAM = "chromium-headless-shell"
"""Without what a window of a whole browser has, which costs a fifth of the processor time of a page."""


def what_is_missing() -> str | None:
    """Why no browser can be started here; None where one can."""
    return None if shutil.which(PROGRAM) else f"{PROGRAM} is not installed; `make install-browser` installs it"


def main() -> None:
    """Install the browser where that is possible."""
    install_for("in a browser", [PROGRAM], what_is_missing(), lambda: install([PROGRAM]))


if __name__ == "__main__":
    main()
