"""Waiting for a page, or for what it has started."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page
from support import faults
from support.faults import Found

_EVERY = 0.15
"""Seconds between two looks: each costs hundredths of a second of a core."""


def wait_until(look: Callable[[], Found], what: str) -> Found:
    """Look again and again, until there is something; its value."""
    return faults.wait_until(look, what, _EVERY)


def until(page: Page, expression: str, argument: object = None) -> None:
    """Wait until JavaScript says so. `Page.wait_for_function` asks again by eval, which the pages' policy forbids: it
    fails wherever the first answer is no.
    """
    wait_until(lambda: page.evaluate(expression, argument), expression)
