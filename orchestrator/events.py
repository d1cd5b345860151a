"""The records of event logs, a run's and a sweep's, as readers may rely on them: what a damaged log holds in a field of
another type is left out of the record, as if it had never been said.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from orchestrator.stored_files import count, moment, number, read_json_lines

Reader = Callable[[Any], Any]
"""The value of a field; None if the stored value is invalid."""


def _text(value: Any) -> str | None:
    if isinstance(value, bool):
        return None
    return str(value) if isinstance(value, str | int | float) else None


def _texts(value: Any) -> list[str] | None:
    return [str(each) for each in value] if isinstance(value, list) else None


def _object(value: Any) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _code(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 32 else None


def _seconds(value: Any) -> float | dict[str, float] | None:
    """How long something took; for the first step, by part."""
    if not isinstance(value, dict):
        return number(value)
    return {part: seconds for part, each in value.items() if (seconds := number(each)) is not None}


def _entries(value: Any) -> list[dict[str, Any]] | None:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else None


_TEXTS = (
    "event",
    *("launch_id", "job_id", "data_job_id", "cluster", "cause", "message", "reason", "node", "by", "host", "boot"),
    *("run_id", "config_hash", "folder", "path", "checkpoint", "from_run", "format", "source", "family", "occasion"),
    *("device", "attention_backend", "torch", "megatron_core", "metric", "goal", "how"),
)
_COUNTS = (
    *("iteration", "from_iteration", "restart", "bytes", "pid", "started", "token", "world_size", "parameters"),
    *("total_parameters", "generation", "filtered", "repeated", "max_parallel"),
)
_FIELDS: Mapping[str, Reader] = {
    **dict.fromkeys(_TEXTS, _text),
    **dict.fromkeys(_COUNTS, count),
    "time": moment,
    "code": _code,
    "seconds": _seconds,
    "delay": number,
    **dict.fromkeys(("evidence", "nodes", "exclude", "told", "made"), _texts),
    **dict.fromkeys(("topology", "failed", "mfu", "jobs", "driver"), _object),
    **dict.fromkeys(("cells", "pruned"), lambda value: value if isinstance(value, list) else None),
}
"""How each field is read; other fields are passed on as they are."""


_LEDGER_BYTES = 64 << 20
"""A plan of thousands of cells is one line, and each change of the sweep writes another."""


def read_events(log: Path) -> list[dict[str, Any]]:
    """The events of a run's log so far; a torn last line is left out, and of a log of more than 16 MiB, which no
    training writes, the middle. Raises OSError for what is no file of its folder.
    """
    return list(readable(read_json_lines(log, log.parent)))


def read_ledger(ledger: Path) -> list[dict[str, Any]]:
    """The same of a sweep's ledger."""
    return list(readable(read_json_lines(ledger, ledger.parent, _LEDGER_BYTES, _LEDGER_BYTES)))


def readable(records: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The records of a log that are events, with their valid fields."""
    for record in records:
        if _text(record.get("event")) is not None:
            yield {key: value for key, given in record.items() if (value := _read(key, given)) is not None}


def _read(key: str, value: Any) -> Any:
    reader = _FIELDS.get(key)
    return value if reader is None else reader(value)
