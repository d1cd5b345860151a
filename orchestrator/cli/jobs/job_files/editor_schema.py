"""The JSON schema beside a job that is written, and the line by which editors find it: yaml-language-server's, which
needs no network and no settings.
"""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.cli.outputs import PRINTED, write_output
from orchestrator.spec.schema.json_schema import TITLE, job_schema

SCHEMA = "job.schema.json"
"""Its name; `orchestrator schema` prints what is in it."""


def with_schema_line(text: str, output: Path) -> str:
    """A job's text under the line that names its schema, where that is written beside it."""
    return f"# yaml-language-server: $schema={SCHEMA}\n{text}" if _goes_beside(output) else text


def write_schema(output: Path) -> Path | None:
    """Write the schema beside a job, over one of another version; None where the job is printed, or the file that has
    its name is another. Raises UserError where it cannot be written.
    """
    path = output.parent / SCHEMA
    if not _goes_beside(output):
        return None
    write_output(path, json.dumps(job_schema(), indent=2) + "\n")
    return path


def _goes_beside(output: Path) -> bool:
    path = output.parent / SCHEMA
    return output not in (PRINTED, path) and _is_ours(path)


def _is_ours(path: Path) -> bool:
    """Whether nothing is lost when it is written."""
    if not path.exists():
        return True
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("title") == TITLE
