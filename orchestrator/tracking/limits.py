"""What MLflow accepts: names, lengths and batch sizes."""

from __future__ import annotations

import posixpath
import re

METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
TAGS_PER_BATCH = 100
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
_NAME_LENGTH = 250
_REFUSED_IN_NAMES = re.compile(r"[^/\w.\- ]")


def entity_name(name: str) -> str:
    """The name as MLflow accepts it: other characters become `_`, and what would be no plain path is made one."""
    plain = _REFUSED_IN_NAMES.sub("_", name)[:_NAME_LENGTH]
    path = posixpath.normpath(plain).lstrip("/")
    return "_" if path in ("", ".") else "_" + path[2:] if path.startswith("..") else path


def truncated(value: str, length: int) -> str:
    """At most `length` characters; a value that was cut ends in `…`."""
    return value if len(value) <= length else value[: length - 1] + "…"
