"""A verdict in lines of text."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.planning.warnings import Verdict


def verdict_lines(verdict: Verdict) -> Iterator[str]:
    """What stops it, the warnings, what is fine."""
    count = len(verdict.stops)
    if count:
        yield f"Verdict: {count} thing{'s' if count > 1 else ''} stop{'' if count > 1 else 's'} this job"
    elif verdict.warnings:
        count = len(verdict.warnings)
        yield f"Verdict: nothing stops this job; {count} warning{'s' if count > 1 else ''}"
    else:
        yield "Verdict: nothing stops this job"
    for word, problems in (("stop", verdict.stops), ("warning", verdict.warnings)):
        for problem in problems:
            yield from problem_lines(word, problem)
    for text in verdict.fine:
        yield f"  fine    {text}"


def problem_lines(word: str, problem: Problem) -> Iterator[str]:
    """A stop or a warning with its place and the way out."""
    place = f"{problem.location}: " if problem.location else ""
    field = f"{problem.paths[0]}: " if problem.paths else ""
    yield f"  {word:<7} {place}{field}{problem.message}"
    if problem.hint:
        yield textwrap.indent(problem.hint, " " * 12)
