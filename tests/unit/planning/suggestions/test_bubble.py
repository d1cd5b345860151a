"""What is said of a pipeline that idles: only what the rules allow, what fits, and what takes less time."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.suggestions.bubble import LARGE_BUBBLE, pipeline_idles
from orchestrator.spec.loading import load_text

LLAMA = """\
name: idles
model: {preset: llama3.1-70b}
parallelism: {tensor_model_parallel_size: 8, sequence_parallel: true, pipeline_model_parallel_size: 8}
batch: {micro_batch_size: 1, global_batch_size: 16}
data: {random_tokens: true}
optimizer: {lr: 1e-4}
schedule: {train_iters: 100}
runtime: {layers: transformer_engine}
launch: {nodes: 8, gpus_per_node: 8, gpu: H100}
"""
T5 = """\
name: idles
model: {preset: t5-220m, vocab_size: 30000}
parallelism: {pipeline_model_parallel_size: 2}
batch: {micro_batch_size: 64, global_batch_size: 512}
data: {random_tokens: true}
optimizer: {lr: 1e-4}
schedule: {train_iters: 100}
runtime: {layers: torch}
launch: {gpus_per_node: 8, gpu: H100}
"""
SMALL = """\
name: idles
model: {preset: gpt-1.7b, vocab_size: 50257}
parallelism: {pipeline_model_parallel_size: 4, data_parallel_size: 2}
batch: {micro_batch_size: 8, num_micro_batches: 4}
data: {random_tokens: true}
optimizer: {lr: 1e-4}
schedule: {train_iters: 100}
runtime: {layers: torch}
launch: {gpus_per_node: 8, gpu: H100}
"""
VP = "parallelism.virtual_pipeline_model_parallel_size"
WITHOUT_GPUS = """\
name: idles
model: {preset: gpt-345m, vocab_size: 50257}
parallelism: {pipeline_model_parallel_size: 8}
batch: {micro_batch_size: 1, global_batch_size: 8}
data: {random_tokens: true}
optimizer: {lr: 1e-4}
schedule: {train_iters: 100}
runtime: {layers: torch, cuda_graphs: false}
launch: {gpu: H100}
"""


def planned(text: str, *overrides: str) -> Plan:
    return make_plan(load_text(text, overrides=list(overrides)).job)


def said(plan: Plan) -> tuple[str, list[list[str]]]:
    """(the hint, the overrides of each way that it offers)."""
    [warning] = pipeline_idles(plan, forecast(plan), None)
    assert warning.hint is not None
    options = [re.findall(r"--set ([^\s:]+)", line) for line in warning.hint.splitlines()[1:]]
    return warning.hint, options


def test_virtual_stages_are_named_with_the_number_that_helps_most() -> None:
    hint, options = said(planned(LLAMA))
    assert options[0] == [f"{VP}=10"]
    as_it_is, best = (forecast(planned(LLAMA, *each)).time.step_seconds for each in ([], options[0]))
    assert best < 0.8 * as_it_is
    assert f"--set {VP}=10: {best:.3g} s a step, 4% of it idle" in hint
    assert said(planned(LLAMA, f"{VP}=2"))[1][0] == [f"{VP}=10"], "two leave the warning"


@pytest.mark.parametrize("text", [LLAMA, T5, SMALL], ids=["llama", "t5", "counted"])
def test_all_that_is_offered_is_legal_fits_and_takes_less_time(text: str) -> None:
    own = planned(text)
    before = forecast(own)
    _, options = said(own)
    assert options
    for overrides in options:
        plan = planned(text, *overrides)
        after = forecast(plan)
        assert after.fit == "fits"
        assert plan.job.world_size == own.job.world_size
        assert after.time.parts["bubble"] / after.time.step_seconds < before.time.parts["bubble"] / (
            before.time.step_seconds
        )
        saved = after.time.step_seconds / plan.job.global_batch_size
        assert saved < before.time.step_seconds / own.job.global_batch_size


def test_gpus_that_only_the_degrees_count_stay() -> None:
    own = planned(WITHOUT_GPUS)
    assert own.job.world_size == 8
    _, options = said(own)
    assert any("parallelism.data_parallel_size=8" in each for each in options)
    assert {planned(WITHOUT_GPUS, *each).job.world_size for each in options} == {8}


def test_a_t5_is_offered_no_virtual_stages_and_one_sample_no_smaller_micro_batch() -> None:
    assert not any(VP in each for _, options in [said(planned(T5))] for way in options for each in way)
    assert "micro_batch_size" not in said(planned(LLAMA))[0]


def test_a_smaller_micro_batch_changes_nothing_else() -> None:
    _, options = said(planned(SMALL))
    [smaller] = [each for each in options if any("micro_batch_size" in words for words in each)]
    assert planned(SMALL, *smaller).job.global_batch_size == planned(SMALL).job.global_batch_size


def test_a_larger_batch_comes_last_and_ends_the_warning() -> None:
    hint, options = said(planned(LLAMA))
    assert options[-1] == ["batch.global_batch_size=64"]
    assert " of 4 times the samples" in hint.splitlines()[-1]
    time = forecast(planned(LLAMA, *options[-1])).time
    assert time.parts["bubble"] / time.step_seconds <= LARGE_BUBBLE


def test_stages_that_would_not_fit_are_not_offered() -> None:
    """One stage of 70B on eight GPUs is the fastest, and has no room."""
    assert not any(way == ["parallelism.pipeline_model_parallel_size=1"] for way in said(planned(LLAMA))[1])
    too_large: Any = planned(LLAMA, "parallelism.sequence_parallel=false")
    assert forecast(too_large).fit == "does not fit"
    assert not any(way == ["parallelism.pipeline_model_parallel_size=1"] for way in said(too_large)[1])


def test_where_nothing_helps_the_search_is_named() -> None:
    nothing_fits = ("parallelism.tensor_model_parallel_size=1", "parallelism.sequence_parallel=false", "launch.nodes=1")
    hint, options = said(planned(LLAMA, *nothing_fits))
    assert hint == "no single change takes less time; `orchestrator tune` searches all layouts"
    assert options == []
