"""datasets.json in the run directory: what a run reads, as rank 0 found it."""

from __future__ import annotations

from typing import Any

from orchestrator.run_directory.rundir import RunDir


def read_inputs(run: RunDir) -> list[dict[str, Any]]:
    """The records, oldest first; none where the file is missing or cannot be read. See RunDir.datasets_file."""
    try:
        records = run.read_json(run.datasets_file)
    except (OSError, ValueError):
        return []
    if not isinstance(records, list):
        return []
    return [record for record in records if isinstance(record, dict) and _is_whole(record)]


def _is_whole(record: dict[str, Any]) -> bool:
    return all(isinstance(record.get(name), str) and record[name] for name in ("part", "path", "digest"))
