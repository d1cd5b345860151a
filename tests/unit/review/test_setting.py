"""What a run is held against: its plan, its specs, and the runs around it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.event_log import append_event
from support.refusals import before
from support.refused import refused
from support.training import four_layer_job

from orchestrator.launch.runs import add_generation, create_run
from orchestrator.review.charts.plan_vs_actual import planned_of, references_of, rows_of, timeline_of
from orchestrator.review.charts.series import Series
from orchestrator.review.overview import overview_of, parts_of_time
from orchestrator.review.specs import differences, fields_of, generations_of
from orchestrator.review.summary import summarize
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.tracking.measurements.goodput import Goodput
from orchestrator.tracking.measurements.metrics import Metric


def created(job: JobSpec, folder: Path) -> RunDir:
    return create_run(job, dump_resolved(job), folder)


def test_a_plan_is_of_the_gpu_that_a_run_started_on(tmp_path: Path) -> None:
    run = created(four_layer_job("planned", precision={"dtype": "bf16"}), tmp_path)
    assert planned_of(run).is_assumed
    assert references_of("loss", run) == []
    append_event(run, "started", device="NVIDIA H200", layers="torch", parameters=7)
    planned = planned_of(run)
    assert (planned.forecast.device.name, planned.is_assumed, planned.forecast.layers) == ("H200", False, "torch")
    [plan, device] = references_of("memory", run)
    assert (plan.text, device.text) == ("plan", "H200")
    assert plan.value == planned.forecast.memory.peak_bytes
    series = Series()
    series.add(Metric(0.0, step, 0, 0, {"throughput/step_seconds": 0.5}) for step in range(1, 4))
    undone = {"throughput/step_seconds": 9.0, "memory/peak_bytes": 9.0}
    series.add(Metric(0.0, step, 0, 0, undone) for step in range(4, 20))
    series.add([Metric(0.0, 3, 0, 0, {"throughput/step_seconds": 0.5})])
    rows = {row.name: row for row in rows_of(planned, series, run.events())}
    assert rows["seconds per step"].measured == 0.5
    assert rows["all steps"].measured == 10.0
    assert rows["peak memory of a rank"].measured is None, "of steps that a resume has undone"
    assert rows["parameters of rank 0"].measured == 7
    assert rows["MFU"].ratio is None
    assert "TFLOP/s per GPU" in rows
    assert timeline_of(planned) is not None


@pytest.mark.parametrize(
    ("said", "is_captured"), [({"cuda_graphs": True}, True), ({"cuda_graphs": False}, False), ({}, False)]
)
def test_a_plan_is_of_graphs_where_a_run_has_them(said: dict[str, bool], is_captured: bool, tmp_path: Path) -> None:
    """So small a model would have them; older versions had none and did not say so."""
    run = created(four_layer_job("planned", precision={"dtype": "bf16"}), tmp_path)
    assert planned_of(run).forecast.cuda_graphs
    append_event(run, "started", device="NVIDIA H200", layers="torch", **said)
    assert planned_of(run).forecast.cuda_graphs == is_captured


def test_on_a_cpu_no_nominal_figure_is_drawn(tmp_path: Path) -> None:
    run = created(four_layer_job("planned"), tmp_path)
    append_event(run, "started", device="cpu", layers="torch")
    planned = planned_of(run)
    assert planned.forecast.device.is_cpu
    names = [row.name for row in rows_of(planned, Series(), run.events())]
    assert [name for name in names if "TFLOP/s" in name] == ["TFLOP/s per process"]
    assert references_of("speed", run) == []


def test_what_a_resume_changed_and_what_it_means(tmp_path: Path) -> None:
    run = created(four_layer_job("changed"), tmp_path)
    changed = four_layer_job("changed", optimizer={"lr": 5e-4})
    add_generation(run, changed, "optimizer: {lr: 5e-4}\n")
    first, second = generations_of(run)
    assert (first.number, second.number) == (1, 2)
    assert second.written.read_text() == "optimizer: {lr: 5e-4}\n"
    [change] = differences(first.resolved, second.resolved)
    assert (change.path, change.old, change.new, change.kind) == ("optimizer.lr", "0.001", "0.0005", "trajectory")
    assert fields_of(second.resolved)["optimizer.lr"] == "0.0005"
    second.resolved.write_text('{"name": 3, "optimizer": {"lr": 1}}')
    found = {each.path: each for each in differences(first.resolved, second.resolved)}
    assert (found["optimizer.lr"].new, found["optimizer.lr"].kind) == ("1", "unknown")
    second.resolved.write_text("{")
    with refused("unreadable_stored_spec"):
        differences(first.resolved, second.resolved)


def test_the_events_of_other_runs_are_not_read_for_the_head_of_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = created(four_layer_job("parent"), tmp_path)
    child = created(four_layer_job("child", checkpoint={"pretrained": parent.run_id[:4]}), tmp_path)
    append_event(child, "pretrained", from_run=f"parent/{parent.run_id}", from_iteration=4, checkpoint="x")
    summaries = summarize([parent, child])
    read: list[RunDir] = []
    before(monkeypatch, "orchestrator.run_directory.rundir.RunDir.events", read.append)
    [found] = overview_of(summaries[0], summaries).children
    assert found.text == f"child/{child.run_id}, from iteration 4"
    assert {run.path for run in read} == {parent.path}


def test_a_run_knows_its_parent_and_its_children(tmp_path: Path) -> None:
    parent = created(four_layer_job("first"), tmp_path)
    child = created(four_layer_job("tuned", checkpoint={"pretrained": f"first/{parent.run_id}"}), tmp_path)
    other = created(four_layer_job("other", checkpoint={"pretrained": "/elsewhere"}), tmp_path)
    key = f"first/{parent.run_id}"
    append_event(child, "pretrained", checkpoint="x", from_iteration=20, from_run=key)
    summaries = summarize([parent, child, other])
    assert [each.text for each in overview_of(summaries[0], summaries).children] == [
        f"tuned/{child.run_id}, from iteration 20"
    ]
    found = overview_of(summaries[1], summaries).parent
    assert found is not None
    assert (found.text, found.name, found.run_id) == (f"{key}, iteration 20", "first", parent.run_id)
    found = overview_of(summaries[2], summaries).parent
    assert found is not None
    assert (found.text, found.name) == ("/elsewhere", None)


def test_parts_of_the_time_add_up() -> None:
    goodput = Goodput(
        launches=2,
        productive_seconds=50,
        lost_seconds=5,
        overhead_seconds=15,
        startup_seconds=20,
        queue_seconds=110,
        first_queue_seconds=100,
        wall_seconds=200,
    )
    parts = parts_of_time(goodput)
    assert parts[0] == ("steps that count", 50, 0.5)
    assert [name for name, _, _ in parts[1:3]] == ["starting", "saving, evaluating, waiting"]
    assert sum(share for _, _, share in parts) == pytest.approx(1)
    assert parts_of_time(Goodput()) == []


@pytest.mark.parametrize(
    ("said", "is_flash"),
    [({"attention_backend": "flash"}, True), ({"attention_backend": "fused"}, False), ({}, False)],
    ids=["flash", "fused", "nothing"],
)
def test_a_plan_is_of_the_attention_that_a_run_started_with(
    said: dict[str, str], is_flash: bool, tmp_path: Path
) -> None:
    run = created(four_layer_job("run", model={"hidden_size": 256, "num_attention_heads": 4}), tmp_path)
    append_event(run, "started", device="NVIDIA H200", layers="torch", **said)
    assert planned_of(run).forecast.flash_attention == is_flash


def test_a_plan_is_without_buffers_that_a_run_did_not_get(tmp_path: Path) -> None:
    parallelism = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
    model = {"hidden_size": 256, "num_attention_heads": 4, "add_bias_linear": False}
    needed = []
    for number, overlaps in enumerate((True, False)):
        job = four_layer_job("run", model=model, parallelism=parallelism, precision={"dtype": "bf16"})
        run = created(job, tmp_path / str(number))
        append_event(run, "started", device="NVIDIA H200", layers="transformer_engine", tp_comm_overlap=overlaps)
        needed.append(planned_of(run).forecast.memory.device_bytes)
    assert needed[1] < needed[0]
