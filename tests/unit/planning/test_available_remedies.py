"""What `plan` offers to a job that does not fit, beside what it says of the job that took the offer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.this_machine import Libraries

from orchestrator.planning.forecast import Forecast, forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.suggestions.available_remedies import available_remedies
from orchestrator.planning.suggestions.remedy_search import Remedy
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

JOB = """
name: large
model: {preset: %s}
batch: {micro_batch_size: 1, global_batch_size: 512}
data: {random_tokens: true}
optimizer: {lr: 3e-4}
schedule: {train_iters: 1000}
launch: {nodes: 1, gpus_per_node: 8, gpu: H100}
"""


def job_of(preset: str, changes: Sequence[str]) -> JobSpec:
    return load_text(JOB % preset, "large.yaml", list(changes)).job


def planned(job: JobSpec) -> Forecast:
    return forecast(make_plan(job))


def offered(job: JobSpec) -> list[Remedy]:
    return available_remedies(make_plan(job), planned(job), None)


@pytest.fixture
def engine(libraries: Libraries) -> None:
    """Transformer Engine and FlashAttention 4 are there, as far as a plan looks."""
    libraries.there("transformer_engine")
    libraries.distribution("flash-attn-4", "4.0.0b36", "flash_attn")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("t5-220m", ("batch.micro_batch_size=512", "launch.gpus_per_node=1")),
        ("gpt-345m", ("batch.micro_batch_size=64", "parallelism.use_distributed_optimizer=false")),
        ("gpt-1.7b", ("batch.micro_batch_size=8", "launch.gpus_per_node=2", "model.vocab_size=50257")),
        ("llama3.1-8b", ("launch.gpus_per_node=2", "batch.global_batch_size=16")),
        ("llama3.1-8b", ("model.seq_length=32768",)),
        ("mixtral-8x7b", ("launch.nodes=8",)),
    ],
)
def test_the_plan_says_the_same_once_it_is_applied(preset: str, changes: tuple[str, ...]) -> None:
    """What a run settles by itself is settled anew: graphs, attention, layers, the padded vocabulary."""
    job = job_of(preset, changes)
    before = planned(job).time.step_seconds * job.world_size
    every = offered(job)
    assert every
    for way in every:
        applied = planned(job_of(preset, [*changes, *way.overrides]))
        assert applied.fit == "fits"
        assert applied.memory == way.memory
        assert applied.time.step_seconds == way.step_seconds
        assert way.slower == pytest.approx(applied.time.step_seconds * way.gpus / before - 1)


def set_by(way: Remedy) -> dict[str, str]:
    return {path.rpartition(".")[2]: value for path, _, value in (each.partition("=") for each in way.overrides)}


def test_experts_are_spread_over_the_ranks_that_are_there() -> None:
    """Faster than what the job has, with its gradients; eight stages would be slower."""
    job = job_of("mixtral-8x7b", ("launch.nodes=8", "runtime.layers=transformer_engine"))
    best = next(way for way in offered(job) if not way.rounds)
    assert set_by(best) == {"expert_model_parallel_size": "8", "pipeline_model_parallel_size": "2"}
    assert best.slower < 0
    assert best.gpus == job.world_size
    dense = offered(job_of("llama3.1-8b", ("batch.micro_batch_size=8",)))
    assert dense
    assert not any("expert_model_parallel_size" in set_by(way) for way in dense)


def test_sequences_are_shared_out_over_replicas() -> None:
    job = job_of("llama3.1-8b", ("model.seq_length=32768", "runtime.layers=transformer_engine"))
    best = next(way for way in offered(job) if not way.rounds and not way.memory.host_bytes)
    assert set_by(best) == {"context_parallel_size": "4", "pipeline_model_parallel_size": "2"}
    assert best.gpus == job.world_size
    assert best.job.data_parallel_size == 1


def test_state_on_the_host_is_worth_it_where_steps_are_long() -> None:
    """In steps of minutes fewer stages gain more than an update waits; in short ones it waits for most of the time."""
    long, short = (
        offered(job_of("llama3.1-8b", (f"model.seq_length={length}", "runtime.layers=transformer_engine", *more)))
        for length, more in ((32768, ()), (1024, ("batch.global_batch_size=2", "launch.gpus_per_node=2")))
    )
    best = next(way for way in long if not way.rounds)
    assert best.words == "half of the optimizer's state in host memory, CP 2, TP 2"
    assert best.slower < next(way.slower for way in long if not way.rounds and not way.memory.host_bytes)
    assert min(way.slower for way in short if way.memory.host_bytes) > 1
