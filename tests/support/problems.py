"""What is wrong with a job, as tests ask for it: by codes and fields. What is said is in tests/golden/problems.txt."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from orchestrator.errors import Problem, SpecError


def problems_of(load: Callable[[], object]) -> list[Problem]:
    """What a job, a sweep or a profile is refused for; empty where it is not."""
    try:
        load()
    except SpecError as error:
        return error.problems
    return []


def codes(problems: Iterable[Problem]) -> list[str]:
    """`CODE FIELD` of each problem, the field being the one that is pointed at; the code alone where there is none."""
    found = list(problems)
    assert all(problem.code for problem in found), found
    return [" ".join((problem.code or "", *problem.paths[:1])) for problem in found]
