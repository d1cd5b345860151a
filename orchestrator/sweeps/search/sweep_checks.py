"""What a search asks of the rest of its sweep."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.sweep import SweepSpec
from orchestrator.spec.yaml.reader import LocatedValue

_OF_RUNGS = ("reduction", "first_rung")


def search_problems(spec: SweepSpec, written: LocatedValue) -> Iterator[Problem]:
    """What is wrong with a `sweep:` section whose structure is right."""
    search = spec.search
    if search is None or search.strategy != "bayesian":
        return
    sections = written.content if isinstance(written.content, dict) else {}
    place = sections["search"].location
    if given := [name for name in _OF_RUNGS if name in search.model_fields_set]:
        message = f"bayesian trains every cell to its end: leave out {' and '.join(given)}"
        yield Problem(message, (f"sweep.search.{given[0]}",), location=place, code="search_rungs")
    if others := [name for name in ("grid", "zip", "list") if getattr(spec, name)]:
        message = f"bayesian draws every value from a range: write {' and '.join(others)} as random"
        yield Problem(message, (f"sweep.{others[0]}",), location=sections[others[0]].location, code="search_space")
    elif spec.random is None:
        message = "bayesian draws from the ranges of random, which is missing: write its count and fields"
        yield Problem(message, ("sweep.random",), location=place, code="search_space")
