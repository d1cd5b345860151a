"""mlflow.json in the run directory: which MLflow run this run is sent to, and how far that has come."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

from orchestrator.files.stored_files import count, size_of
from orchestrator.run_directory.rundir import RunDir, write_atomically

FILE_NAME = "mlflow.json"


@dataclass
class Cursor:
    """What the store is known to hold. `store` is the address as the spec writes it, references unresolved.

    `offset`: bytes of metrics.jsonl that were sent; `system`: of each log in system/, by its name. `sent`: digest of
    each other thing that was sent, by name.
    """

    store: str
    experiment_id: str
    run_id: str
    offset: int = 0
    system: dict[str, int] = field(default_factory=dict)
    sent: dict[str, str] = field(default_factory=dict)


def read_cursor(run: RunDir) -> Cursor | None:
    """The stored cursor; None when there is none or it cannot be read (everything is then sent again)."""
    try:
        record = run.read_json(run.path / FILE_NAME)
        return Cursor(
            store=str(record["store"]),
            experiment_id=str(record["experiment_id"]),
            run_id=str(record["run_id"]),
            offset=count(record["offset"]) or 0,
            system={str(name): count(offset) or 0 for name, offset in record.get("system", {}).items()},
            sent={str(name): str(digest) for name, digest in record["sent"].items()},
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def unsent_bytes(run: RunDir) -> int:
    """How much of metrics.jsonl is not sent to MLflow yet."""
    cursor = read_cursor(run)
    return size_of(run.metrics_file) - (cursor.offset if cursor else 0)


def write_cursor(run: RunDir, cursor: Cursor) -> None:
    """Rename the cursor into place."""
    write_atomically(run.path / FILE_NAME, json.dumps(asdict(cursor), indent=1) + "\n")
