"""What is offered to a job that waits for its host is what the plan of the changed job says."""

from __future__ import annotations

import re

import pytest
from support.this_machine import Libraries

from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.suggestions.host_bound import ways_to_fill
from orchestrator.planning.suggestions.trial import tried
from orchestrator.spec.loading import load_text

WAITING = """\
name: waits
model: {preset: qwen3-0.6b, seq_length: 512, vocab_size: 151936}
batch: {micro_batch_size: 1, global_batch_size: 8}
data: {random_tokens: true}
optimizer: {lr: 1e-4}
schedule: {train_iters: 100}
runtime: {layers: transformer_engine, cuda_graphs: false}
launch: {gpus_per_node: 8, gpu: H100}
"""
COUNTED = ("batch.global_batch_size=null", "batch.num_micro_batches=1", "parallelism.data_parallel_size=8")


def planned(*overrides: str) -> Plan:
    return make_plan(load_text(WAITING, overrides=list(overrides)).job)


def ways(*overrides: str) -> list[tuple[str, list[str]]]:
    """(the sentence, the overrides in it) of each."""
    plan = planned(*overrides)
    return [(each, re.findall(r"--set (\S+)", each)) for each in ways_to_fill(plan, forecast(plan))]


def seconds(*overrides: str) -> float:
    return forecast(planned(*overrides)).time.step_seconds


def test_neither_a_larger_batch_nor_fewer_gpus_alone_take_as_long() -> None:
    """Both are one micro-batch more, which the host has to start."""
    assert seconds("batch.global_batch_size=16") > 1.8 * seconds()
    assert seconds("launch.gpus_per_node=4") > 1.8 * seconds()


@pytest.mark.parametrize("written", [(), COUNTED], ids=["global batch", "micro-batches"])
def test_with_one_micro_batch_a_larger_batch_or_fewer_gpus_go_with_a_larger_one(written: tuple[str, ...]) -> None:
    (larger, of_batch), (fewer, of_gpus) = ways(*written)
    assert larger.startswith("a step of 8 times the samples takes as long with --set ")
    assert fewer.startswith("this one takes as long on 1 GPU with --set launch.gpus_per_node=1 ")
    for options in (of_batch, of_gpus):
        assert "batch.micro_batch_size=8" in options
        assert seconds(*written, *options) <= 1.05 * seconds(*written)
    assert planned(*written, *of_batch).job.global_batch_size == 64
    assert planned(*written, *of_gpus).job.global_batch_size == 8


@pytest.mark.parametrize(
    ("two", "asked"),
    [
        (("launch.nodes=2", "batch.global_batch_size=16"), {"launch.nodes=1", "launch.gpus_per_node=2"}),
        (
            ("parallelism.tensor_model_parallel_size=8", "launch.nodes=2", "batch.global_batch_size=2"),
            {"launch.nodes=1"},
        ),
    ],
    ids=["replicas", "one replica on each"],
)
def test_machines_are_given_up_before_a_part_of_each(two: tuple[str, ...], asked: set[str]) -> None:
    """A part of each would have tensor parallelism span machines."""
    [fewer] = [options for said, options in ways(*two) if said.startswith("this one takes as long on ")]
    assert {each for each in fewer if each.startswith("launch.")} == asked
    assert seconds(*two, *fewer) <= 1.05 * seconds(*two)


def test_what_is_tried_has_the_layers_that_its_own_plan_has(libraries: Libraries) -> None:
    """The host holds Transformer Engine's up for the job as it is, and not with larger micro-batches."""
    libraries.there("transformer_engine")
    degrees = "{pipeline_model_parallel_size: 4, tensor_model_parallel_size: 2, sequence_parallel: true}"
    model = "{preset: gpt-1.7b, seq_length: 2048, vocab_size: 151936}"
    own = (f"model={model}", "runtime={layers: auto}", f"parallelism={degrees}")
    plan, larger = planned(*own), planned(*own, "batch.micro_batch_size=2")
    assert (forecast(plan).layers, forecast(larger).layers) == ("torch", "transformer_engine")
    trial = tried(plan, forecast(plan), {"batch.micro_batch_size": 2})
    assert trial is not None
    assert trial.time == forecast(larger).time


def test_with_several_a_larger_one_takes_less_time_for_the_same_batch() -> None:
    [(said, options)] = ways("batch.global_batch_size=32")
    assert options == ["batch.micro_batch_size=4"]
    saved = 1 - seconds("batch.global_batch_size=32", *options) / seconds("batch.global_batch_size=32")
    assert said.startswith(f"a step takes {saved:.0%} less with ")
    assert saved > 0.5


@pytest.mark.parametrize(
    "counted",
    [(), ("batch.global_batch_size=null", "batch.num_micro_batches=8", "parallelism.data_parallel_size=2")],
    ids=["global batch", "micro-batches"],
)
def test_a_sequence_too_short_to_be_shared_is_not(counted: tuple[str, ...]) -> None:
    own = ("parallelism.context_parallel_size=4", "batch.global_batch_size=16", *counted)
    [(_, options)] = ways(*own)
    changed = planned(*own, *options).job
    assert changed.parallelism.context_parallel_size == 1
    assert changed.global_batch_size == planned(*own).job.global_batch_size
    assert seconds(*own, *options) < 0.5 * seconds(*own)


def test_nothing_is_offered_where_nothing_takes_as_long() -> None:
    assert ways("batch.global_batch_size=64", "batch.micro_batch_size=8", "model.seq_length=2048") == []


def test_what_would_not_fit_is_not_offered() -> None:
    """Eight GPUs share out the optimizer's state of 8B; one has no room for it."""
    large = ("model.preset=llama3.1-8b", "model.vocab_size=128256", "model.seq_length=128")
    assert not any("launch.gpus_per_node=1" in options for _, options in ways(*large))
