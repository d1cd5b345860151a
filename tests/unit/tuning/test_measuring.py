"""Which layouts are measured, and what that does to the ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pytest
from support.layouts import GIB, Laws

from orchestrator.spec.job import JobSpec
from orchestrator.tuning.candidate_trials import CandidateTrials
from orchestrator.tuning.estimates import Candidate
from orchestrator.tuning.layout import Layout
from orchestrator.tuning.search import search
from orchestrator.tuning.space import Space
from orchestrator.tuning.trial import Trial

Spaces = Callable[..., Space]

KEPT = frozenset({"cp", "recompute", "vp", "micro_batch_size", "sequence_parallel", "use_distributed_optimizer"})


def parts_of(job: JobSpec) -> Mapping[str, float]:
    degrees = job.parallelism
    tp, pp = degrees.tensor_model_parallel_size, degrees.pipeline_model_parallel_size
    return {"gemm": 10.0, "tensor_parallel": 0.1 * (tp - 1), "bubble": 0.25 * (pp - 1)}


def bytes_of(job: JobSpec) -> int:
    return 60 * GIB // job.parallelism.model_parallel_size


LAWS = Laws(80 * GIB, bytes_of, parts_of)


@pytest.fixture
def candidates(space: Spaces) -> tuple[Candidate, ...]:
    """TP x PP on 8 GPUs; by estimate the fastest is (1, 1), and all of TP is faster than any pipeline."""
    found = search(space(gpus=8, kept=KEPT), LAWS).fitting
    assert [(each.layout.tp, each.layout.pp) for each in found[:3]] == [(1, 1), (2, 1), (1, 2)]
    return found


class Machine:
    """Measures by a law that is not the estimates'."""

    def __init__(self, seconds: Callable[[Layout], float], memory: float = 1e12, ratio: float = 1.0) -> None:
        self.tried: list[Layout] = []
        self._seconds, self._memory, self._ratio = seconds, memory, ratio

    def __call__(self, candidate: Candidate) -> Trial:
        self.tried.append(candidate.layout)
        needed = candidate.memory.peak_bytes * self._ratio
        if needed > self._memory:
            return Trial("out_of_memory", message="the GPU's memory is not enough")
        seconds = self._seconds(candidate.layout)
        return Trial("measured", seconds, seconds, seconds, 10, round(needed))


def run(
    candidates: tuple[Candidate, ...], machine: Machine, count: int, own: Candidate | None = None
) -> CandidateTrials:
    measuring = CandidateTrials(candidates, 80 * GIB)
    measuring.run(machine, count, own)
    return measuring


def test_the_best_are_measured_and_stay_the_best(candidates: tuple[Candidate, ...]) -> None:
    machine = Machine(lambda layout: 5.0 + 0.05 * (layout.tp - 1) + 0.125 * (layout.pp - 1))  # twice as fast throughout
    measuring = run(candidates, machine, 2)
    assert machine.tried == [each.layout for each in candidates[:2]]
    ranking = measuring.ranking()
    assert [each.candidate for each in ranking] == list(candidates)
    assert [each.is_measured for each in ranking[:3]] == [True, True, False]
    for each in ranking:
        assert each.step_seconds == pytest.approx(each.candidate.step_seconds / 2, rel=0.01)


def test_what_looks_better_after_that_is_measured_as_well(candidates: tuple[Candidate, ...]) -> None:
    """Tensor parallelism costs four times what was estimated: the layout without it wins, which was the last."""
    parts = {1: {"gemm": 10.3}, 2: {"gemm": 9.0, "tensor_parallel": 1.0}, 4: {"gemm": 8.1, "tensor_parallel": 2.0}}
    laws = replace(LAWS, parts_of=lambda job: parts[job.parallelism.tensor_model_parallel_size])
    by_degrees = {(each.layout.tp, each.layout.pp): each.job for each in candidates}
    [one, two, four] = [laws.candidate(by_degrees[tp, 1]) for tp in (1, 2, 4)]
    machine = Machine(lambda layout: parts[layout.tp]["gemm"] + 4 * parts[layout.tp].get("tensor_parallel", 0.0))
    measuring = run((two, four, one), machine, 2)
    assert machine.tried == [two.layout, four.layout, one.layout]
    best = measuring.ranking()[0]
    assert best.is_measured
    assert best.candidate == one


