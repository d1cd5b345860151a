"""Libraries that only some inputs need: imported when such an input comes, with a clear message when missing."""

from __future__ import annotations

import importlib
from typing import Any

from orchestrator.errors import MissingDependency


def optional_module(name: str, purpose: str, package: str | None = None) -> Any:
    """The module `name`; raises MissingDependency naming what needs it and what to install: `package`, where that has
    another name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = package or name.partition(".")[0]
        raise MissingDependency(f"{purpose} needs {package}: pip install {package}") from error
