"""Sending run directories to the sqlite store of their runs folder."""

from __future__ import annotations

import json
import math
import shutil
import sqlite3
import sys
from pathlib import Path

import pytest
from support import training
from support.event_log import append_event
from support.faults import Ranks
from support.training import tiny_job

from orchestrator.run_directory.results.record import Measure, Result, result_path, write_result
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import MetricLog
from tests.unit.tracking.conftest import (
    SPEC,
    log_steps,
    losses,
    make_run,
    once,
    only_run,
    sending_is_forked,
    start_once,
    stored_runs,
    write_spec,
)

pytestmark = pytest.mark.usefixtures("forked_sending")


@pytest.mark.slow(reason="one sending, the start of an MLflow process")
def test_inputs_that_are_refused_keep_nothing_else_back(tmp_path: Path, store_in: Path) -> None:
    run = make_run(tmp_path)
    log_steps(run, range(1, 4))
    append_event(run, "exited", launch_id="l1", code=0, cause="completed", iteration=3)
    damaged = {"part": "training", "path": "/corpus", "digest": "00", "weight": "half"}
    run.datasets_file.write_text(json.dumps([damaged]))
    for node in range(2):
        path = run.system_log(node)
        path.parent.mkdir(exist_ok=True)
        measured = {"time": 1e9, "iteration": 2, "host": "n", "values": {"disk_usage_percentage": 50.0 + node}}
        path.write_text(json.dumps(measured) + "\n")
    code, [record] = once(run)
    assert (code, record["state"]) == (1, "failed")
    assert "format code 'g'" in record["message"]
    stored = only_run(store_in)
    assert (stored.status, len(losses(stored))) == ("FINISHED", 3)
    assert stored.metrics["system/disk_usage_percentage"] == [(2, 50.0)]
    assert stored.metrics["system/node-1/disk_usage_percentage"] == [(2, 51.0)]


@pytest.mark.slow(reason="a tiny training, and one sending")
def test_both_counts_of_flops_where_megatrons_is_asked_for(tmp_path: Path, store_in: Path, ranks: Ranks) -> None:
    job = tiny_job("tiny", throughput={"flops": "causal"}, schedule={"train_iters": 3}, tracking={"mlflow": True})
    run = ranks.must_train(training.make_run(tmp_path, job), job, env=sending_is_forked(ranks))
    weights = 2 * (4 * 32 * 32 + 2 * 32 * 128) + 256 * 32
    counts = {"": 6 * (weights + 2 * 32 * 32), "_full": 6 * (weights + 2 * 2 * 32 * 32)}
    rate = training.values(run, "throughput/tokens_per_second")
    written = {name: training.values(run, f"throughput/tflops_per_gpu{name}") for name in counts}
    for name, flops in counts.items():
        assert written[name] == pytest.approx({step: flops * each / 1e12 for step, each in rate.items()}, rel=1e-9)
    log = training.logs(run)
    assert all(f"{value:.3g}" in log for name in counts for value in written[name].values())
    assert once(run)[0] == 0
    stored = only_run(store_in)
    for name in counts:
        assert dict(stored.metrics[f"throughput/tflops_per_gpu{name}"]) == pytest.approx(written[name])


