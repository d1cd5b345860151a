"""Remedies fit, keep the global batch, are legal as `--set` takes them, and are priced."""

from __future__ import annotations

from typing import Any

import pytest
from support.shipped import SHIPPED

from orchestrator.planning.memory import Memory, estimate_memory
from orchestrator.planning.suggestions.remedy_search import Remedy, remedies
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

GIB = 2**30


def price(job: JobSpec) -> float:
    """Seconds that fall with the GPUs and rise with everything that a remedy does."""
    runtime, degrees = job.runtime, job.parallelism
    stages = degrees.pipeline_model_parallel_size
    layers = job.model.num_layers // stages
    recomputed = {None: 0, "selective": 0, "full": runtime.recompute_num_layers or 0}[runtime.recompute_granularity]
    if runtime.recompute_method == "uniform":
        recomputed = layers
    work = job.global_batch_size * (1 + recomputed / layers / 3) * (1 + 0.1 / job.batch.micro_batch_size)
    work *= 1 + 0.05 * (degrees.tensor_model_parallel_size - 1)
    work *= 1 + 0.3 * job.optimizer.offload_fraction
    work *= 1.3 if job.is_fully_sharded else 1
    return work * (1 + (stages - 1) / job.num_micro_batches) / job.world_size


def planned(job: JobSpec) -> tuple[Memory, float]:
    return estimate_memory(job, vocabulary(job).padded_size, "torch"), price(job)


def shipped(name: str, *overrides: str) -> JobSpec:
    return load_job([SHIPPED[name]], overrides).job


def found(job: JobSpec, limit: float) -> list[Remedy]:
    return remedies(job, vocabulary(job).size, "torch", int(limit), planned)


EVERY_LAYER_A_CHUNK = (
    *("parallelism.pipeline_model_parallel_size=2", "parallelism.virtual_pipeline_model_parallel_size=15"),
    *("runtime.recompute_granularity=full", "runtime.recompute_method=uniform", "runtime.recompute_num_layers=1"),
    *("launch.gpus_per_node=4", "batch.micro_batch_size=2"),
)
"""More stages are no way out here: there would be chunks without layers."""

CASES: list[tuple[str, tuple[str, ...], float]] = [
    ("gpt-1.7b", (), 60 * GIB),
    ("gpt-1.7b", (), 22 * GIB),
    ("gpt-7.1b", (), 70 * GIB),
    ("gpt-7.1b", ("launch.gpus_per_node=8",), 60 * GIB),
    ("gpt-7.1b", ("parallelism.tensor_model_parallel_size=1", "parallelism.sequence_parallel=false"), 72 * GIB),
    ("gpt-7.1b", ("launch.nodes=2", "launch.gpus_per_node=8", "parallelism.data_parallel_size=8"), 60 * GIB),
    ("gpt-7.1b", ("parallelism.use_distributed_optimizer=false", "launch.gpus_per_node=8"), 80 * GIB),
    ("gpt-7.1b", ("parallelism.sequence_parallel=false",), 90 * GIB),
    ("gpt-7.1b", EVERY_LAYER_A_CHUNK, 30 * GIB),
]


@pytest.mark.parametrize(("name", "overrides", "limit"), CASES)
def test_remedies_fit_and_are_legal(name: str, overrides: tuple[str, ...], limit: float) -> None:
    job = shipped(name, *overrides)
    assert estimate_memory(job, vocabulary(job).padded_size, "torch").device_bytes > limit
    every = found(job, limit)
    assert every
    for remedy in every:
        changed = shipped(name, *overrides, *remedy.overrides)
        assert changed == remedy.job
        assert changed.global_batch_size == job.global_batch_size
        assert changed.world_size == remedy.gpus
        memory = estimate_memory(changed, vocabulary(changed).padded_size, "torch")
        assert memory.device_bytes <= limit
        assert memory == remedy.memory
        assert remedy.step_seconds == price(changed)
        assert remedy.slower == pytest.approx(price(changed) * changed.world_size / price(job) / job.world_size - 1)
    assert [remedy.cost for remedy in every] == sorted(remedy.cost for remedy in every)


def test_what_leaves_the_training_as_it_is_goes_before_what_costs_about_as_much() -> None:
    every = found(shipped("gpt-1.7b", "launch.gpus_per_node=2", "batch.micro_batch_size=8"), 72 * GIB)
    assert [remedy.rounds for remedy in every] == ["the training rounds otherwise" in remedy.words for remedy in every]
    smaller, rounding = every[1:3]
    assert smaller.overrides == ("batch.micro_batch_size=4",)
    assert "precision.grad_reduce_in_fp32=false" in rounding.overrides
    assert rounding.slower < smaller.slower < rounding.slower + 0.02


def test_nothing_more_than_needed() -> None:
    """Where the optimizer need only be sharded, that is the first remedy, alone."""
    job = shipped("gpt-7.1b", "parallelism.use_distributed_optimizer=false", "launch.gpus_per_node=8")
    first = found(job, 90 * GIB)[0]
    assert first.overrides == ("parallelism.use_distributed_optimizer=true",)
    assert first.slower == 0
    for remedy in found(job, 90 * GIB)[1:]:
        assert "parallelism.use_distributed_optimizer=true" not in remedy.overrides


def test_ranks_that_share_a_sequence_share_the_optimizer_out() -> None:
    changes = ("parallelism.context_parallel_size=8", "parallelism.tensor_model_parallel_size=1")
    whole = shipped("gpt-1.7b", *changes, "parallelism.use_distributed_optimizer=false", "launch.gpus_per_node=8")
    assert whole.data_parallel_size == 1
    assert "the distributed optimizer" in {each.words for each in found(whole, 25 * GIB)}


