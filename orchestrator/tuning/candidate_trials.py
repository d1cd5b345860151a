"""Measuring the best few, correcting the estimates of the others by that, and measuring what then looks best."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.tuning.correction import Correction
from orchestrator.tuning.estimates import Candidate
from orchestrator.tuning.layout import Layout
from orchestrator.tuning.trial import Trial

_BURSTS = 2
"""Trials that may run out of memory, for each that is to tell how fast a layout is."""


@dataclass(frozen=True)
class RankedCandidate:
    """A candidate after what was measured."""

    candidate: Candidate
    trial: Trial | None
    """None where it was not tried."""
    step_seconds: float
    """Measured, or else estimated and corrected."""
    device_bytes: int
    """Estimated, and corrected by the measured peaks."""

    @property
    def order(self) -> tuple[float, int, str]:
        """To sort by: the fastest first, then the leanest; never by chance."""
        return self.step_seconds, self.device_bytes, self.candidate.order[2]

    @property
    def is_measured(self) -> bool:
        """Whether its time was measured."""
        return self.trial is not None and self.trial.outcome == "measured"


@dataclass
class CandidateTrials:
    """Trials among candidates, and what they say about the others."""

    candidates: Sequence[Candidate]
    """The fastest first."""
    memory_bytes: int | None
    """What a GPU has."""
    trials: dict[Layout, Trial] = field(default_factory=dict)

    def run(self, attempt: Callable[[Candidate], Trial], count: int, own: Candidate | None = None) -> None:
        """Try the best `count` that memory is enough for and the job's own layout; then, at most `count` times more,
        what looks best after that, until the best is one that was measured. What was tried stays in `trials` whatever
        interrupts it.
        """
        told, burst = 0, 0
        for each in self.candidates:
            if told >= count or burst >= _BURSTS * count:
                break
            trial = self._try(each, attempt)
            told += trial is not None and trial.outcome != "out_of_memory"
            burst += trial is not None and trial.outcome == "out_of_memory"
        if own is not None and any(each is own for each in self.candidates):
            self._try(own, attempt)
        told, burst = 0, 0
        while told < count and burst < _BURSTS * count:
            ranking = self.ranking()
            if not ranking or ranking[0].trial is not None:
                return
            best = ranking[0].candidate
            trial = self.trials[best.layout] = attempt(best)
            told += trial.outcome != "out_of_memory"
            burst += trial.outcome == "out_of_memory"

    def _try(self, candidate: Candidate, attempt: Callable[[Candidate], Trial]) -> Trial | None:
        """Results, now or before; None where it is not tried, since it would not fit."""
        known = self.trials.get(candidate.layout)
        if known is None and self._may_fit(candidate, self._memory_ratio(), self._least_burst()):
            known = self.trials[candidate.layout] = attempt(candidate)
        return known

    def ranking(self, others: Sequence[Candidate] = ()) -> list[RankedCandidate]:
        """What can be run, the fastest first: neither failed, nor larger than what ran out of memory. `others` are
        ranked among the candidates.
        """
        correction = Correction.by(self._measured())
        ratio, burst = self._memory_ratio(), self._least_burst()
        ranked = []
        for each in (*self.candidates, *others):
            trial = self.trials.get(each.layout)
            if trial is None and not self._may_fit(each, ratio, burst):
                continue
            if trial is not None and trial.outcome != "measured":
                continue
            seconds = trial.step_seconds if trial is not None else None
            if seconds is None:
                seconds = correction.seconds(each.time.parts)
            needed = round(each.device_bytes + (ratio - 1.0) * each.memory.peak_bytes)
            ranked.append(RankedCandidate(each, trial, seconds, needed))
        return sorted(ranked, key=lambda each: each.order)

    def _measured(self) -> list[tuple[Mapping[str, float], float]]:
        found: list[tuple[Mapping[str, float], float]] = []
        for each in self.candidates:
            trial = self.trials.get(each.layout)
            if trial is not None and trial.step_seconds is not None:
                found.append((each.time.parts, trial.step_seconds))
        return found

    def _memory_ratio(self) -> float:
        """Measured over estimated peaks of the first stage, the largest: what is left out must not be missed."""
        ratios = [1.0]
        for each in self.candidates:
            trial = self.trials.get(each.layout)
            if trial is not None and trial.outcome == "measured" and trial.peak_bytes:
                ratios.append(trial.peak_bytes / each.memory.stages[0].peak_bytes)
        return max(ratios[1:] or ratios)

    def _least_burst(self) -> float:
        """The least that was estimated of what ran out of memory; infinite where nothing did."""
        burst = {layout for layout, trial in self.trials.items() if trial.outcome == "out_of_memory"}
        return min((each.device_bytes for each in self.candidates if each.layout in burst), default=math.inf)

    def _may_fit(self, candidate: Candidate, ratio: float, burst: float) -> bool:
        """What needs at least as much as one that ran out of memory would too; so would what is more than
        there is when the measured peaks are larger than the estimates.
        """
        if candidate.device_bytes >= burst:
            return False
        needed = candidate.device_bytes + (ratio - 1.0) * candidate.memory.peak_bytes
        return self.memory_bytes is None or ratio <= 1.0 or needed <= self.memory_bytes
