"""What fits into a page."""

from __future__ import annotations

import html
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.review.logs.page_size import PageBudget, fitting

ROWS = st.lists(st.text(st.characters(codec=None), max_size=20), max_size=30)


@given(rows=ROWS, room=st.integers(0, 400), beside=st.integers(0, 30), at_least=st.integers(0, 3))
def test_as_many_rows_fit_as_their_html_leaves_room_for(rows: list[str], room: int, beside: int, at_least: int) -> None:
    sizes = [len(html.escape(row).encode(errors="replace")) + beside for row in rows]
    wanted = max(number for number in range(len(rows) + 1) if number <= at_least or sum(sizes[:number]) <= room)
    assert fitting(rows, str, room, beside, at_least) == rows[:wanted]
    left = PageBudget(room, at_least)
    assert [left.takes(row, beside) for row in rows[:wanted]] == [True] * wanted


def test_rows_behind_the_page_are_not_made() -> None:
    def rows() -> Iterator[str]:
        yield from ("&", "&", "&")
        pytest.fail("the third had no room")

    assert fitting(rows(), str, 25, 7) == ["&", "&"]
