"""What the search takes and leaves, mostly by estimates that follow simple laws."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.layouts import GIB, Laws
from support.shipped import SHIPPED

from orchestrator.kernel_selection.cuda_graphs import with_graphs
from orchestrator.planning.hardware import device_named
from orchestrator.spec.job import JobSpec
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.loading import load_job
from orchestrator.tuning.estimates import Candidate, PlanEstimates, front
from orchestrator.tuning.layout import EVEN, NO_RECOMPUTE, SELECTIVE, Recompute, Split, layout_of, on_machines
from orchestrator.tuning.search import ACROSS, NEARLY, NO_FIT, NOT_LEGAL, WHOLE, SearchResult, can_fit, search
from orchestrator.tuning.space import Space

Spaces = Callable[..., Space]

H100 = device_named("H100")


def test_sequence_parallelism_is_done_without_where_it_does_not_fit(space: Spaces) -> None:
    """It needs buffers of its own. Where it is kept, nothing fits."""

    def bytes_of(job: JobSpec) -> int:
        return (2 if layout_of(job).sequence_parallel else 1) * GIB

    law = Laws(3 * GIB // 2, bytes_of, lambda job: {"gemm": 1.0})
    split = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    of_two = frozenset({"tp", "joins_loss"})
    wanted, kept = (space(gpus=2, kept=each, parallelism=split) for each in (of_two, of_two | {"sequence_parallel"}))
    assert {each.layout.sequence_parallel for each in search(wanted, law).fitting} == {False}
    assert can_fit(wanted, law)
    assert not search(kept, law).fitting
    assert not can_fit(kept, law)


def test_logits_are_done_without_where_they_take_what_layers_need() -> None:
    """7.1B with 4 sequences on 141 GB: a joined loss and nothing recomputed, beside layers recomputed. Where logits are
    few, as where nothing has to give way, they stay.
    """
    job = on_machines(load_job([SHIPPED["gpt-7.1b"]], ["batch.global_batch_size=16"]).job, 1, 4)
    h200 = PlanEstimates(device_named("H200"), "transformer_engine", 131072)
    found = {each.layout for each in search(Space(job), h200).fitting}
    of_four = {each for each in found if each.micro_batch_size == 4 and each.model_parallel_size == 1}
    assert any(each.joins_loss and each.recompute == NO_RECOMPUTE for each in of_four)
    assert all(each.joins_loss or each.recompute != NO_RECOMPUTE for each in of_four)
    assert not any(each.joins_loss for each in found if each.micro_batch_size == 1)
    kept = Space(job, frozenset({"joins_loss"}))
    assert not any(each.layout.joins_loss for each in search(kept, h200).fitting)


@given(points=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 6)), min_size=1, max_size=12))
def test_the_front_is_what_nothing_beats_in_both(points: list[tuple[int, int]]) -> None:
    candidates = [_candidate(number, seconds, size) for number, (seconds, size) in enumerate(points, 1)]
    kept = front(candidates)
    for each in candidates:
        beaten = any(
            (other.step_seconds <= each.step_seconds and other.device_bytes < each.device_bytes)
            or (other.step_seconds < each.step_seconds and other.device_bytes <= each.device_bytes)
            for other in candidates
        )
        assert beaten or any((each.step_seconds, each.device_bytes) == (k.step_seconds, k.device_bytes) for k in kept)
        assert not (beaten and each in kept)


def _candidate(number: int, seconds: int, size: int) -> Candidate:
    laws = Laws(None, lambda job: size, lambda job: {"gemm": float(seconds)})
    job = JobSpec.model_validate(
        {
            "name": "job",
            "model": {"preset": "gpt-tiny", "num_layers": 2, "hidden_size": 64, "num_attention_heads": 2}
            | {"seq_length": 64, "vocab_size": 300},
            "batch": {"micro_batch_size": number},
            "data": {"random_tokens": True},
            "optimizer": {"lr": 1e-3},
            "schedule": {"train_iters": 1},
        }
    )
    return laws.candidate(job)


def laws(memory_bytes: int | None, **factors: float) -> Laws:
    """Bytes grow with the micro-batch and shrink with model parallelism and recomputation; time the other way round."""

    def bytes_of(job: JobSpec) -> int:
        share = GIB * (4 + job.batch.micro_batch_size) // job.parallelism.model_parallel_size
        return share // 2 if job.runtime.recompute_granularity == "full" else share

    def parts_of(job: JobSpec) -> Mapping[str, float]:
        again = 0.3 if job.runtime.recompute_granularity == "full" else 0.0
        split = factors.get("split", 0.1) * (job.parallelism.model_parallel_size - 1)
        return {"gemm": 1.0 + 1.0 / job.batch.micro_batch_size, "recompute": again, "tensor_parallel": split}

    return Laws(memory_bytes, bytes_of, parts_of)


def test_recomputation_is_only_taken_where_it_is_needed(space: Spaces) -> None:
    roomy = search(space(gpus=1), laws(100 * GIB))
    assert roomy.fitting[0].layout.recompute == NO_RECOMPUTE
    tight = search(space(gpus=1), laws(5 * GIB))
    assert tight.fitting[0].layout.recompute.granularity == "full"
    assert tight.lost[NO_FIT].count > 0


def test_the_front_has_leaner_forms_of_the_best(space: Spaces) -> None:
    found = search(space(gpus=1), laws(100 * GIB))
    assert all(each.layout.recompute == NO_RECOMPUTE for each in found.fitting)
    every = front([*found.fitting, *found.leaner])
    assert every[0].layout.recompute == NO_RECOMPUTE
    assert every[-1].layout.recompute.granularity == "full"


def test_nothing_fits_and_the_nearest_is_told(space: Spaces) -> None:
    found = search(space(gpus=2), laws(1 * GIB))
    assert not found.fitting
    assert found.miss is not None
    assert found.miss.layout.model_parallel_size == 2
    assert found.miss.layout.micro_batch_size == 1
    assert found.miss.memory.device_bytes == 5 * GIB // 4


def test_groups_span_machines_only_where_nothing_else_fits(space: Spaces) -> None:
    """PP and CP are kept at 1, so that more than a machine of 2 means tensor parallelism across machines."""
    kept = frozenset({"pp", "cp"})
    enough = search(space(gpus=4, nodes=2, kept=kept), laws(100 * GIB))
    assert {each.layout.tp for each in enough.fitting} == {1, 2}
    assert enough.lost[ACROSS].example is not None
    needed = search(space(gpus=4, nodes=2, kept=kept), laws(GIB))
    assert {each.layout.tp for each in needed.fitting} == {4}


def test_what_is_tight_counts_only_where_asked_for(space: Spaces) -> None:
    """Everything needs 95 % of the GPU: the own layout counts, others only when a measurement is going to tell."""
    full = replace(laws(100 * GIB), bytes_of=lambda job: 95 * GIB)
    one = space(gpus=1)
    found = search(one, full)
    assert found.fitting == (found.own,)
    assert found.lost[NO_FIT].why == "needs 95.0 GiB, more than 92% of 100.0 GiB"
    assert len(search(one, full, WHOLE).fitting) > 1


@pytest.mark.parametrize(("needed", "counts"), [(98, True), (99.5, False)])
def test_what_nobody_measures_leaves_a_hundredth_of_the_memory(space: Spaces, needed: float, counts: bool) -> None:
    """Of the own layout too, which is told of all the same; with a measurement everything counts."""
    full = replace(laws(100 * GIB), bytes_of=lambda job: int(needed * GIB))
    one = space(gpus=1)
    found, measured = search(one, full, NEARLY), search(one, full, WHOLE)
    assert len(measured.fitting) > 1
    assert found.fitting == (measured.fitting if counts else ())
    assert found.own is not None
    if not counts:
        assert found.lost[NO_FIT].why == "needs 99.5 GiB, more than 99% of 100.0 GiB"


@pytest.mark.parametrize(("saved", "named"), [(0.05, True), (0.02, False)])
def test_what_is_tight_is_named_where_it_is_worth_a_measurement(space: Spaces, saved: float, named: bool) -> None:
    """Without recomputation all need 95 % of the GPU, and with it half; the own layout recomputes."""

    def bytes_of(job: JobSpec) -> int:
        return (95 if layout_of(job).recompute == NO_RECOMPUTE else 50) * GIB

    def parts_of(job: JobSpec) -> Mapping[str, float]:
        return {"gemm": 1 - saved if layout_of(job).recompute == NO_RECOMPUTE else 1.0}

    law = Laws(100 * GIB, bytes_of, parts_of)
    own = space(
        gpus=1, runtime={"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    )
    found = search(own, law)
    assert all(each.layout.recompute != NO_RECOMPUTE for each in found.fitting)
    assert (found.tight is not None) == named
    if found.tight is not None:
        assert found.tight.layout.recompute == NO_RECOMPUTE
    measured = search(own, law, WHOLE)
    assert (measured.fitting[0].layout.recompute, measured.tight) == (NO_RECOMPUTE, None)
    assert search(own, replace(law, memory_bytes=None)).tight is None, "everything fits"


def test_switches_are_turned_off_only_where_that_is_faster(space: Spaces) -> None:
    base = laws(None)

    def slower_when_sharded(job: JobSpec) -> Mapping[str, float]:
        return {**base.parts_of(job), "data_parallel": 0.1 if job.parallelism.use_distributed_optimizer else 0.0}

    as_usual = search(space(gpus=2), base)
    assert all(each.layout.use_distributed_optimizer for each in as_usual.fitting)
    better_off = search(space(gpus=2), replace(base, parts_of=slower_when_sharded))
    assert not better_off.fitting[0].layout.use_distributed_optimizer


def test_larger_micro_batches_and_uneven_stages_are_named_where_they_are_tight(space: Spaces) -> None:
    """Two sequences at once, or other than equal stages, need 95 % of the GPU, and one on equal ones half of it."""

    def bytes_of(job: JobSpec) -> int:
        found = layout_of(job)
        return (50 if found.micro_batch_size == 1 and found.split == EVEN else 95 if found.pp == 2 else 101) * GIB

    def parts_of(job: JobSpec) -> Mapping[str, float]:
        found = layout_of(job)
        return {"gemm": (1.0 if found.split == EVEN else 0.9) - 0.2 * (found.micro_batch_size == 2)}

    kept = frozenset({"tp", "cp", "ep", "vp", "recompute"})
    law = Laws(100 * GIB, bytes_of, parts_of)
    both = search(space(gpus=2, kept=kept), law)
    assert both.fitting[0].step_seconds == 1.0
    assert both.tight is not None
    assert (both.tight.layout.micro_batch_size, both.tight.layout.split) != (1, EVEN)
    assert both.tight.step_seconds == pytest.approx(0.7)
    one = search(space(gpus=2, kept=kept | {"micro_batch_size"}, batch={"micro_batch_size": 1}), law)
    assert one.tight is not None
    assert one.tight.layout.split != EVEN
    even = search(space(gpus=2, kept=kept | {"micro_batch_size", "split"}, batch={"micro_batch_size": 1}), law)
    assert even.tight is None


def test_stages_of_a_pipeline_take_equally_long(space: Spaces) -> None:
    """A loss that takes as long as two layers: of 8, two stages then have 5 and 3."""

    def waiting(job: JobSpec) -> Mapping[str, float]:
        held = [sum(stage) for stage in layers_of_chunks(job.model.num_layers, job.parallelism)]
        return {"gemm": float(max(*held[:-1], held[-1] + 2)) if len(held) > 1 else 10.0}

    law = replace(laws(None), parts_of=waiting)
    kept = frozenset({"tp", "cp", "ep", "vp", "micro_batch_size", "recompute"})
    found = search(space(gpus=2, kept=kept), law)
    assert (found.fitting[0].layout.pp, found.fitting[0].layout.split) == (2, Split(last=3))
    even = search(space(gpus=2, kept=kept | {"split"}), law)
    assert {each.layout.split for each in even.fitting} == {EVEN}
    full = replace(law, memory_bytes=GIB, bytes_of=lambda job: GIB // 2 if layout_of(job).split == EVEN else 2 * GIB)
    assert {each.layout.split for each in search(space(gpus=2, kept=kept), full).fitting} == {EVEN}


def test_what_is_kept_stays(space: Spaces) -> None:
    found = search(space(gpus=4, kept=frozenset({"tp", "recompute"})), laws(None))
    assert {each.layout.tp for each in found.fitting} == {1}
    assert {each.layout.recompute for each in found.fitting} == {NO_RECOMPUTE}


def test_recomputation_that_is_kept_is_not_replaced_by_selective(space: Spaces) -> None:
    def needed(job: JobSpec) -> int:
        small = job.batch.micro_batch_size == 1 or layout_of(job).recompute != NO_RECOMPUTE
        return GIB // 2 if small else 2 * GIB

    law = replace(laws(None), memory_bytes=GIB, bytes_of=needed)
    assert SELECTIVE in {each.layout.recompute for each in search(space(), law).fitting}
    kept = search(space(kept=frozenset({"recompute"})), law)
    assert {each.layout.recompute for each in kept.fitting} == {NO_RECOMPUTE}


def test_the_own_layout_that_is_not_legal_is_told(space: Spaces) -> None:
    found = search(
        space(gpus=3, parallelism={"tensor_model_parallel_size": 2}, batch={"global_batch_size": 12}), laws(None)
    )
    assert found.own is None
    assert found.own_problem is not None
    assert found.lost[NOT_LEGAL].count > 0


def test_the_same_again(space: Spaces) -> None:
    assert _told(search(space(), laws(None, split=0.0))) == _told(search(space(), laws(None, split=0.0)))


def _told(found: SearchResult) -> list[Any]:
    return [[each.layout for each in found.fitting], {reason: vars(lost) for reason, lost in found.lost.items()}]


@pytest.mark.parametrize(
    "saved",
    [
        lambda count: 2 * count,
        lambda count: 78 * (count >= 23),
        lambda count: 78 * (1 - 0.8**count),
        lambda count: 78 * (count / 39) ** 4,
        lambda count: 0,
    ],
    ids=["line", "cliff", "less-and-less", "more-and-more", "nothing"],
)
@pytest.mark.parametrize("limit", [99, 60, 45, 24, 23])
def test_no_layer_more_is_recomputed_than_has_to_be(space: Spaces, saved: Callable[[int], float], limit: int) -> None:
    """However the memory falls with each of 40 layers."""

    def needed(recompute: Recompute) -> int:
        return int((100 - saved(recompute.num_layers or 0)) * GIB) if recompute.method != "uniform" else GIB

    one = space(gpus=1, model={"num_layers": 40}, kept=frozenset({"micro_batch_size", "joins_loss"}))
    found = search(one, replace(laws(limit * GIB), bytes_of=lambda job: needed(layout_of(job).recompute)), WHOLE)
    every = one.recomputes(one.own, 1)
    taken = {each.layout.recompute for each in found.fitting}
    least = next(each for each in every if needed(each) <= limit * GIB)
    assert next(each for each in every if each in taken) == least


def test_layouts_of_a_70b_model_on_1024_gpus(space: Spaces) -> None:
    """The bar is 20 seconds; it takes a few, and the search asks for few enough estimates that it must."""
    asked = {"memory": 0, "time": 0}
    planned = PlanEstimates(H100, "transformer_engine", 131072)

    class Counted(PlanEstimates):
        def memory(self, job: JobSpec) -> Any:
            asked["memory"] += 1
            return planned.memory(job)

        def time(self, job: JobSpec) -> Any:
            asked["time"] += 1
            return planned.time(job)

    model = {"num_layers": 84, "hidden_size": 8192, "num_attention_heads": 64, "seq_length": 4096, "vocab_size": 131072}
    split = {"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 2, "sequence_parallel": True}
    big = space(gpus=1024, nodes=128, model=model, parallelism=split, batch={"global_batch_size": 1024})
    begun = time.process_time()
    found = search(big, Counted(H100, "transformer_engine", 131072))
    assert time.process_time() - begun < 20
    assert len(found.fitting) > 50
    assert found.own is not None
    assert found.own.step_seconds > found.fitting[0].step_seconds
    assert asked["memory"] < 7_000
    assert asked["time"] < 2_200
    assert found.fitting[0].time.mfu == pytest.approx(0.46, abs=0.1)


def test_a_layout_is_reckoned_with_the_graphs_that_it_would_have(make_job: Any) -> None:
    small = make_job(model={"num_layers": 8, "hidden_size": 512, "num_attention_heads": 8, "seq_length": 512})
    found, captured, plain = (
        PlanEstimates(H100, "transformer_engine", 131072).time(each).step_seconds
        for each in (small, with_graphs(small, True), with_graphs(small, False))
    )
    assert found == captured < plain
    needed, with_them, without = (
        PlanEstimates(H100, "transformer_engine", 131072).memory(each).device_bytes
        for each in (small, with_graphs(small, True), with_graphs(small, False))
    )
    assert needed == with_them > without


def test_weights_are_shared_out_where_they_do_not_fit_whole(space: Spaces) -> None:
    """Without pipelines, and not where whole ones fit without recomputation: gathering them takes time."""

    def bytes_of(job: JobSpec) -> int:
        layout = layout_of(job)
        return (1 if layout.fsdp else 3 // layout.tp) * GIB

    def parts(job: JobSpec) -> Mapping[str, float]:
        layout = layout_of(job)
        return {"gemm": 1.0 * layout.tp * layout.pp, "data_parallel": 0.1 if layout.fsdp else 0.0}

    law = Laws(3 * GIB // 2, bytes_of, parts)
    whole = {"cp", "ep", "joins_loss", "micro_batch_size", "recompute"}
    best, *others = search(space(gpus=4, kept=frozenset(whole)), law).fitting
    assert (best.layout.tp, best.layout.pp, best.layout.fsdp) == (1, 1, "full")
    assert {each.layout.pp for each in others if each.layout.fsdp} <= {1}
    assert not any(each.layout.fsdp and each.layout.tp > 2 for each in others)
    two_machines = search(space(gpus=8, nodes=2, kept=frozenset(whole)), law).fitting
    assert {each.layout.fsdp for each in two_machines if each.layout.tp == each.layout.pp == 1} == {"full", 4}
    kept = search(space(gpus=4, kept=frozenset({*whole, "fsdp"})), law).fitting
    assert not any(each.layout.fsdp for each in kept)
