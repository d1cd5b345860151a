"""Jobs, GPU-hours and waits, in a real browser."""

from __future__ import annotations

from browser.conftest import Dashboard, Visitor
from browser.waiting import until, wait_until


def test_what_was_taken(reviewing: Dashboard, visitor: Visitor) -> None:
    page = visitor(f"{reviewing.address}/cluster")
    page.get_by_text("14 completed").wait_for()  # three jobs and eleven cells
    assert page.get_by_text("3 failed").is_visible()
    assert page.get_by_text("0 GPUs are in use by 0 runs").is_visible()

    def shares() -> list[str]:
        page.reload()
        return page.get_by_role("row").filter(has_text="resumed").get_by_role("cell").all_inner_texts()

    # Steps of its first launch that were done again: they are counted once the folder is read whole.
    wait_until(lambda: int(shares()[5]) > 0, "the steps that were lost")
    assert shares()[2:4] == ["1", "2"]
    assert page.get_by_role("heading", name="Process hours").is_visible(), "they trained on the CPU"
    assert "GPU-hours" not in page.content()
    page.wait_for_selector(".chart .main-svg")
    visitor.chart_fills()
    visitor.photograph("cluster")
    page.get_by_role("combobox", name="Period").select_option("all")
    page.get_by_role("button", name="Show").click()
    page.wait_for_url("**/cluster?period=all")
    page.set_viewport_size({"width": 390, "height": 800})
    until(page, "document.documentElement.scrollWidth <= innerWidth")
    visitor.chart_fills()
    visitor.photograph("phone")
