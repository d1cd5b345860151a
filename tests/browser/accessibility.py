"""What axe, an automatic checker of WCAG, complains of in a page."""

from __future__ import annotations

from functools import cache

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

_RULES = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}}


@cache
def _axe() -> Axe:
    return Axe()


def violations(page: Page) -> list[str]:
    """What breaks WCAG 2.1 at AA as the page looks now: the rule, and where. Charts of plotly are drawings whose names
    their figures say.
    """
    found = _axe().run(page, context={"exclude": [[".js-plotly-plot"]]}, options=_RULES).response["violations"]
    return [f"{rule['id']}: {node['target']} {node['html'][:160]}" for rule in found for node in rule["nodes"]]