def test_trying_is_bounded(candidates: tuple[Candidate, ...]) -> None:
    tried: list[Candidate] = []

    def attempt(candidate: Candidate) -> Trial:
        tried.append(candidate)
        return Trial("failed", message="NCCL error")

    CandidateTrials(candidates, None).run(attempt, 2)
    assert tried == list(candidates[:4])


def test_the_own_layout_is_measured_as_well(candidates: tuple[Candidate, ...]) -> None:
    machine = Machine(lambda layout: 10.0)
    run(candidates, machine, 1, own=candidates[-1])
    assert machine.tried[:2] == [candidates[0].layout, candidates[-1].layout]


def test_what_needs_more_than_one_that_ran_out_of_memory_is_not_tried(candidates: tuple[Candidate, ...]) -> None:
    machine = Machine(lambda layout: 10.0, memory=29 * GIB)  # one GPU needs 60, two 30, four 15
    measuring = run(candidates, machine, 2)
    assert [layout.model_parallel_size for layout in machine.tried][:2] == [1, 2]
    ranking = measuring.ranking()
    assert all(each.candidate.layout.model_parallel_size > 2 for each in ranking)
    assert ranking[0].is_measured


def test_what_runs_out_of_memory_takes_nobodys_place(candidates: tuple[Candidate, ...]) -> None:
    """The two that look best do not fit. Of those that do, as many are measured as were asked for: the second is the
    fastest, though by what was measured of the first it looks slower.
    """
    fitting = [each.layout for each in candidates if each.layout.model_parallel_size > 2]
    machine = Machine(lambda layout: 10.0 if layout == fitting[1] else 20.0, memory=29 * GIB)
    measuring = run(candidates, machine, 2)
    assert machine.tried == [candidates[0].layout, candidates[1].layout, *fitting[:2]]
    best = measuring.ranking()[0]
    assert best.is_measured
    assert best.candidate.layout == fitting[1]


def test_running_out_of_memory_is_bounded(candidates: tuple[Candidate, ...]) -> None:
    """Each needs less than the one before, and still too much: two for each that was asked for, and as many again of
    what then looks best."""
    leaner = sorted(candidates, key=lambda each: -each.device_bytes)
    distinct = [
        each
        for before, each in zip([None, *leaner], leaner, strict=False)
        if before is None or each.device_bytes < before.device_bytes
    ]
    tried: list[Candidate] = []

    def attempt(candidate: Candidate) -> Trial:
        tried.append(candidate)
        return Trial("out_of_memory", message="the GPU's memory is not enough")

    CandidateTrials(distinct, None).run(attempt, 1)
    assert tried == distinct[:4]


def test_measured_peaks_rule_out_what_would_not_fit(candidates: tuple[Candidate, ...]) -> None:
    """The first stage needs half as much again: then 60 GiB are 90, and a GPU has 80."""
    machine = Machine(lambda layout: 10.0 if layout.tp == 2 else 100.0, ratio=1.5)
    measuring = CandidateTrials(candidates, 80 * GIB)
    measuring.trials[candidates[1].layout] = machine(candidates[1])
    ranking = measuring.ranking()
    assert candidates[0] not in [each.candidate for each in ranking]
    assert ranking[0].device_bytes == 45 * GIB


def test_what_was_measured_before_an_interruption_is_kept(candidates: tuple[Candidate, ...]) -> None:
    machine = Machine(lambda layout: 10.0)

    def attempt(candidate: Candidate) -> Trial:
        if machine.tried:
            raise KeyboardInterrupt
        return machine(candidate)

    measuring = CandidateTrials(candidates, None)
    with pytest.raises(KeyboardInterrupt):
        measuring.run(attempt, 3)
    assert list(measuring.trials) == [candidates[0].layout]


def test_thousands_are_ranked_at_once(candidates: tuple[Candidate, ...]) -> None:
    """All of them are looked through some times, not once for each of them."""

    class Counting(tuple[Candidate, ...]):
        looks = 0

        def __iter__(self) -> Iterator[Candidate]:
            Counting.looks += 1
            return super().__iter__()

    many = Counting(candidates)
    assert len(CandidateTrials(many, 80 * GIB).ranking()) == len(candidates) > 5
    assert Counting.looks < 5
