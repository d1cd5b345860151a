"""Which code ran: the commits and uncommitted changes of the folder a run was started in and of this package."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orchestrator

MAX_DIFF_BYTES = 10_000_000
_SECONDS = 20


@dataclass(frozen=True)
class CodeState:
    """`record` goes to code.json, `diff` (all repositories, one after the other) to code.diff."""

    record: dict[str, Any]
    diff: bytes


def code_state(folder: Path) -> CodeState:
    """The state of the repositories of `folder` and of this package; neither needs to be one, nor git to exist."""
    roots: dict[str, str] = {}
    for used_by, place in (("working directory", folder), ("orchestrator", Path(orchestrator.__file__).parent)):
        top = _git(place, "rev-parse", "--show-toplevel")
        if top:
            roots.setdefault(top.decode(errors="surrogateescape").strip(), used_by)
    repositories, diffs = [], []
    for root, used_by in roots.items():
        place = Path(root)
        changes = (_git(place, "status", "--porcelain") or b"").decode(errors="replace").splitlines()
        diff = _git(place, "diff", "HEAD", "--binary") or b""
        repositories.append(
            {
                "used_by": used_by,
                "root": str(place),
                "commit": (_git(place, "rev-parse", "HEAD") or b"none").decode().strip(),
                "dirty": bool(changes),
                "untracked": [line[3:] for line in changes if line.startswith("??")],
                "diff_complete": len(diff) <= MAX_DIFF_BYTES,
            }
        )
        if diff:
            diffs.append(f"# {place}\n".encode(errors="surrogateescape") + diff[:MAX_DIFF_BYTES])
    record = {"version": orchestrator.__version__, "repositories": repositories}
    return CodeState(record, b"\n".join(diffs))


def _git(folder: Path, *arguments: str) -> bytes | None:
    """What git prints; None where there is no git, no repository or no answer in time."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
