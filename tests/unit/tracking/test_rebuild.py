"""A lost MLflow store is filled again from the run directories of real trainings, and says the same."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from support.commands import Commands
from support.faults import Ranks, wait_until
from support.held import HOLD, hold_at
from support.rank_processes import Started
from support.training import layout, logs, tiny_job

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.loading import load_sweep
from orchestrator.sweeps.plans import write_plan
from tests.unit.tracking.conftest import PATIENT, sending_is_forked, stored_runs
from tests.unit.tracking.test_sync import sync

NO_CODE = CodeState({}, b"")
TRACKED = {"mlflow": True, "experiment": "all", "system_metrics_seconds": 0.2}
SHORT: dict[str, Any] = {
    "tracking": TRACKED,
    "schedule": {"train_iters": 6},
    "checkpoint": {"save_interval": 2},
    "runtime": {"device": "cpu"},
}
SYSTEM_METRICS = {
    f"system/{name}"
    for name in (
        "cpu_utilization_percentage",
        "system_memory_usage_megabytes",
        "system_memory_usage_percentage",
        "disk_usage_percentage",
        "disk_usage_megabytes",
        "disk_available_megabytes",
        "network_receive_megabytes",
        "network_transmit_megabytes",
    )
}


def new_run(runs_dir: Path, name: str, **sections: Any) -> tuple[RunDir, JobSpec]:
    job = tiny_job(name, **{**SHORT, **sections})
    return create_run(job, dump_resolved(job), runs_dir, NO_CODE), job


def planned_cells(runs_dir: Path, folder: Path) -> list[tuple[RunDir, JobSpec]]:
    """The runs of a sweep of two cells, as `sweep run` makes them, without the git commands it takes."""
    spec = json.loads(dump_resolved(tiny_job("cell", **SHORT)))
    axes = {"grid": {"optimizer.lr": [0.001, 0.01]}, "name": "rates", "metric": "train/loss"}
    path = folder / "sweep.yaml"
    path.write_text(json.dumps({**spec, "sweep": axes}))
    _, new = write_plan(SweepDir(runs_dir / "sweeps" / "rates"), load_sweep([path]))
    return [(run, load_resolved(run.resolved())) for run in new]


def what_is_stored(database: Path) -> dict[str, dict[str, Any]]:
    """Everything that MLflow says, by the runs' names; a run's parent by its name, since ids are given anew."""
    runs = stored_runs(database)
    names = {run.run_id: run.name for run in runs}
    told: dict[str, dict[str, Any]] = {}
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as store:
        for run in runs:
            tags = {key: names.get(value, value) for key, value in run.tags.items()}
            rows = "select key, step, timestamp, value, is_nan from metrics where run_uuid = ? order by 1, 2, 3"
            times = "select start_time, end_time from runs where run_uuid = ?"
            told[run.name] = {
                "status": run.status,
                "times": store.execute(times, [run.run_id]).fetchone(),
                "params": run.params,
                "tags": tags,
                "metrics": store.execute(rows, [run.run_id]).fetchall(),
                "datasets": sorted(datasets(store, run.run_id)),
                "artifacts": artifacts(run.artifacts),
            }
    return told


def datasets(store: sqlite3.Connection, run_id: str) -> Iterator[tuple[Any, ...]]:
    query = (
        "select input_uuid, name, digest, dataset_source_type, dataset_source, dataset_profile from inputs "
        "join datasets on source_id = dataset_uuid where destination_id = ?"
    )
    for input_id, *dataset in store.execute(query, [run_id]).fetchall():
        tags = store.execute("select name, value from input_tags where input_uuid = ? order by 1", [input_id])
        yield (*dataset, *tags.fetchall())


def artifacts(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow("five trainings, each with the process that sends it to MLflow")
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("forked_sending")
def test_a_lost_store_is_filled_with_the_same(
    ranks: Ranks,
    commands: Commands,
    real_text: list[str],
    inject: Callable[[str], Path],
    tmp_path: Path,
    empty_store: Path,
) -> None:
    runs_dir = tmp_path / "runs"
    runs_dir.mkdir()
    database = Path(shutil.copy(empty_store, runs_dir / "mlflow.db"))
    blend = {"random_tokens": False, "split": "9,1,0", "blend": [0.25, real_text[0], 0.75, real_text[1]]}
    plain, job = new_run(runs_dir, "plain", data=blend, model={"vocab_size": None}, parallelism=layout(tp=2))
    broken, broken_job = new_run(
        runs_dir, "broken", optimizer={"lr": 1e38}, runtime={"max_bad_steps": 2, "device": "cpu"}
    )
    (killed, killed_job), cell = planned_cells(runs_dir, tmp_path)
    two_nodes = 'os.environ.update(LOCAL_RANK="0", GROUP_RANK=str(RANK))'
    forked = f"os.environ.update({sending_is_forked(ranks)})"
    injected = inject(f'{forked}\nif "TWO_NODES" in os.environ:\n    {two_nodes}\n{PATIENT}{HOLD}')
    begun: list[tuple[RunDir, Started]] = [
        (plain, ranks.start(plain, job, inject=injected, env={"TWO_NODES": "1"})),
        *((run, ranks.start(run, spec, inject=injected)) for run, spec in [(broken, broken_job), cell]),
    ]
    assert ranks.killed_and_resumed(killed, killed_job, inject=injected, held=hold_at(4, since=0)) > 0
    codes = {run.name: started.wait() for run, started in begun}
    assert codes == {"plain": 0, "broken": 1, "cell": 0}, "\n".join(logs(run) for run, _ in begun)
    wait_until(lambda: "RUNNING" not in {run.status for run in stored_runs(database)}, "the end of every run in MLflow")

    first = what_is_stored(database)
    check_what_is_said(first, plain, broken)

    database.unlink()
    shutil.copy(empty_store, database)
    shutil.rmtree(runs_dir / "mlartifacts")
    assert sync(commands, "--all", runs_dir=runs_dir).code == 0
    again = what_is_stored(database)
    assert set(again) == set(first)
    for name in first:
        # What the run directory says only after the follower's end (`finished`, the launcher's word) moves the end, and
        # with it the account of the time, by the seconds in between.
        assert [
            ended - other for ended, other in zip(again[name].pop("times"), first[name].pop("times"), strict=True)
        ] == [
            0,
            pytest.approx(0, abs=30_000),
        ]
        for told in (first[name], again[name]):
            told["tags"] = {key: value for key, value in told["tags"].items() if "goodput" not in key}
            told["artifacts"] = {key: value for key, value in told["artifacts"].items() if not key.startswith("logs/")}
        assert again[name] == first[name], name


def check_what_is_said(stored: dict[str, dict[str, Any]], plain: RunDir, broken: RunDir) -> None:
    names = {**{run.name: f"{run.name}/{run.run_id}" for run in (plain, broken)}, "killed": "lr=0.001"}
    assert set(stored) == {*names.values(), "rates", "lr=0.01"}
    told = {name: stored[label] for name, label in names.items()}
    states = {name: (run["status"], run["tags"]["orchestrator.exit_cause"]) for name, run in told.items()}
    assert states == {
        "plain": ("FINISHED", "completed"),
        "broken": ("FAILED", "nan"),
        "killed": ("FINISHED", "completed"),
    }
    for name in ("validation", "training"):
        parts = [dataset for dataset in told["plain"]["datasets"] if ("mlflow.data.context", name) in dataset]
        assert [(dataset[0], dataset[-1]) for dataset in parts] == [
            ("email", ("weight", "0.75")),
            ("json", ("weight", "0.25")),
        ]
        assert all(json.loads(dataset[4])["tokens"] > 40_000 for dataset in parts)
    expected = {"architecture": "gpt", "layout": "tp2 dp1", "world_size": "2", "gpu": "cpu", "cluster": "local"}
    tags = told["plain"]["tags"]
    assert {name: tags[f"orchestrator.{name}"] for name in expected} == expected
    assert int(tags["orchestrator.parameters"]) > 30_000
    assert f"    orchestrator status {plain.path}\n" in tags["mlflow.note.content"]
    assert "NaN or infinite" in told["broken"]["tags"]["orchestrator.exit_message"]
    assert b"DivergenceError" in told["broken"]["artifacts"]["logs/rank-00000.log"]
    assert told["killed"]["tags"]["orchestrator.resumes"] == "1"
    assert {step for key, step, *_ in told["killed"]["metrics"] if key == "train/loss"} == set(range(1, 7))
    measured = {name: {key for key, *_ in run["metrics"] if key.startswith("system/")} for name, run in told.items()}
    of_another_node = {key.replace("system/", "system/node-1/") for key in SYSTEM_METRICS}
    assert measured == {"plain": SYSTEM_METRICS | of_another_node, "broken": SYSTEM_METRICS, "killed": SYSTEM_METRICS}

    sweep, children = stored["rates"], [stored["lr=0.001"], stored["lr=0.01"]]
    assert [child["tags"]["mlflow.parentRunId"] for child in children] == ["rates", "rates"]
    assert sweep["status"] == "FINISHED"
    assert sweep["times"][1] == max(child["times"][1] for child in children)
    last = [
        max((step, value) for key, step, _, value, _ in child["metrics"] if key == "train/loss")[1]
        for child in children
    ]
    told_of_the_sweep = {
        "axes.optimizer.lr": "0.001, 0.01",
        "metric": "train/loss",
        "cells": "2",
        "states.finished": "2",
        "states.waiting": "0",
        "best_cell": "lr=0.001" if last[0] < last[1] else "lr=0.01",
        "best_value": f"{min(last):.6g}",
    }
    assert {name: sweep["tags"][f"orchestrator.sweep.{name}"] for name in told_of_the_sweep} == told_of_the_sweep
