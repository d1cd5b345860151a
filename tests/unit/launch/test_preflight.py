"""What a start says before it starts: the warnings of `validate`, of which some stop it."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.event_log import lines_of
from support.refusals import fail_at, leave_room

from orchestrator.conversion.exportability import NOT_EXPORTABLE
from orchestrator.errors import SpecError
from orchestrator.launch.runs import all_runs, create_run
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.warnings import judge
from orchestrator.run_directory.checkpoints.commit_markers import FileRecord, write_commit
from orchestrator.spec.job import JobSpec
from tests.unit.launch.conftest import start_nothing

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]


@pytest.fixture
def job(make_job: MakeJob) -> JobSpec:
    return make_job()


@pytest.fixture
def checkpoint_bytes(job: JobSpec) -> int:
    return forecast(make_plan(job)).checkpoint_bytes


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Path]]:
    """disk(bytes): every disk has so much free; returns the folders that were asked for."""
    return functools.partial(leave_room, monkeypatch)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("run", []),
        ("run", ["-d"]),
        ("run", ["--json"]),
        ("submit", []),
        ("drill", []),
        ("resume", []),
        ("resume", ["--set", "checkpoint.keep_last=9"]),
        ("sweep", ["run", "sweep.yaml", "--local"]),
    ],
)
def test_a_disk_without_room_stops_a_start(
    command: str,
    options: list[str],
    orchestrator: Orchestrator,
    lab: Path,
    job: JobSpec,
    job_file: Path,
    runs_dir: Path,
    disk: Callable[[int], list[Path]],
    checkpoint_bytes: int,
) -> None:
    (lab / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1, 2]}\n")
    is_resume = command == "resume"
    if is_resume:
        create_run(job, "", runs_dir)
    asked = disk(checkpoint_bytes // 2)
    words = [command, *(["tiny"] if is_resume else [job_file] if command != "sweep" else []), *options]
    code, out, err = orchestrator(*words)
    said = out if "--json" in options else err
    assert code == 2, said
    assert "--allow-warnings" in said
    if "--json" in options:
        assert [each["code"] for each in json.loads(out)["problems"]] == ["checkpoint_room"]
    assert [lines_of(run)[-1]["event"] for run in all_runs(runs_dir)] == ["created"] * is_resume
    assert all(len(run.resolved_generations()) == 1 for run in all_runs(runs_dir))
    assert all(runs_dir.is_relative_to(folder) for folder in asked), "where the runs go, not where the job says"


def test_who_says_so_starts_nevertheless(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, disk: Callable[[int], list[Path]]
) -> None:
    disk(0)
    code, _, err = orchestrator("run", job_file, "--allow-warnings")
    assert code == 0
    assert err.startswith("warning: ")
    assert "free" in err


def test_what_a_run_has_saved_already_makes_room(
    orchestrator: Orchestrator,
    job: JobSpec,
    job_file: Path,
    runs_dir: Path,
    disk: Callable[[int], list[Path]],
    checkpoint_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of four that are kept at once, three are there."""
    start_nothing(monkeypatch, "launched-now")
    run = create_run(job, "", runs_dir)
    disk(checkpoint_bytes + 10)
    assert orchestrator("run", job_file)[0] == 2
    for iteration in (5, 10, 15):
        folder = run.checkpoint(iteration)
        folder.mkdir(parents=True)
        (folder / "loss").write_text("1.0")
        files = {"weights": FileRecord(checkpoint_bytes, 0)}
        write_commit(folder, iteration=iteration, consumed_samples=2 * iteration, files=files)
    code, _, err = orchestrator("run", job_file, "--detach")
    assert "checkpoints of" not in err
    assert code == 0


def test_cells_of_a_sweep_share_the_disk(
    orchestrator: Orchestrator,
    lab: Path,
    job_file: Path,
    disk: Callable[[int], list[Path]],
    checkpoint_bytes: int,
) -> None:
    (lab / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1, 2, 3]}\n")
    disk(8 * checkpoint_bytes)
    code, _, err = orchestrator("sweep", "run", "sweep.yaml", "--local")
    assert code == 2
    assert "3 runs keep " in err


