"""Where the files that ship with the product lie: launch templates and example jobs.

In a checkout they are the top-level folders `templates/` and `jobs/`, where a person looks for them. In an installed
wheel they lie inside the package.
"""

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parent


def resource_root(kind: Literal["templates", "jobs"]) -> Path:
    """The folder of the shipped templates or jobs."""
    installed = _PACKAGE / "_resources" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / kind
