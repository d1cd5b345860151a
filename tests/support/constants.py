"""Which constants hypothesis draws beside what it makes up."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import settings

FOUND = "hypothesis.internal.conjecture.providers._get_local_constants"
"""What gives the constants of all local modules that are loaded."""


def draw_no_local_constants_where_derandomized() -> None:
    """Under a profile whose examples are not random, draw nothing that depends on which modules are loaded, and so on
    which tests came before. No setting of hypothesis does that. Where it has no such function, as other versions of it
    have not, nothing happens: `tests/test_environment.py` tells if examples depend on modules all the same.
    """
    with suppress(ImportError, AttributeError):
        from hypothesis.internal.conjecture.providers import _get_local_constants
        from hypothesis.internal.constants_ast import Constants

        def found() -> Constants:
            return Constants() if settings().derandomize else _get_local_constants()

        pytest.MonkeyPatch().setattr(FOUND, found)