@pytest.mark.parametrize("command", ["run", "submit", "resume", "sweep", "drill", "bench", "tune"])
def test_a_start_says_what_validate_warns_of(
    command: str,
    orchestrator: Orchestrator,
    lab: Path,
    make_job: MakeJob,
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for place in (
        "cli.runs.run.start",
        "cli.runs.resume.start",
        "api.starts.submission.submit_and_tell",
        "cli.runs.sweeps.sweep_run.begin",
        "cli.runs.drill.drill",
        "cli.jobs.bench.measure",
        "cli.jobs.tune._measure",
    ):
        fail_at(monkeypatch, f"orchestrator.{place}", KeyboardInterrupt())
    changes = {"model__activation": "squared_relu", "runtime": {}}
    job = make_job(**changes, launch={"env": {"TOKEN": "${env:HF_TOKEN}"}, "template": "own.sh.j2"})
    (lab / "own.sh.j2").write_text("true\n")
    path = lab / "job.yaml"
    path.write_text(job.model_dump_json(exclude_unset=True))
    (lab / "sweep.yaml").write_text("base: job.yaml\ngrid: {lr: [1, 2]}\n")
    if command == "resume":
        create_run(job, "", runs_dir)
    on_cpu = ["--set", "runtime.device=cpu"] if command in ("bench", "tune") else []
    where = ["--cluster", "lab"] if command == "submit" else on_cpu
    found = json.loads(orchestrator("validate", path, *where, "--json")[1])["verdict"]["warnings"]
    warnings = [each for each in found if each["code"] != NOT_EXPORTABLE]  # no start is the worse for it
    assert len(warnings) == len(found) - 1
    assert {each["code"] for each in warnings} == {"variable_unset", *([] if on_cpu else ["gpu_assumed"])}
    words = {
        "resume": ["resume", "tiny"],
        "sweep": ["sweep", "run", "sweep.yaml", "--local"],
        "tune": ["tune", path, *on_cpu, "--measure", "-o", "tuned.yaml"],
    }
    code, _, err = orchestrator(*words.get(command, [command, path, *on_cpu]))
    assert code == 130, err
    assert [each["message"] for each in warnings if each["message"] not in err] == []


@pytest.mark.parametrize("command", ["run", "submit"])
def test_what_cannot_work_stops_a_start(
    command: str, orchestrator: Orchestrator, lab: Path, make_job: MakeJob, runs_dir: Path
) -> None:
    """As `validate` says it: the memory of its GPU."""
    model = {
        "num_layers": 80,
        "hidden_size": 8192,
        "num_attention_heads": 64,
        "seq_length": 8192,
        "vocab_size": 128_000,
    }
    job = make_job(model=model, launch={"gpu": "H100"}, runtime={})
    (lab / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    code, _, err = orchestrator(command, "job.yaml")
    assert code == 2
    assert "memory does not fit" in err
    assert not runs_dir.exists()


def test_every_warning_has_a_code(make_job: MakeJob, disk: Callable[[int], list[Path]], tmp_path: Path) -> None:
    disk(0)
    changes: list[dict[str, Any]] = [
        {"checkpoint": {"pretrained": "nowhere", "save_interval": 90}},
        {"data": {"blend": [str(tmp_path / "gone")], "tokenizer": {"type": "huggingface", "path": "gone.json"}}},
        {"tracking": {"tensorboard": True, "wandb": {}}, "notifications": {"command": ["nowhere"]}},
        {"runtime": {"train_step": "nowhere:Step"}, "launch": {"python": "/nope/py"}},
    ]
    codes = set()
    for change in changes:
        plan = make_plan(make_job(**{"runtime": {}, **change}))
        warnings = judge(plan, forecast(plan), None).warnings
        assert [each for each in warnings if each.code is None] == []
        codes |= {each.code for each in warnings}
    assert {"checkpoint_room", "no_weights", "data", "gpu_assumed", "train_step_missing", "python_missing"} <= codes
    assert SpecError(list(warnings)).problems[0].to_dict()["code"] in codes
