"""Drawings of a layout and of a step, as SVG and as one HTML page; pure functions of a plan's parts."""

from orchestrator.planning.drawing.page import PageText, Rows, page_html, write_drawings, write_page
from orchestrator.planning.drawing.ranks import ranks_svg
from orchestrator.planning.drawing.timeline import bubble_share, timeline_svg, unit_timeline

__all__ = [
    "PageText",
    "Rows",
    "bubble_share",
    "page_html",
    "ranks_svg",
    "timeline_svg",
    "unit_timeline",
    "write_drawings",
    "write_page",
]
