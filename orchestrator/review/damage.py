"""Reading what may be damaged: a part of a page that cannot be read takes none of the others with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from orchestrator.errors import OrchestratorError
from orchestrator.files import stored_files

DAMAGE = (*stored_files.DAMAGE, OrchestratorError)
"""What reading a file raises that is torn, of another version, somebody else's, or gone meanwhile."""

Found = TypeVar("Found")


def readable(read: Callable[[], Found]) -> tuple[Found | None, str | None]:
    """What was read, or None and in one line why it cannot be read."""
    try:
        return read(), None
    except OrchestratorError as error:
        return None, str(error).splitlines()[0]
    except DAMAGE as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]
