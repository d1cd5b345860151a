"""Waiting for a page."""

from __future__ import annotations

from playwright.sync_api import Page
from support.faults import wait_until


def until(page: Page, expression: str, argument: object = None) -> None:
    """Wait until JavaScript says so. `Page.wait_for_function` asks again by eval, which the pages' policy forbids: it
    fails wherever the first answer is no.
    """
    wait_until(lambda: page.evaluate(expression, argument), expression)
