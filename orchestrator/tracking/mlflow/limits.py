"""What MLflow accepts: names, lengths and batch sizes."""

from __future__ import annotations

import re

METRICS_PER_BATCH = 1000
PARAMS_PER_BATCH = 100
TAGS_PER_BATCH = 100
PARAM_LENGTH = 6000
TAG_LENGTH = 8000
_NAME_LENGTH = 250
_REFUSED_IN_NAMES = re.compile(r"[^/\w.\- ]")


def entity_name(name: str) -> str:
    """The name as MLflow accepts it: a plain relative path, in which every other character became `_`."""
    plain = _REFUSED_IN_NAMES.sub("_", name)[:_NAME_LENGTH]
    path = "/".join("_" if part == ".." else part for part in plain.split("/") if part not in ("", "."))
    return "_" + path[2:] if path.startswith("..") else path or "_"


def truncated(value: str, length: int) -> str:
    """At most `length` characters; a value that was cut ends in `…`."""
    return value if len(value) <= length else value[: length - 1] + "…"
