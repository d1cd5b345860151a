"""The report as one HTML file: styles, scripts and figures lie in it, and a browser asks nobody for anything."""

from __future__ import annotations

from orchestrator.dashboard.rendering import environment
from orchestrator.dashboard.report.document import Curves, Document
from orchestrator.dashboard.report.drawing import HEIGHT, WIDTH, drawn


def to_html(report: Document, *, light: bool) -> str:
    """The whole report. `light`: curves are plain lines, and plotly's 4.8 MB are left out.

    Paper has the plain lines always: a browser that prints has no time for scripts, and plotly's charts keep the width
    of the screen.
    """
    blocks = [block for each in report.sections for block in each.blocks]
    charts = [chart for block in blocks if isinstance(block, Curves) for chart in block.charts]
    values = {
        "report": report,
        "light": light,
        "drawings": {name: drawn(figure) for name, figure in charts},
        "has_charts": bool(charts),
        "width": WIDTH,
        "height": HEIGHT,
    }
    return environment().get_template("report.html").render(values)
