"""What is refused, as tests ask for it: by class, code and the values in the message. What is said is in
tests/golden/refusals.txt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from orchestrator.errors import OrchestratorError, UserError


@contextmanager
def refused(
    code: str, *values: object, kind: type[OrchestratorError] = UserError
) -> Iterator[pytest.ExceptionInfo[OrchestratorError]]:
    """What is done within raises an error of exactly that class and code, whose message has each of the values in it:
    names, numbers and fields, not words."""
    with pytest.raises(kind) as caught:
        yield caught
    said = str(caught.value)
    assert (type(caught.value), caught.value.code) == (kind, code), said
    for value in values:
        assert str(value) in said, f"{value} is not in: {said}"