@pytest.mark.parametrize(
    "written",
    [
        ("runtime.recompute_granularity=selective", "runtime.recompute_modules=[core_attn]"),
        ("runtime.cpu_offloading_num_layers=2", "runtime.layers=transformer_engine"),
    ],
)
def test_layers_are_recomputed_in_place_of_what_a_job_has(written: tuple[str, ...]) -> None:
    job = shipped("gpt-1.7b", *written)
    recomputing = [each for each in found(job, 40 * GIB) if "recomputed" in each.words]
    assert recomputing
    for each in recomputing:
        changed = shipped("gpt-1.7b", *written, *each.overrides)
        assert changed.runtime.recompute_granularity == "full"
        assert (changed.runtime.recompute_modules, changed.runtime.cpu_offloading_num_layers) == (None, None)


def test_buffers_of_tensor_parallelism_can_be_done_without() -> None:
    job = shipped("gpt-7.1b")
    needed = estimate_memory(job, vocabulary(job).padded_size, "transformer_engine").device_bytes

    def with_engine(changed: JobSpec) -> tuple[Memory, float]:
        return estimate_memory(changed, vocabulary(changed).padded_size, "transformer_engine"), price(changed)

    every = remedies(job, vocabulary(job).size, "transformer_engine", needed - 1, with_engine)
    [waits] = [each for each in every if "overlap" in each.words]
    assert waits.overrides == ("parallelism.tp_comm_overlap=false",)
    assert needed - waits.memory.device_bytes > GIB
    assert not any("overlap" in each.words for each in found(job, needed / 2)), "torch's layers have none"


ALL_ON_HOST = "all of the optimizer's state in host memory"


def test_state_can_be_in_host_memory() -> None:
    """A half, and all of what is left; with an optimizer whose state is on the GPU only there is no such way."""
    job = shipped("gpt-1.7b")
    needed = estimate_memory(job, vocabulary(job).padded_size, "torch").device_bytes

    def offloading(*overrides: str) -> list[tuple[str, ...]]:
        every = found(shipped("gpt-1.7b", *overrides), needed - 2 * GIB)
        return [each.overrides for each in every if any("offload" in override for override in each.overrides)]

    assert offloading() == [("optimizer.offload_fraction=0.5",)]
    assert not offloading("parallelism.use_distributed_optimizer=false")
    assert not offloading("optimizer.name=muon")
    [whole] = [each for each in found(job, needed - 14 * GIB) if each.words == ALL_ON_HOST]
    assert whole.overrides == ("optimizer.offload_fraction=1.0",)
    assert whole.memory.host_bytes > 14 * GIB


def test_logits_can_be_done_without() -> None:
    """Of 4 sequences of 4,096 tokens over 131,072 words, 4 GiB, an eighth is left and the table."""
    job = shipped("gpt-1.7b")
    needed = estimate_memory(job, vocabulary(job).padded_size, "torch").device_bytes
    [joined] = [each for each in found(job, needed - 1) if "joined" in each.words]
    assert joined.overrides == ("runtime.fused_linear_cross_entropy=true",)
    assert needed - joined.memory.device_bytes > 3 * GIB
    bert = shipped("bert-345m", "launch.gpus_per_node=8")
    assert not any("joined" in each.words for each in found(bert, 6 * GIB)), "it needs a decoder"
    assert not any("joined" in each.words for each in found(joined.job, 20 * GIB))


def test_the_number_of_micro_batches_keeps_the_global_batch() -> None:
    written: dict[str, Any] = {"batch.global_batch_size": "null", "batch.num_micro_batches": 48}
    job = shipped("gpt-1.7b", *(f"{path}={value}" for path, value in written.items()))
    [halved] = [each for each in found(job, 70 * GIB) if "batch.micro_batch_size=2" in each.overrides]
    assert "batch.num_micro_batches=96" in halved.overrides


def test_a_job_that_cannot_fit_has_no_remedy() -> None:
    assert found(shipped("gpt-7.1b"), 2 * GIB) == []


@pytest.mark.parametrize(("nodes", "gpus", "limit", "widest"), [(2, 4, 24, 4), (1, 2, 14, 8)])
def test_tensor_parallelism_is_not_widened_across_machines(nodes: int, gpus: int, limit: int, widest: int) -> None:
    """Of several machines no more is taken than the job has of each; one is filled before there is another."""
    written = ("parallelism.tensor_model_parallel_size=2", f"launch.nodes={nodes}", f"launch.gpus_per_node={gpus}")
    every = [each.job for each in found(shipped("gpt-7.1b", *written), limit * GIB)]
    wider = [each for each in every if each.parallelism.tensor_model_parallel_size > 2 and each.launch.nodes > 1]
    assert max(each.parallelism.tensor_model_parallel_size for each in wider) == widest
    for each in wider:
        assert each.processes_per_node % each.parallelism.tensor_model_parallel_size == 0


def test_weights_are_sharded_where_they_are_what_does_not_fit() -> None:
    """8 replicas of 7.1B hold 43 GB of weights and gradients each."""
    overrides = ("parallelism.tensor_model_parallel_size=1", "parallelism.sequence_parallel=false")
    job = shipped("gpt-7.1b", *overrides, "launch.gpus_per_node=8", "batch.global_batch_size=32")
    every = found(job, 60 * GIB)
    assert any("parallelism.fsdp=full" in remedy.overrides for remedy in every)
    alone = found(shipped("gpt-7.1b", *overrides, "launch.gpus_per_node=1"), 100 * GIB)
    assert not any("parallelism.fsdp=full" in each.overrides for each in alone)
