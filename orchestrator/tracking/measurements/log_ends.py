"""The ends of a run's logs, for who looks at it in MLflow alone: why it ended is said there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.files.stored_files import NotStoredError
from orchestrator.run_directory.exits.causes import exit_records, telling_rank
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.redaction import Redactor

_BYTES = 1 << 16


def log_ends(run: RunDir, spec: Mapping[str, Any], launch_id: str | None) -> dict[str, bytes]:
    """The last 64 KiB of the launcher's log, rank 0's, and that of the rank whose word on the last start counts, by
    name, from a whole line on. Values that the spec refers to as `${env:NAME}` are replaced where this process knows
    them.
    """
    records = exit_records(run, launch_id) if launch_id is not None else {}
    telling = telling_rank(records) or 0
    redact = Redactor.of_spec(spec)
    found = {}
    for path in {run.launcher_log: None, run.rank_log(0): None, run.rank_log(telling): None}:
        end = _end(run, path)
        if end:
            found[f"logs/{path.name}"] = redact(end.decode(errors="replace")).encode()
    return found


def _end(run: RunDir, path: Path) -> bytes:
    try:
        with run.open(path) as file:
            start = max(0, file.seek(0, os.SEEK_END) - _BYTES)
            file.seek(start)
            content = file.read(_BYTES)
    except (FileNotFoundError, NotStoredError):  # what a link in its place leads to is not sent
        return b""
    return content[content.find(b"\n") + 1 :] if start else content
