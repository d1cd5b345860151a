"""What `make pictures` draws of a page: SVG that stands by itself."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from browser.conftest import Dashboard, Visitor
from browser.reviewed import Reviewed
from browser.waiting import until

DRAW = (Path(__file__).parents[2] / "scripts" / "page_to_svg.js").read_text()
SVG = "{http://www.w3.org/2000/svg}"


def test_a_page_is_drawn_with_its_words_and_curves(reviewing: Dashboard, reviewed: Reviewed, visitor: Visitor) -> None:
    run = reviewed.completed
    visitor.page.set_viewport_size({"width": 1400, "height": 5000})  # what is in sight is drawn
    page = visitor(reviewing.page(f"/runs/{run.name}/{run.run_id}"))
    until(page, "[...document.querySelectorAll('.chart')].every(each => each.querySelector('.main-svg'))")
    drawn = ElementTree.fromstring(page.evaluate(DRAW, ["body", 2000]))
    assert drawn.get("viewBox", "").endswith(f" {drawn.get('height')}")
    words = " ".join(drawn.itertext())
    assert run.run_id in words
    assert "Gradient norm" in words
    assert [path for path in drawn.iter(f"{SVG}path") if path.get("stroke", "none") != "none"]
    assert {each.tag.removeprefix(SVG) for each in drawn.iter()}.isdisjoint({"script", "foreignObject", "image"})
