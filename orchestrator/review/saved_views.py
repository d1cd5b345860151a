"""Views of the dashboard that have names: small, in one file of the runs folder, and checked whenever they are read."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args
from urllib.parse import parse_qsl, urlencode

from orchestrator.errors import UserError
from orchestrator.files.stored_files import read_json
from orchestrator.review.damage import readable
from orchestrator.review.logs.page_size import fitting
from orchestrator.run_directory.rundir import write_atomically

Page = Literal["runs", "run", "compare"]
"""Pages that have views: of all runs, of any one run, of several beside each other."""

_PAGES: tuple[Page, ...] = get_args(Page)
FILE = "views.json"
LONGEST_NAME = 60
_MOST_VIEWS = 200
_LONGEST_QUERY = 3000
_ROOM = 8 << 10
"""Characters of all views of a page."""
_MOST_BYTES = 1 << 20
_CURVES = frozenset({"pin", "hide", "find", "only", "x", "smoothing", "log", "perplexity"})
_PARAMETERS: Mapping[str, frozenset[str]] = {
    "runs": frozenset({"q", "state", "sort", "order", "cells", "column"}),
    "run": _CURVES,
    "compare": _CURVES | {"run"},
}
"""What a view says; nothing else of an address is kept."""

_changing = threading.Lock()


@dataclass(frozen=True)
class SavedView:
    """A view and its name. `query`: the address of the page after the question mark."""

    name: str
    page: Page
    query: str


def saved_views(runs_dir: Path, page: Page) -> list[SavedView]:
    """The views of a page, by name, as far as there is room; none where the file is damaged."""
    found = fitting((view for view in _read(runs_dir) if view.page == page), _text, _ROOM, 0)
    return sorted(found, key=lambda view: view.name.casefold())


def save_view(runs_dir: Path, page: str, name: str, query: str) -> SavedView:
    """Keep a view; it replaces one of that page and name. Raises UserError where it is none, or there are too many, and
    OSError where the folder cannot be written.
    """
    made = _view({"name": " ".join(name.split()), "page": page, "query": query})
    if made is None:
        raise UserError(
            f"a view needs a name of at most {LONGEST_NAME} characters, and an address of at most {_LONGEST_QUERY}",
            code="malformed_view",
        )
    with _changing:
        others = [view for view in _read(runs_dir) if (view.page, view.name) != (made.page, made.name)]
        of_page = [view for view in [*others, made] if view.page == made.page]
        if len(others) >= _MOST_VIEWS or len(fitting(of_page, _text, _ROOM, 0)) < len(of_page):
            raise UserError("there is no room for another view: remove one first", code="too_many_views")
        _write(runs_dir, [*others, made])
    return made


def remove_view(runs_dir: Path, page: str, name: str) -> None:
    """Forget a view. Raises UserError where there is none of that name."""
    with _changing:
        found = _read(runs_dir)
        others = [view for view in found if (view.page, view.name) != (page, name)]
        if len(others) == len(found):
            raise UserError("there is no view of that name", code="unknown_view")
        _write(runs_dir, others)


def _text(view: SavedView) -> str:
    return view.name + view.query


def _read(runs_dir: Path) -> list[SavedView]:
    record, _ = readable(lambda: read_json(runs_dir / FILE, runs_dir, _MOST_BYTES))
    listed = record.get("views") if isinstance(record, dict) else None
    views = (_view(each) for each in (listed if isinstance(listed, list) else [])[:_MOST_VIEWS])
    return list({(view.page, view.name): view for view in views if view is not None}.values())


def _write(runs_dir: Path, views: Sequence[SavedView]) -> None:
    write_atomically(runs_dir / FILE, json.dumps({"views": [asdict(view) for view in views]}, indent=1) + "\n")


def _view(record: Any) -> SavedView | None:
    """What a record says, as far as it is a view; None for anything else."""
    if not isinstance(record, dict):
        return None
    name, query = record.get("name"), record.get("query")
    page = next((each for each in _PAGES if each == record.get("page")), None)
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME or not name.isprintable():
        return None
    if page is None or not isinstance(query, str) or len(query) > _LONGEST_QUERY:
        return None
    kept = [(key, value) for key, value in parse_qsl(query) if key in _PARAMETERS[page]]
    return SavedView(name, page, urlencode(kept, errors="replace"))
