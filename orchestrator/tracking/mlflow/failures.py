"""What went wrong with MLflow, in one line that a person can act on."""

from __future__ import annotations

import os
import re

from orchestrator.errors import OrchestratorError
from orchestrator.tracking.redaction import Redactor

_LONGEST = 300
_NO_ANSWER = {
    "Connection refused": "it cannot be reached: connection refused",
    "Name or service not known": "it cannot be reached: no such host",
    "Failed to resolve": "it cannot be reached: no such host",
    "Read timed out": "it does not answer within {seconds} s",
    "timed out": "it cannot be reached: no connection in time",
    "Connection aborted": "it broke the connection",
}
_REFUSED = {
    "UNAUTHENTICATED": "it rejected the credentials: MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
    "MLFLOW_TRACKING_TOKEN, are missing or wrong",
    "PERMISSION_DENIED": "it does not allow this",
}
_REFUSAL = re.compile(
    r"(?P<code>UNAUTHENTICATED|PERMISSION_DENIED): (?P<said>.*)\Z"
    r"|failed with error code (?P<status>401|403) != 200\. Response body: '(?P<body>.*)'\Z",
    re.DOTALL,
)
_CODES = {"401": "UNAUTHENTICATED", "403": "PERMISSION_DENIED"}
_LOCKED = "database is locked"
_ERROR_STATUS = re.compile(r"too many (\d+) error responses")


def explain(error: BaseException, uri: str | None) -> str:
    """One line that says what happened, free of the values that the address refers to."""
    if isinstance(error, OrchestratorError):
        return _one_line(str(error), uri)
    place = f"MLflow at {uri}" if uri else "the MLflow store in the runs folder"
    return _one_line(f"{place}: {_meaning(error)}", uri)


def is_unreachable(error: BaseException) -> bool:
    """Whether the server gave no answer at all, so that asking it about another run is no use either."""
    return any(sign in text for text in _texts(error) for sign in _NO_ANSWER)


def is_locked(error: BaseException) -> bool:
    """Whether another process was writing to the sqlite store: the one failure that passes within seconds."""
    return any(_LOCKED in text for text in _texts(error))


def _meaning(error: BaseException) -> str:
    texts = _texts(error)
    for text in texts:
        if status := _ERROR_STATUS.search(text):
            return f"it answers with error {status.group(1)}"
    for sign, meaning in _NO_ANSWER.items():
        if any(sign in text for text in texts):
            return meaning.format(seconds=os.environ.get("MLFLOW_HTTP_REQUEST_TIMEOUT", "120"))
    if refusal := _REFUSAL.search(texts[0]):
        code = refusal["code"] or _CODES[refusal["status"]]
        return f"{_REFUSED[code]} ({(refusal['said'] or refusal['body'] or code).strip()})"
    if is_locked(error):
        return "its database is locked by another process"
    return texts[0] or type(error).__name__


def _texts(error: BaseException) -> list[str]:
    """What the error and those that led to it say."""
    texts: list[str] = []
    link: BaseException | None = error
    while link is not None:
        texts.append(str(link))
        link = link.__cause__ or link.__context__
    return texts


def _one_line(text: str, uri: str | None) -> str:
    line = " ".join(Redactor(uri)(text).split())
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"