@pytest.mark.slow(reason="three sendings, each the start of an MLflow process")
def test_one_mlflow_run_across_resumes_and_a_lost_store(tmp_path: Path, empty_store: Path) -> None:
    runs_dir = tmp_path / "runs with blanks"
    database = runs_dir / "mlflow.db"
    runs_dir.mkdir()
    shutil.copy(empty_store, database)
    run = make_run(runs_dir, tracking={"tags": {"team": "a/ü b"}, "experiment": "ours"})
    log_steps(run, range(1, 301), lambda step: {7: math.nan, 8: math.inf}.get(step, 3 - step / 1000))
    append_event(run, "checkpoint_saved", iteration=300, seconds=1.0, bytes=42)
    append_event(run, "exited", launch_id="l1", code=1, cause="nan", iteration=300)

    evaluated = Result(
        **{"name": "mnli/dev.tsv", "task": "mnli", "key": "00", "iteration": 300, "checkpoint": "", "options": {}},
        **{"metrics": {"accuracy": Measure(0.75, 0.05)}, "counts": {}, "files": [], "finished": 9.0, "seconds": 1.0},
    )
    write_result(result_path(run.evaluations, 300, evaluated.name, evaluated.key), evaluated)

    code, [record] = once(run)
    assert (code, record["state"], record["metrics"]) == (0, "sent", 300 * 3 + 2)
    first = only_run(database)
    assert (first.name, first.experiment, first.status) == (f"tiny/{run.run_id}", "ours", "FAILED")
    assert first.run_id == record["mlflow_run_id"]
    assert losses(first)[5:9] == [(6, 2.994), (7, None), (8, sys.float_info.max), (9, 2.991)]
    assert first.metrics["progress/tokens"][-1] == (300, 300 * 1024)
    assert first.metrics["evaluation/mnli/dev.tsv/accuracy"] == [(300, 0.75)]
    assert first.metrics["evaluation/mnli/dev.tsv/accuracy_stderr"] == [(300, 0.05)]
    assert {key: first.params[key] for key in ("model.num_layers", "model.tied", "model.preset", "optimizer.lr")} == {
        "model.num_layers": "2",
        "model.tied": "true",
        "model.preset": "null",
        "optimizer.lr": "0.001",
    }
    assert first.params["data.blend"] == '[{"path":"a","weight":1.0}]'
    assert first.params["launch.env.TOKEN"] == "${env:HUB_TOKEN}"
    expected_tags = {
        "team": "a/ü b",
        "orchestrator.run_id": run.run_id,
        "orchestrator.run_dir": str(run.path),
        "orchestrator.state": "failed",
        "orchestrator.exit_cause": "nan",
        "orchestrator.code_commit": "c0ffee+changes",
        "orchestrator.host": "node7",
        "orchestrator.resumes": "0",
        "orchestrator.latest_checkpoint": str(run.checkpoint(300)),
        "mlflow.source.git.commit": "c0ffee",
    }
    assert expected_tags.items() <= first.tags.items()
    for name in ("resolved.json", "job.yaml", "launch.sh", "code.json", "code.diff"):
        assert (first.artifacts / name).read_bytes() == (run.path / name).read_bytes()
    [checkpoint] = json.loads((first.artifacts / "checkpoints.json").read_text())
    assert (checkpoint["iteration"], checkpoint["path"]) == (300, str(run.checkpoint(300)))
    assert first.artifacts.is_relative_to(runs_dir / "mlartifacts")

    # A resume with another learning rate goes on in the same MLflow run, though the cursor was lost: it is found by
    # its tags, and what is sent again changes nothing.
    (run.path / "mlflow.json").unlink()
    spec = {**SPEC, "optimizer": {"lr": 0.5}, "tracking": {"tags": {"team": "a/ü b"}, "experiment": "ours"}}
    write_spec(run, spec)
    append_event(run, "started", launch_id="l2", token=2, iteration=300)
    append_event(run, "resumed", iteration=300, checkpoint=str(run.checkpoint(300)))
    log_steps(run, range(301, 311))
    append_event(run, "finished", iteration=310)
    code, [record] = once(run)
    assert (code, record["metrics"]) == (0, 310 * 3 + 2)
    resumed = only_run(database)
    assert (resumed.run_id, resumed.status) == (first.run_id, "FINISHED")
    assert losses(resumed) == [*losses(first), *((step, 3 - step / 1000) for step in range(301, 311))]
    assert resumed.params == first.params
    assert resumed.tags["orchestrator.changed.optimizer.lr"] == "0.5"
    assert "orchestrator.changed.model.num_layers" not in resumed.tags
    assert resumed.tags["orchestrator.resumes"] == "1"
    artifacts = {path.name for path in resumed.artifacts.iterdir()}
    assert "resolved.2.json" in artifacts

    # The store's content is lost: the next sending fills it from the run directory alone.
    shutil.copy(empty_store, database)
    shutil.rmtree(runs_dir / "mlartifacts")
    assert once(run)[0] == 0
    rebuilt = only_run(database)
    assert rebuilt.run_id != resumed.run_id
    assert (rebuilt.metrics, rebuilt.params, rebuilt.tags) == (resumed.metrics, resumed.params, resumed.tags)
    assert {path.name for path in rebuilt.artifacts.iterdir()} == artifacts
    assert not list(runs_dir.glob(".mlflow*"))


