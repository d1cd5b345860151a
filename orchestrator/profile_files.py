"""The files of cluster profiles: where they are kept. Nothing is read of them but whether they name a login node."""

from __future__ import annotations

import os
import re
from pathlib import Path

PROJECT_FOLDER = Path("clusters")
"""In the folder where the command is started."""
SUFFIX = ".yaml"
LOGIN_VARIABLE = "ORCHESTRATOR_LOGIN"
"""In the environment of a command that another machine has sent: the cluster whose login node it runs on."""
PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII)


def user_folder() -> Path:
    """Where a person's own profiles are kept: `~/.config/orchestrator/clusters`."""
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "orchestrator" / "clusters"


def known_profiles(start: Path | None = None) -> dict[str, Path]:
    """Every profile by name; the project's (below `start`, here by default) go before a person's own."""
    found: dict[str, Path] = {}
    for folder in (user_folder(), (start or Path()) / PROJECT_FOLDER):
        for path in sorted(folder.glob(f"*{SUFFIX}")):
            if PROFILE_NAME.fullmatch(path.stem):
                found[path.stem] = path
    return dict(sorted(found.items()))


def is_file_name(name: str) -> bool:
    """Whether a cluster is named by the file of its profile, `team/alps.yaml`, and not by its name."""
    return Path(name).suffix in (SUFFIX, ".yml")


def profile_file(name: str, start: Path | None = None) -> Path | None:
    """The file of the profile that has this name, or is this file; None when there is none."""
    if not is_file_name(name):
        return known_profiles(start).get(name)
    path = (start or Path()) / Path(name).expanduser()
    return path if path.is_file() else None


def may_name_login_node(path: Path) -> bool:
    """Whether a profile may name a login node. Most name none, and need not be loaded to know it."""
    try:
        return b"login" in path.read_bytes()
    except OSError:
        return False
