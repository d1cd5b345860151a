"""Values by their keys as the command line takes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def override_words(overrides: Mapping[str, Any] | None) -> list[str]:
    """As `--set` takes them: JSON is YAML."""
    return [f"{key}={json.dumps(value)}" for key, value in (overrides or {}).items()]
