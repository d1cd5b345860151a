"""The identity of a spec. No pydantic here: a stored spec of an older version has one although it may not be valid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def config_hash(document: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a spec, hex. The same spec gives the same hash on every machine."""
    canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()
