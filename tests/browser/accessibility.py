"""What axe, an automatic checker of WCAG, complains of in a page."""

from __future__ import annotations

from functools import cache

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

# Drawings of plotly are out of the page meanwhile: axe would find the place of each of their parts before it skips it.
_LOOK = """async ([where, rules]) => {
    const charts = [...document.querySelectorAll(".js-plotly-plot")].map((chart) => [chart, [...chart.childNodes]]);
    for (const [chart] of charts) chart.replaceChildren();
    try {
        return (await axe.run(where, rules)).violations;
    } finally {
        for (const [chart, drawing] of charts) chart.replaceChildren(...drawing);
    }
}"""
_WHERE = {"exclude": [[".js-plotly-plot"]]}
# What breaks no rule is not described.
_RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "resultTypes": ["violations"],
}
_RULES_OF_COLOURS = {
    "runOnly": {"type": "rule", "values": ["color-contrast", "link-in-text-block"]},
    "resultTypes": ["violations"],
}


@cache
def _script() -> str:
    return str(Axe().axe_script)


def violations(page: Page, *, only_colours: bool = False) -> list[str]:
    """What breaks WCAG 2.1 at AA as the page looks now: the rule, and where. Charts of plotly are drawings whose names
    their figures say. `only_colours`: of a page whose colours alone have changed since the last look.
    """
    if not page.evaluate("'axe' in window"):
        page.evaluate(_script())
    found = page.evaluate(_LOOK, [_WHERE, _RULES_OF_COLOURS if only_colours else _RULES])
    return [f"{rule['id']}: {node['target']} {node['html'][:160]}" for rule in found for node in rule["nodes"]]
