"""The nearest values that would do instead of one that is refused.

A rule names fields and values that would satisfy it. Each is tried in the whole job, against every rule: what is
offered ends the refusal that offers it, and brings no other. Where there is no such value, one is named together with
the fields that have to change with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeAlias

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, SuggestedValues
from orchestrator.spec.job_sections import JobSections

Refusals: TypeAlias = Callable[[JobSections], Iterator[Problem]]

_TRIES = 100
"""Values to try on each side: a legal one is near, or the job needs more than another value of this field."""
_SHORT = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "virtual_pipeline_model_parallel_size": "VP",
    "context_parallel_size": "CP",
    "expert_model_parallel_size": "EP",
    "expert_tensor_parallel_size": "ETP",
}


def with_nearest(job: JobSections, found: Sequence[Problem], refusals: Refusals) -> list[Problem]:
    """What was found in a job, with hints that name the values that would do."""
    return [_hinted(job, each, found, refusals) if isinstance(each, Refusal) else each for each in found]


def _hinted(job: JobSections, refusal: Refusal, found: Sequence[Problem], refusals: Refusals) -> Problem:
    searches = [_Search(job, refusal, offer, found, refusals) for offer in refusal.offers]
    hints = [hint for search in searches if (hint := search.alone())]
    hints = hints or [hint for search in searches if (hint := search.with_others())]
    if refusal.hint:
        hints.append(f"or {refusal.hint}" if hints else refusal.hint)
    return Problem(refusal.message, refusal.paths, "; ".join(hints) or None, code=refusal.code)


class _Search(NamedTuple):
    """For a value of one field that ends a refusal."""

    job: JobSections
    refusal: Refusal
    offer: SuggestedValues
    found: Sequence[Problem]
    """All that is wrong with the job."""
    refusals: Refusals

    def alone(self) -> str | None:
        """`nearest TP: 2 or 4`."""
        sides = (self.offer.below, self.offer.above)
        legal = [each for side in sides for each in islice(filter(self._does, side[:_TRIES]), 1)]
        if not legal:
            return None
        return self._words(*legal)

    def with_others(self) -> str | None:
        """`nearest TP: 2, with another num_query_groups`."""
        for value in chain(self.offer.below[:_TRIES], self.offer.above[:_TRIES]):
            brought = list(self._brings(value))
            if all(each.paths != self.refusal.paths and each.paths[0] != self.offer.path for each in brought):
                others = " and ".join(dict.fromkeys(_name(each.paths[0]) for each in brought))
                return f"{self._words(value)}, with another {others}"
        return None

    def _words(self, *legal: float) -> str:
        offered = " or ".join(str(value) for value in legal)
        return f"nearest {_name(self.offer.path)}: {offered}{self.offer.note.format(legal[0])}"

    def _does(self, value: float) -> bool:
        return not any(self._brings(value))

    def _brings(self, value: float) -> Iterator[Problem]:
        """What is wrong with the value in place. What was wrong besides may stay, unless it points at this field."""
        path = self.offer.path
        known = {_identity(each) for each in self.found if each is not self.refusal and each.paths[0] != path}
        return (each for each in self.refusals(_changed(self.job, path, value)) if _identity(each) not in known)


def _identity(problem: Problem) -> tuple[object, ...]:
    """What a problem keeps in another job. That a size still does not divide, but differently, is another problem."""
    return (problem.paths, problem.code, problem.numbers) if isinstance(problem, Refusal) else problem.paths


def _name(path: str) -> str:
    name = path.rpartition(".")[2]
    return _SHORT.get(name, name)


def _changed(section: Any, path: str, value: float) -> Any:
    """The job, or the known part of one, with another value of a field."""
    name, _, rest = path.partition(".")
    return section.model_copy(update={name: _changed(getattr(section, name), rest, value) if rest else value})
