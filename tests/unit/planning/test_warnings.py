"""What a job takes, and what is said about it before it starts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from support.this_machine import Gpus

from orchestrator.api.plan_rows import forecast_rows
from orchestrator.data.source_survey import data_problems
from orchestrator.planning.forecast import Forecast, forecast
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.warnings import Verdict, judge, too_large
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

LARGE = {
    "num_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "seq_length": 4096,
    "vocab_size": 128_000,
}
H100 = {"gpu": "H100"}

Judge = Callable[..., Verdict]


@pytest.fixture
def verdict(make_job: Any) -> Judge:
    def of(cluster: ClusterSpec | None = None, **sections: Any) -> Verdict:
        plan = make_plan(make_job(**sections))
        return judge(plan, forecast(plan, cluster), cluster)

    return of


def codes(verdict: Verdict) -> set[str | None]:
    return {each.code for each in verdict.warnings}


def messages(verdict: Verdict) -> str:
    return "\n".join(each.message for each in (*verdict.stops, *verdict.warnings))


def test_a_job_that_is_fine(verdict: Judge) -> None:
    said = verdict(launch=H100)
    assert (said.stops, said.warnings) == ((), ())
    assert any(text.startswith("memory fits: a rank takes") for text in said.fine)


def test_what_stops_a_job_is_no_warning_however_it_is_worded(make_job: Any) -> None:
    plan = make_plan(make_job(launch=H100, data={"random_tokens": False, "blend": ["nowhere"]}))
    stops = data_problems(plan.job.data, list(plan.data_sets), needed=True)
    assert codes(judge(plan, forecast(plan), None)) == {"data"}
    said = judge(plan, forecast(plan), None, [replace(each, message="not there") for each in stops])
    assert (len(said.stops), said.warnings) == (1, ())


def test_text_without_a_tokenizer_is_bytes(verdict: Judge) -> None:
    data = {"random_tokens": False, "blend": [{"path": "nowhere"}]}
    fine = verdict(launch=H100, data=data, model={"vocab_size": 50257}).fine
    assert "text is read as bytes, without a tokenizer: 261 tokens" in fine


def test_what_does_not_fit_stops_the_job_and_the_ways_out_fit(verdict: Judge, make_job: Any) -> None:
    sections: dict[str, Any] = {"model": LARGE, "launch": H100}
    [stop] = verdict(**sections).stops
    assert stop.code == "out_of_memory"
    assert "GiB of the 79.2 GiB of one H100" in stop.message
    assert stop.hint is not None
    first, *ways = stop.hint.splitlines()
    assert first == "what makes it fit, the cheapest first:"
    overrides = [line.split("--set ")[1:] for line in ways if "--set" in line]
    assert overrides
    for words in overrides:
        job = make_job(**sections)
        changed = load_text(
            json.dumps(job.model_dump(mode="json", exclude_unset=True)), "job", [word.strip() for word in words]
        ).job
        plan = make_plan(changed)
        assert forecast(plan).fit == "fits"
        assert changed.global_batch_size == job.global_batch_size


def test_a_gpu_that_is_only_assumed_stops_nothing(verdict: Judge, make_job: Any) -> None:
    said = verdict(model=LARGE)
    assert said.stops == ()
    assert codes(said) >= {"gpu_memory", "gpu_assumed"}
    assert forecast(make_plan(make_job(model=LARGE))).fit == "does not fit"
    assert too_large(forecast(make_plan(make_job(model=LARGE)))) == []
    assert too_large(forecast(make_plan(make_job(model=LARGE, launch=H100)))) != []


@pytest.mark.parametrize(
    ("device", "count", "said"),
    [
        ("auto", 0, "assumed; this machine has none, and `run` trains on its CPU here"),
        ("cuda", 0, "assumed; this machine has none, and `run` is refused here"),
        ("auto", 2, "H100 is assumed"),
        ("auto", None, "H100 is assumed"),
    ],
)
def test_a_machine_without_a_gpu_is_told_apart(
    device: str, count: int | None, said: str, verdict: Judge, gpus: Gpus
) -> None:
    if count is None:
        gpus.cannot_be_counted()
    else:
        gpus.are(["a GPU without a datasheet"] * count)
    assert messages(verdict(runtime={"device": device})).endswith(said)
    assert "this machine" not in messages(verdict(ClusterSpec(name="alps"), runtime={"device": device}))


def test_the_profile_says_which_gpu(verdict: Judge) -> None:
    said = verdict(ClusterSpec(name="alps", gpu="A100-40GB"), model=LARGE)
    assert "of one A100-40GB" in messages(said)


def ways_out(verdict: Verdict) -> str:
    [stop] = verdict.stops
    return stop.hint or ""


def test_ways_out_that_the_cluster_cannot_give_are_none(verdict: Judge) -> None:
    """A job of one GPU that needs several: the partition decides how many."""
    sections: dict[str, Any] = {"model": {**LARGE, "num_layers": 64}, "launch": {**H100, "gpus_per_node": 1}}
    partitions = {gpus: {"gpu": {"nodes": 1, "gpus_per_node": gpus}} for gpus in (1, 8)}
    assert "on 4 GPUs" in ways_out(verdict(**sections))
    wide, narrow = (
        ways_out(verdict(ClusterSpec.model_validate({"name": "alps", "partitions": partitions[gpus]}), **sections))
        for gpus in (8, 1)
    )
    assert "on 4 GPUs" in wide
    assert narrow == "no small change makes it fit; `orchestrator tune` searches all layouts"


def test_what_is_refused_is_not_fine(verdict: Judge) -> None:
    small = ClusterSpec.model_validate({"name": "alps", "partitions": {"gpu": {"nodes": 2, "gpus_per_node": 4}}})
    fits, refused = (
        verdict(small, launch={**H100, "nodes": nodes, "gpus_per_node": 4}, batch={"global_batch_size": 32}).fine
        for nodes in (2, 4)
    )
    assert "alps can give 2 nodes with 4 GPUs on each" in fits
    assert not any("alps can give" in text for text in refused)


def test_arithmetic_that_a_gpu_has_not(verdict: Judge) -> None:
    volta = {"gpu": "V100"}
    assert "dtype" in codes(verdict(launch=volta))
    assert "dtype" not in codes(verdict(launch=volta, precision={"dtype": "fp16"}))


def test_between_fitting_and_not(make_job: Any, verdict: Judge) -> None:
    """A job whose memory is within the error of the estimate draws a warning and is not refused."""
    planned = (
        taken_by(make_job(model={**LARGE, "num_layers": layers}, launch=H100, batch={"micro_batch_size": 1}))
        for layers in range(1, 33)
    )
    plan, taken = next(each for each in planned if each[1].fit == "tight")
    said = judge(plan, taken, None)
    assert said.stops == ()
    assert "gpu_memory" in codes(said)


@pytest.mark.parametrize(
    ("expected", "sections"),
    [
        ("tensor_parallel_across_nodes", {"parallelism": {"tensor_model_parallel_size": 4}, "launch": {"nodes": 2}}),
        (
            "pipeline_bubble",
            {"parallelism": {"pipeline_model_parallel_size": 4}, "model": LARGE, "batch": {"micro_batch_size": 2}},
        ),
        (
            "work_at_risk",
            {"model": {**LARGE, "num_layers": 4}, "schedule": {"train_iters": 100_000}},
        ),
        ("checkpoint_room", {"model": {**LARGE, "num_layers": 2000, "hidden_size": 16384}}),
        (
            "communication",
            {
                "parallelism": {"tensor_model_parallel_size": 8},
                "model": {**LARGE, "hidden_size": 512, "vocab_size": 300},
                "batch": {"micro_batch_size": 32, "global_batch_size": 32},
            },
        ),
        (
            "host_copies",
            {
                "model": {**LARGE, "hidden_size": 1024, "num_layers": 4},
                "runtime": {"layers": "transformer_engine", "cpu_offloading_num_layers": 3},
            },
        ),
        ("host_copies", {"model": {**LARGE, "num_layers": 4}, "optimizer": {"offload_fraction": 1.0}}),
    ],
)
def test_what_draws_a_warning(verdict: Judge, expected: str, sections: dict[str, Any]) -> None:
    sections = {**sections, "launch": {**H100, **sections.get("launch", {})}}
    assert expected in codes(verdict(**sections))


@pytest.mark.parametrize(
    ("count", "written", "is_warned"),
    [(1, {}, True), (1, {"A": "1"}, True), (1, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"}, False), (None, {}, False)],
)
def test_a_cluster_that_has_gpus_take_all_work_through_one_queue(
    count: int | None, written: dict[str, str], is_warned: bool, verdict: Judge
) -> None:
    cluster = ClusterSpec(name="alps", env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"})
    runtime = {"layers": "transformer_engine", "cpu_offloading_num_layers": count}
    said = messages(verdict(cluster, runtime=runtime, launch={**H100, "env": written}))
    assert ("alps sets CUDA_DEVICE_MAX_CONNECTIONS: 1" in said) is is_warned


def test_a_crash_loses_less_with_checkpoints(verdict: Judge) -> None:
    sections: dict[str, Any] = {"model": {**LARGE, "num_layers": 4}, "schedule": {"train_iters": 100_000}}
    for saving in ({"save_interval": 500}, {"save_seconds": 3600}):
        assert "work_at_risk" not in codes(verdict(**sections, checkpoint=saving, launch=H100))


def test_an_interval_that_a_short_try_never_reaches_is_no_warning(verdict: Judge) -> None:
    """A checkpoint is saved at the end whatever the interval; before a long one has ended, it may be missed."""
    sections: dict[str, Any] = {"model": {**LARGE, "num_layers": 4}, "checkpoint": {"save_interval": 200_000}}
    assert "saved_at_the_end_only" in codes(verdict(**sections, schedule={"train_iters": 100_000}, launch=H100))
    assert "saved_at_the_end_only" not in codes(verdict(**sections, schedule={"train_iters": 10}, launch=H100))


def test_a_folder_that_may_not_be_looked_into(verdict: Judge) -> None:
    long = "x" * 300  # no file system has such a name: asking for it is an error, as it is in a closed folder
    assert verdict(launch={**H100, "runs_dir": f"runs/{long}"}).stops == ()


def test_too_few_starts(verdict: Judge) -> None:
    sections: dict[str, Any] = {"model": {**LARGE, "num_layers": 4}, "schedule": {"train_iters": 1_000_000}}
    launch = {"time": 3600, "max_requeues": 3, "cluster": "alps", **H100}
    assert "time_limit" in codes(verdict(ClusterSpec(name="alps"), **sections, launch=launch))


def taken_by(job: JobSpec) -> tuple[Plan, Forecast]:
    plan = make_plan(job)
    return plan, forecast(plan)


def test_weights_that_are_not_here(verdict: Judge) -> None:
    [warning] = verdict(launch=H100, checkpoint={"pretrained": "nowhere"}).warnings
    assert (warning.code, warning.paths) == ("no_weights", ("checkpoint.pretrained",))


def test_the_time_of_a_training(make_job: Any) -> None:
    base: dict[str, Any] = {"model": LARGE, "launch": H100}
    plan, taken = taken_by(make_job(**base))
    assert taken.training_seconds == pytest.approx(100 * taken.time.step_seconds)
    assert taken.gpu_hours == pytest.approx(taken.training_seconds / 3600)
    assert taken.energy_kwh == pytest.approx(taken.gpu_hours * 0.7)
    assert taken.memory == estimate_memory(plan.job, plan.vocabulary.padded_size, taken.layers)

    _, evaluated = taken_by(make_job(**base, evaluation={"eval_interval": 10, "eval_iters": 3}))
    assert evaluated.training_seconds == pytest.approx((100 + 10 * 3 / 3) * taken.time.step_seconds)

    ramp = {"start_global_batch_size": 4, "increment": 4, "samples": 400}
    plan, ramped = taken_by(make_job(**base, batch={"rampup_batch_size": ramp}))
    half, whole = plan.batch.stages
    assert (half.num_micro_batches, whole.num_micro_batches, whole.first_iteration) == (2, 4, 100)
    assert ramped.training_seconds == pytest.approx(50 * taken.time.step_seconds)


def test_the_size_of_a_checkpoint(make_job: Any) -> None:
    """24.4 GB for the 1.7B row, as measured on a GPU (docs/benchmarks)."""
    shape = {"num_layers": 24, "hidden_size": 2048, "num_attention_heads": 16, "seq_length": 4096}
    model = {**shape, "vocab_size": 131_072, "untie_embeddings_and_output_weights": True, "add_bias_linear": False}
    _, taken = taken_by(make_job(model=model, launch=H100))
    assert taken.checkpoint_bytes == pytest.approx(24.4e9, rel=0.01)
    plan, adapted = taken_by(make_job(model={**model, "lora": {"rank": 8}}, launch=H100))
    adapters = plan.parameters.total - taken.checkpoint_bytes / 14
    assert adapted.checkpoint_bytes == 2 * plan.parameters.total + 12 * adapters, "only they have an optimizer"


OFFLOADED: dict[str, Any] = {"model": {**LARGE, "num_layers": 8}, "optimizer": {"offload_fraction": 1.0}}
"""2.0e9 parameters on a GPU, of which the host has 12 bytes each."""


@pytest.mark.parametrize(
    ("sections", "profile", "refused"),
    [
        ({}, None, False),
        ({}, {}, False),
        ({}, {"memory_per_node": "0"}, False),
        ({}, {"memory_per_node": "40G"}, True),
        ({}, {"memory_per_node": "60G"}, False),
        ({"launch": {**H100, "memory_per_node": "60G"}}, {"memory_per_node": "40G"}, False),
        ({}, {"partitions": {"gpu": {"memory_per_node": 40 * 1024}}}, True),
        ({}, {"memory_per_node": "0", "partitions": {"gpu": {"memory_per_node": 40 * 1024}}}, True),
        ({"optimizer": {"offload_fraction": 0.7}}, {"memory_per_node": "40G"}, False),
        (
            {"launch": {**H100, "gpus_per_node": 2}, "parallelism": {"tensor_model_parallel_size": 2}},
            {"memory_per_node": "40G"},
            True,
        ),
        ({"launch": {**H100, "nodes": 2, "gpus_per_node": 1}}, {"memory_per_node": "40G"}, False),
    ],
)
def test_state_on_the_host_has_to_fit_there(
    sections: dict[str, Any], profile: dict[str, Any] | None, refused: bool, verdict: Judge
) -> None:
    """Twice: a checkpoint is written from a copy of it."""
    cluster = None if profile is None else ClusterSpec.model_validate({"name": "alps", **profile})
    found = verdict(cluster, **{**OFFLOADED, "launch": H100, **sections})
    assert ("out_of_host_memory" in {each.code for each in found.stops}) == refused


def test_a_plan_says_what_a_rank_has_in_host_memory(make_job: Any) -> None:
    there, plain = (
        forecast(make_plan(make_job(**{**OFFLOADED, "launch": H100, "optimizer": {"offload_fraction": fraction}})))
        for fraction in (1.0, 0.0)
    )
    assert there.to_dict()["memory"]["host_bytes"] == there.memory.host_bytes > 20 * 2**30
    assert "host_bytes" not in plain.to_dict()["memory"]
    rows = [dict(forecast_rows(make_plan(each.job), each))["memory"] for each in (there, plain)]
    assert [row.endswith("of optimizer state in host memory") for row in rows] == [True, False]
