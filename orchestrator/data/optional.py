"""Libraries that only some inputs need: imported when such an input comes, with a clear message when missing."""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.errors import MissingDependency


def optional_module(name: str, purpose: str) -> Any:
    """The module `name`; raises MissingDependency naming what needs it and what to install."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise MissingDependency(f"{purpose} needs {package}: pip install {package}") from error
