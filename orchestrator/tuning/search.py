"""The search: which layouts are legal, which of them fit, and how fast those are. Cheap questions come first."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from orchestrator.errors import Problem
from orchestrator.planning.layout.balance import balanced
from orchestrator.planning.memory import Memory
from orchestrator.planning.memory.fit import TIGHT
from orchestrator.quantities import memory_size
from orchestrator.spec.job import JobSpec
from orchestrator.tuning.bisection import first_within
from orchestrator.tuning.estimates import Candidate, Estimates, LayoutEstimates, front
from orchestrator.tuning.layout import EVEN, SELECTIVE, Layout, Split
from orchestrator.tuning.space import Forms, Space

_REFINED = 10
"""How many of the fastest are tried with single switches turned."""
_WHOLE = 6
"""How many of the fastest degrees are looked at without sequence parallelism as well."""
_BALANCED = 30
"""How many of the fastest pipelines are tried with fewer layers on the last stage: that saves some per cent."""
_FORMS = 4
"""About how many leaner forms of each layout on the front are looked at, beside the leanest two."""
_TRIED_TIGHT = 50
"""How many of the layouts that need nearly all of the memory are looked at, of those that fit for sure with more
recomputation, and of those that do not."""
NEARLY = 0.99
"""The part of a GPU's memory that what nobody measures may need: estimates were within 0.7 %, and what was planned at
99.6 % and above ran out of memory (docs/benchmarks)."""
WHOLE = 1.0
"""What may be tried."""
_WORTH = 0.03
"""Share of a step that one of them has to save before it is named."""


@dataclass
class RejectedLayouts:
    """Layouts that were left out for one reason, counted where the search left them: degrees that are not legal count
    once, whatever else could have been combined with them.
    """

    count: int = 0
    example: Layout | None = None
    why: str = ""
    """What is wrong with the example."""


@dataclass(frozen=True)
class NearestMiss:
    """The layout that came nearest to fitting."""

    layout: Layout
    memory: Memory


@dataclass(frozen=True)
class SearchResult:
    """What came of a search."""

    fitting: tuple[Candidate, ...]
    """What fits with no more recomputation than that takes, the fastest first."""
    leaner: tuple[Candidate, ...]
    """Forms of those on the front that recompute more, for who wants the memory."""
    own: Candidate | None
    """The layout that the job has, whether or not it fits; None where it is not legal on these machines."""
    own_problem: Problem | None
    lost: dict[str, RejectedLayouts]
    """By reason."""
    miss: NearestMiss | None
    """Where nothing fits, but something is legal."""
    tight: Candidate | None
    """What may or may not fit, does not count, and would be faster than all that does: worth a measurement."""


NOT_LEGAL, NO_FIT = "not legal", "does not fit"
ACROSS = "tensor parallelism across machines"
NEEDLESS = "recomputes more than it must"
BEATEN = "slower, and no leaner"


def search(space: Space, estimates: Estimates, part: float = TIGHT) -> SearchResult:
    """Every layout worth a look, estimated. What counts as fitting needs at most this part of a GPU's memory: more than
    `TIGHT` may or may not fit, because estimates have errors, and is for where a measurement is going to tell (`WHOLE`)
    or nothing else fits (`NEARLY`).

    The job's own layout is always looked at, and counts when it is tight too, as far as `NEARLY`, so that nothing
    slower than what the job has is ever called the best.
    """
    hunt = _Search(space, estimates, part)
    inside, across, refused = space.degrees()
    for layout, problem in refused:
        hunt.lose(NOT_LEGAL, layout, problem.message)
    for degrees in inside:
        hunt.look_at(degrees)
        hunt.look_at_fully_sharded(degrees)
    # Links between machines are an order of magnitude slower than those inside, and every layer waits for them.
    inside_is_enough = bool(hunt.found)
    for degrees in across:
        if inside_is_enough:
            hunt.lose(ACROSS, degrees, f"TP {degrees.tp} on machines of {space.job.processes_per_node}")
        else:
            hunt.look_at(degrees)
            hunt.look_at_fully_sharded(degrees)
    hunt.look_without_sequence_parallel([*inside, *across])
    hunt.look_without_waiting()
    own, own_problem = hunt.look_at_own()
    hunt.balance()
    hunt.refine()
    leaner = hunt.leaner_forms()
    fitting = sorted(hunt.found.values(), key=lambda candidate: candidate.order)
    on_front = {candidate.layout for candidate in front(fitting)}
    for candidate in fitting:
        if candidate.layout not in on_front:
            hunt.lose(BEATEN, candidate.layout, f"{candidate.step_seconds:.3f} s")
    miss, nearly = (None, hunt.faster_where_tight(fitting)) if fitting else (hunt.miss, None)
    return SearchResult(tuple(fitting), tuple(leaner), own, own_problem, hunt.lost, miss, nearly)


def can_fit(space: Space, estimates: Estimates) -> bool:
    """Whether any layout with tensor parallelism inside machines fits, without asking for times."""
    hunt = _Search(space, estimates, TIGHT)
    forms = (form for degrees in space.degrees()[0] for form in space.forms(degrees))
    return any(hunt.fits(hunt.leanest(form)) for form in forms)


@dataclass(frozen=True)
class _NearFit:
    """Where something may fit in nearly all of the memory."""

    forms: Forms
    """None of them fits for sure."""
    beside: Candidate | None
    """The same with enough of it to fit for sure."""


@dataclass
class _Search:
    space: Space
    estimates: Estimates
    part: float
    """Of a GPU's memory: what counts as fitting needs at most this."""
    found: dict[Layout, Candidate] = field(default_factory=dict)
    lost: dict[str, RejectedLayouts] = field(default_factory=dict)
    miss: NearestMiss | None = None
    nearly: list[_NearFit] = field(default_factory=list)
    layouts: LayoutEstimates = field(init=False)

    def __post_init__(self) -> None:
        self.layouts = LayoutEstimates(self.space.job, self.estimates)

    def lose(self, reason: str, layout: Layout, why: str, count: int = 1) -> None:
        lost = self.lost.setdefault(reason, RejectedLayouts())
        lost.count += count
        if lost.example is None:
            lost.example, lost.why = layout, why

    def look_at(self, degrees: Layout) -> None:
        """Every layout with these degrees, unless even the leanest does not fit: then, where that does, those without
        sequence parallelism, which needs buffers of its own.
        """
        lean = self.leanest(degrees)
        if not self.fits(lean):
            self._does_not_fit(lean)
            self.nearly.append(_NearFit(Forms(lean.layout, [lean.layout.recompute]), None))
            plain = self.space.without_sequence_parallel(lean.layout)
            if plain is not None and self._fits(self.layouts.memory(plain), self.part):
                self.look_at(degrees._replace(sequence_parallel=False))
            return
        for vp in self.space.chunks(degrees):
            for micro in self.space.micro_batches(degrees):
                layout = degrees._replace(vp=vp, micro_batch_size=micro)
                problem = self.space.problem(layout)
                if problem is not None:
                    self.lose(NOT_LEGAL, layout, problem.message)
                elif not self._fill(layout):
                    break  # a larger micro-batch never needs less

    def look_at_fully_sharded(self, degrees: Layout) -> None:
        """Those with weights and gradients shared out too, where these degrees need recomputation or do not fit: else
        gathering weights costs time and saves none.
        """
        plain = degrees._replace(micro_batch_size=self.space.micro_batches(degrees)[0])
        if self._fits(self.layouts.memory(plain), self.part):
            return
        for sharded in self.space.fully_sharded(degrees):
            self.look_at(sharded)

    def look_without_sequence_parallel(self, looked_at: Iterable[Layout]) -> None:
        """Look at the fastest of those degrees without it: the host starts fewer collectives, and it may take other
        micro-batches, and more recomputation or less, to fit.
        """
        seconds: dict[tuple[int, ...], float] = {}
        for candidate in self.found.values():
            key = _degrees(candidate.layout)
            seconds[key] = min(candidate.step_seconds, seconds.get(key, math.inf))
        fitting = (each for each in looked_at if each.sequence_parallel and _degrees(each) in seconds)
        for degrees in sorted(fitting, key=lambda each: seconds[_degrees(each)])[:_WHOLE]:
            plain = self.space.without_sequence_parallel(degrees)
            if plain is not None:
                self.look_at(plain)

    def look_without_waiting(self) -> None:
        """Where the GPU waits for the host, look at what is leaner than it has to be: that may leave room for CUDA
        graphs, with which nothing waits. Only where it could be the fastest of all.
        """
        if self.estimates.memory_bytes is None:
            return
        waiting = [each for each in self.found.values() if _waits(each)]
        for candidate in sorted(waiting, key=_without_waiting):
            if _without_waiting(candidate) >= min(each.step_seconds for each in self.found.values()):
                return
            layout = candidate.layout
            for form in (layout, _joined(layout)) if self.space.may_join_loss else (layout,):
                recomputes = self.space.recomputes(form, form.vp)
                if "recompute" not in self.space.kept:
                    self._add(form._replace(recompute=SELECTIVE))
                if form.recompute in recomputes:
                    more = recomputes[recomputes.index(form.recompute) :]
                    self._add_without_waiting([form._replace(recompute=each) for each in more])

    def _add_without_waiting(self, layouts: list[Layout]) -> None:
        """Take the first that does not, of layouts with more recomputation each than the one before: where CUDA graphs
        fit beside one, they do beside the next.
        """

        def runs(layout: Layout) -> bool:
            return not _waits(self.layouts.candidate(layout))

        parts = [each for each in layouts if each.recompute.method != "uniform"]
        if parts and runs(parts[-1]):
            self._add(parts[bisect_left(parts, True, key=runs)])
        else:
            for each in islice(filter(runs, layouts[len(parts) :]), 1):
                self._add(each)

    def look_at_own(self) -> tuple[Candidate | None, Problem | None]:
        """The job's layout as it is. It may differ from all that are searched, in what it overlaps for example."""
        layout = self.space.own
        problem = self.space.problem(layout)
        if problem is not None:
            return None, problem
        if layout not in self.found:
            candidate = self.layouts.candidate(layout)
            if not self._fits(candidate.memory, max(self.part, NEARLY)):
                return candidate, None
            self.found[layout] = candidate
        return self.found[layout], None

    def refine(self) -> None:
        """Look at the fastest without what should only help: it is taken where that turns out to be faster still."""
        fastest = sorted(self.found.values(), key=lambda candidate: candidate.order)[:_REFINED]
        for candidate in fastest:
            layout = candidate.layout
            if layout.use_distributed_optimizer and "use_distributed_optimizer" not in self.space.kept:
                self._add(layout._replace(use_distributed_optimizer=False), faster_than=candidate)

    def balance(self) -> None:
        """Look at the fastest pipelines with stages of unequal length, where these take equally long."""
        if "split" in self.space.kept:
            return
        pipelines = (each for each in self.found.values() if each.layout.pp > 1)
        for candidate in sorted(pipelines, key=lambda each: each.order)[:_BALANCED]:
            layout = self._balanced(candidate, self._limit(self.part))
            if layout is not None:
                self._add(layout)

    def leaner_forms(self) -> list[Candidate]:
        """Layouts on the front with more recomputation."""
        forms = {}
        for layout in [candidate.layout for candidate in front(self.found.values())]:
            recomputes = self.space.recomputes(layout, layout.vp)
            if layout.recompute in recomputes:
                more = recomputes[recomputes.index(layout.recompute) + 1 :]
                for recompute in [*more[:: len(more) // _FORMS + 1], *more[-2:]]:
                    each = layout._replace(recompute=recompute)
                    if each not in self.found and self.space.problem(each) is None:
                        forms[each] = self.layouts.candidate(each)
        return list(forms.values())

    def faster_where_tight(self, fitting: list[Candidate]) -> Candidate | None:
        """The fastest that needs nearly all of the memory; None where it saves too little to be worth a measurement."""
        alone = (each for each in self.nearly if each.beside is None)
        leaner = [(each.beside.step_seconds, each) for each in self.nearly if each.beside is not None]
        fastest_first = (each for _, each in sorted(leaner, key=lambda pair: pair[0]))
        asked = [layout for some in (alone, fastest_first) for layout in islice(self._tight(some), _TRIED_TIGHT)]
        found = [self.layouts.candidate(layout) for layout in asked if self.space.problem(layout) is None]
        found += self._split_where_tight([*fitting, *found])
        fastest = min(found, key=lambda candidate: candidate.order, default=None)
        worth = fastest is not None and fastest.step_seconds <= (1 - _WORTH) * fitting[0].step_seconds
        return fastest if worth else None

    def _tight(self, places: Iterable[_NearFit]) -> Iterator[Layout]:
        """What fits there in nearly all of the memory. It is looked for here, as no more than a few are asked for."""
        for each in places:
            number = self._least(each.forms, self._nearly_all)
            if number is not None:
                yield each.forms.form(number)

    def _split_where_tight(self, candidates: list[Candidate]) -> list[Candidate]:
        """The fastest pipelines with stages that take equally long, where that is what makes them tight."""
        if self.part > TIGHT or "split" in self.space.kept:
            return []
        even = (each for each in candidates if each.layout.pp > 1 and each.layout.split == EVEN)
        found = []
        for candidate in sorted(even, key=lambda each: each.order)[:_REFINED]:
            layout = self._balanced(candidate, self._nearly_all)
            if layout is not None and not self._fits(self.layouts.memory(layout), TIGHT):
                found.append(self.layouts.candidate(layout))
        return found

    def _balanced(self, candidate: Candidate, limit: float) -> Layout | None:
        """It with stages that take equally long and need no more bytes, where that is faster."""
        better = balanced(candidate.job, self._seconds, lambda job: self.estimates.memory(job).device_bytes <= limit)
        if better is None:
            return None
        return candidate.layout._replace(split=Split(last=better.split.last, letters=better.split.letters))

    def leanest(self, degrees: Layout) -> NearestMiss:
        """The layout of these degrees that needs the least: the smallest micro-batch, no interleaving (which only adds
        micro-batches in flight), the recomputation that saves most, and a joined loss where that saves more.
        """
        smallest = degrees._replace(micro_batch_size=self.space.micro_batches(degrees)[0])
        layouts = [smallest._replace(recompute=each) for each in self.space.recomputes(degrees, degrees.vp)[-3:]]
        if self.space.may_join_loss:
            layouts += [_joined(each) for each in layouts]
        return min(
            (NearestMiss(layout, self.layouts.memory(layout)) for layout in layouts),
            key=lambda each: each.memory.device_bytes,
        )

    def fits(self, each: NearestMiss) -> bool:
        """Whether it counts as fitting."""
        return self._fits(each.memory, self.part)

    def _fill(self, layout: Layout) -> bool:
        """Take the layout with the least recomputation that fits, and where there has to be some, also the one with the
        least beside a joined loss; False when none does.

        More than that is slower with nothing gained, but for graphs (`look_without_waiting`), and for those whom the
        memory is of interest (`leaner_forms`).
        Where what is tight counts, what fits for sure is taken as well. Selective recomputation is no step between: it
        can cost more or less than whole layers do.
        """
        recomputes = self.space.recomputes(layout, layout.vp)
        forms = Forms(layout, recomputes)
        limits = {self._limit(part) for part in (self.part, TIGHT)}
        least = {number for limit in limits if (number := self._least(forms, limit)) is not None}
        for number in sorted(least):
            form = forms.form(number)
            self.found[form] = self.layouts.candidate(form)
        first = min(least, default=len(recomputes))
        if self.part == TIGHT:
            fits = self.found[forms.form(first)] if least else None
            self.nearly.append(_NearFit(Forms(layout, recomputes[:first]), fits))
        joined = False
        if first > 0:
            plain = NearestMiss(forms.form(0), self.layouts.memory(forms.form(0)))
            self._does_not_fit(plain, first)
            if "recompute" not in self.space.kept:
                self._add(layout._replace(recompute=SELECTIVE))
            joined = self._is_leaner_joined(plain) and self._fill(_joined(layout))
        if first + 1 < len(recomputes):
            why = f"recompute {recomputes[first].describe()} is enough"
            self.lose(NEEDLESS, forms.form(-1), why, len(recomputes) - first - 1)
        return joined or bool(least)

    def _is_leaner_joined(self, plain: NearestMiss) -> bool:
        """Whether a joined loss saves anything, which it does not where another stage is the fullest."""
        if plain.layout.joins_loss or not self.space.may_join_loss:
            return False
        return self.layouts.memory(_joined(plain.layout)).device_bytes < plain.memory.device_bytes

    def _least(self, forms: Forms, limit: float) -> int | None:
        """Which of the forms, each with more recomputation than the one before, is the first to need no more bytes.

        Each layer more is leaner, up to those that recompute everything (`Space.recomputes`).
        """

        def needed(number: int) -> int:
            return self.layouts.memory(forms.form(number)).device_bytes

        parts = forms.partial
        if parts and needed(0) <= limit:
            return 0
        if parts and needed(parts - 1) <= limit:
            return first_within(needed, parts - 1, limit)
        return next((number for number in range(parts, len(forms.recomputes)) if needed(number) <= limit), None)

    def _add(self, layout: Layout, faster_than: Candidate | None = None) -> None:
        """Take it if it is new, legal, fits, and is faster than another."""
        if layout in self.found or self.space.problem(layout) is not None:
            return
        if not self._fits(self.layouts.memory(layout), self.part):
            return
        candidate = self.layouts.candidate(layout)
        if faster_than is None or candidate.step_seconds < faster_than.step_seconds:
            self.found[layout] = candidate

    def _seconds(self, job: JobSpec) -> float:
        return self.estimates.time(job).step_seconds

    def _fits(self, memory: Memory, part: float) -> bool:
        return memory.device_bytes <= self._limit(part)

    def _limit(self, part: float) -> float:
        total = self.estimates.memory_bytes
        return math.inf if total is None else total * part

    @property
    def _nearly_all(self) -> float:
        return self._limit(NEARLY)

    def _does_not_fit(self, each: NearestMiss, count: int = 1) -> None:
        total = self.estimates.memory_bytes
        assert total is not None, "everything fits where nothing limits"
        part = "" if self.part == WHOLE else f"{self.part:.0%} of "
        why = f"needs {memory_size(each.memory.device_bytes)}, more than {part}{memory_size(total)}"
        self.lose(NO_FIT, each.layout, why, count)
        if self.miss is None or each.memory.device_bytes < self.miss.memory.device_bytes:
            self.miss = each


def _degrees(layout: Layout) -> tuple[int, ...]:
    return layout.tp, layout.pp, layout.cp, layout.ep


def _waits(candidate: Candidate) -> bool:
    return candidate.time.parts.get("host", 0.0) > 0


def _without_waiting(candidate: Candidate) -> float:
    """Seconds of a step at least, if its GPU did not wait for the host."""
    return candidate.step_seconds - sum(candidate.time.parts.get(name, 0.0) for name in ("host", "overhead"))


def _joined(layout: Layout) -> Layout:
    return layout._replace(joins_loss=True)
