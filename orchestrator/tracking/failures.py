"""What went wrong with MLflow, in one line that a person can act on."""

from __future__ import annotations

import os
from collections.abc import Iterator

from orchestrator.errors import OrchestratorError
from orchestrator.tracking.redaction import Redactor

_LONGEST = 300
_KNOWN = {
    "Connection refused": "it cannot be reached: connection refused",
    "Name or service not known": "it cannot be reached: no such host",
    "Failed to resolve": "it cannot be reached: no such host",
    "Read timed out": f"it does not answer within {os.environ.get('MLFLOW_HTTP_REQUEST_TIMEOUT')} s",
    "timed out": "it cannot be reached: no connection in time",
    "Connection aborted": "it broke the connection",
    "database is locked": "its database is locked by another process",
}


def explain(error: BaseException, uri: str | None) -> str:
    """One line that says what happened, free of the values that the address refers to."""
    if isinstance(error, OrchestratorError):
        return _one_line(str(error), uri)
    place = f"MLflow at {uri}" if uri else "the MLflow store in the runs folder"
    texts = [str(link) for link in _chain(error)]
    for sign, meaning in _KNOWN.items():
        if any(sign in text for text in texts):
            return _one_line(f"{place}: {meaning}", uri)
    return _one_line(f"{place}: {texts[0] or type(error).__name__}", uri)


def is_unreachable(error: BaseException) -> bool:
    """Whether the server gave no answer at all, so that asking it about another run is no use either."""
    signs = [sign for sign in _KNOWN if sign != "database is locked"]
    return any(sign in str(link) for link in _chain(error) for sign in signs)


def is_locked(error: BaseException) -> bool:
    """Whether another process was writing to the sqlite store: the one failure that passes within seconds."""
    return any("database is locked" in str(link) for link in _chain(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    link: BaseException | None = error
    while link is not None:
        yield link
        link = link.__cause__ or link.__context__


def _one_line(text: str, uri: str | None) -> str:
    line = " ".join(Redactor(uri)(text).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
