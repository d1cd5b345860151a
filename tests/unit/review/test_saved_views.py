"""Views under a name: a small file that anybody may have written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from support.hostile import VALUES
from support.refused import refused

from orchestrator.review.saved_views import FILE, remove_view, save_view, saved_views


def test_a_view_is_kept_replaced_and_removed(tmp_path: Path) -> None:
    save_view(tmp_path, "run", " my   view ", "pin=loss&x=tokens&token=secret&said=x")
    save_view(tmp_path, "runs", "my view", "q=state:failed&column=lr")
    [view] = saved_views(tmp_path, "run")
    assert (view.name, view.query) == ("my view", "pin=loss&x=tokens"), "and nothing else of an address"
    save_view(tmp_path, "run", "my view", "pin=lr")
    assert [view.query for view in saved_views(tmp_path, "run")] == ["pin=lr"]
    remove_view(tmp_path, "run", "my view")
    assert saved_views(tmp_path, "run") == []
    assert len(saved_views(tmp_path, "runs")) == 1
    with refused("unknown_view"):
        remove_view(tmp_path, "run", "my view")


@pytest.mark.parametrize(
    ("page", "name", "query"), [("run", "", ""), ("run", "x" * 61, ""), ("/", "x", ""), ("run", "x", "a" * 4000)]
)
def test_what_is_no_view_is_refused(tmp_path: Path, page: str, name: str, query: str) -> None:
    with refused("malformed_view"):
        save_view(tmp_path, page, name, query)
    assert not (tmp_path / FILE).exists()


def test_the_views_of_a_page_have_bounds(tmp_path: Path) -> None:
    query = "&".join(["run=name/00000000"] * 20)
    for number in range(10):
        save_view(tmp_path, "compare", f"view {number}", query)
    with refused("too_many_views"):
        save_view(tmp_path, "compare", "one more", 8 * query)
    assert len(saved_views(tmp_path, "compare")) == 10


@given(record=VALUES, inside=VALUES)
def test_whatever_stands_in_the_file_is_checked(tmp_path_factory: Any, record: Any, inside: Any) -> None:
    folder = tmp_path_factory.mktemp("runs")
    sound = {"name": "sound", "page": "run", "query": "pin=loss"}
    for content in (record, {"views": record}, {"views": [inside, {**sound, "query": inside}, sound]}):
        (folder / FILE).write_text(json.dumps(content), errors="replace")
        for view in saved_views(folder, "run"):
            assert view.name.isprintable()
            assert "<" not in view.query
    save_view(folder, "run", "another", "x=time")
    assert "another" in {view.name for view in saved_views(folder, "run")}


def test_a_file_that_is_none(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert saved_views(tmp_path, "run") == []
    (tmp_path / FILE).rmdir()
    (tmp_path / FILE).symlink_to("/etc/passwd")
    assert saved_views(tmp_path, "run") == []