@pytest.mark.slow(reason="several processes make the dozens of tables of a store at once")
def test_several_processes_share_a_store_that_none_of_them_found(tmp_path: Path) -> None:
    runs = [make_run(tmp_path, f"0000000{number}") for number in range(2)]
    for run in runs:
        log_steps(run, range(1, 400))
    # Two of them send the same run at once: it must still become one.
    processes = [start_once(run) for run in [*runs, runs[0]]]
    outputs = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], outputs
    stored = stored_runs(tmp_path / "mlflow.db")
    assert sorted(each.name for each in stored) == [f"tiny/{run.run_id}" for run in runs]
    for each in stored:
        assert losses(each) == [(step, 3 - step / 1000) for step in range(1, 400)]
        assert each.experiment == "tiny"


def test_a_moved_run_goes_on_and_a_copied_one_is_another(tmp_path: Path, empty_store: Path) -> None:
    shared = tmp_path / "shared.db"
    shutil.copy(empty_store, shared)
    run = make_run(tmp_path / "runs", tracking={"uri": f"sqlite:///{shared}"})
    log_steps(run, range(1, 4))
    assert once(run)[0] == 0
    first = only_run(shared)

    moved = RunDir(tmp_path / "archive" / "tiny" / run.run_id)
    shutil.move(run.path, moved.path)
    copy = RunDir(tmp_path / "copies" / "tiny" / run.run_id)
    shutil.copytree(moved.path, copy.path)
    log_steps(moved, range(4, 6))
    code, records = once(moved, copy)
    assert code == 0
    assert [record["mlflow_run_id"] == first.run_id for record in records] == [True, False]
    stored = {each.run_id: each for each in stored_runs(shared)}
    assert [len(losses(stored[record["mlflow_run_id"]])) for record in records] == [5, 3]
    assert stored[first.run_id].tags["orchestrator.run_dir"] == str(moved.path)


def test_each_run_is_sent_or_it_is_said_why_not(tmp_path: Path, store_in: Path) -> None:
    deleted, broken = (make_run(tmp_path, f"0000000{n}") for n in range(2))
    off = make_run(tmp_path, "00000002", tracking={"mlflow": False})
    fine = make_run(tmp_path, "00000003")
    tracking = {"tags": {"../a:b": "x" * 9000}, "experiment": "it's / ours"}
    variables = {f"VARIABLE_{n}": "1" for n in range(250)}
    write_spec(fine, {**SPEC, "tracking": tracking, "notes": "n" * 7000, "env": variables})
    values = {"../up": 1.0, "/abs//olute/": 2.0, "validation/c++ & wiki/loss": 3.0, "": 4.0, "k" * 400: 5.0}
    MetricLog(fine, lambda: None).append(1, 8, 1024, {**values, **{f"source-{n}": 1.0 for n in range(2500)}})
    assert once(deleted)[0] == 0
    with sqlite3.connect(store_in) as connection:
        connection.execute("update runs set lifecycle_stage = 'deleted'")
    connection.close()
    broken.resolved().write_text("{")
    gone = RunDir(tmp_path / "none" / "gone" / "00000009")

    code, records = once(deleted, broken, off, gone, fine)
    assert code == 1
    assert [record["state"] for record in records] == ["failed", "failed", "off", "failed", "sent"]
    assert "was deleted there; restore" in records[0]["message"]
    assert records[1]["message"] == f"{broken.resolved()} cannot be read as a resolved spec"
    assert "No such file" in records[3]["message"]

    # Names and lengths that MLflow would refuse are made such that it takes them.
    _, stored = stored_runs(store_in)
    assert (stored.name, stored.experiment) == (f"tiny/{fine.run_id}", "it's / ours")
    assert len(stored.metrics) == len(values) + 2500
    assert stored.metrics["validation/c__ _ wiki/loss"] == [(1, 3.0)]
    assert stored.params["notes"] == "n" * 5999 + "…"
    assert stored.params["env.VARIABLE_249"] == "1"
    assert stored.tags["_/a_b"] == "x" * 7999 + "…"
