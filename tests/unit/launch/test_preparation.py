"""The job that makes a run's data: exact text, valid shell, literal values; and what its end means for the run."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.event_log import append_event, lines_of
from support.fake_slurm import FakeSlurm
from support.refused import refused

from orchestrator.data.source_survey import Source, to_be_made
from orchestrator.executors.slurm.preparation import render_preparation, submit_preparation
from orchestrator.launch.executor_protocol import JobState, Place
from orchestrator.launch.runs import all_runs, create_run
from orchestrator.launch.states.submitted_job import DataJob, data_job, failed_preparation, latest_job, waiting_for
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.data import BlendEntry

GOLDEN = Path(__file__).parents[2] / "golden"
MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]
PLACE = Place(RunDir(Path("/scratch/my runs/tiny/0123abcd")), Path("/shared/ada/it's code"), "/opt/venv/bin/python")
PARTITIONS = {"booster": {"cpus_per_node": 64}, "cpu": {"cpus_per_node": 8, "time_limit": "2h"}}
PROFILE: dict[str, Any] = {
    "partition": "booster",
    "partitions": PARTITIONS,
    "data_partition": "cpu",
    "account": "project7",
    "qos": "normal",
    "time": "1d",
    "gpu_type": "h200",
    "memory_per_node": "0",
    "exclusive": True,
    "exclude": ["n13"],
    "constraint": "a&b",
    "options": ["--comment=it's $HOME #1", "--gpu-bind=closest"],
    "modules": ["Python"],
    "virtual_env": "/opt/my venv",
    "setup": ["ulimit -c 0"],
    "env": {"NOTE": "$(id)"},
}
CASES: dict[str, dict[str, Any]] = {
    "slurm-data-plain": {},
    "slurm-data-everything": PROFILE,
    "slurm-data-pyxis": {"container": {"image": "/images/torch 26.10.sqsh", "mounts": ["/data:/data:ro"]}},
    "slurm-data-apptainer": {"container": {"runtime": "apptainer", "image": "/images/torch.sif"}},
}


def missing(*paths: str) -> list[Source]:
    return [Source("data.blend[0]", BlendEntry(path=path, text=["raw"]), None, None) for path in paths]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, make_job: MakeJob) -> tuple[str, str]:
    """A golden file's name, and the script."""
    cluster = ClusterSpec.model_validate({"name": "lab", **CASES[request.param]})
    return request.param, render_preparation(make_job(), cluster, PLACE, missing("/data/books"))


def test_script_is_exactly_the_golden_one(case: tuple[str, str]) -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    assert case[1] == (GOLDEN / f"{case[0]}.sbatch").read_text()


def test_script_is_valid_shell(case: tuple[str, str]) -> None:
    subprocess.run(["bash", "-n"], input=case[1], text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(case: tuple[str, str]) -> None:
    # SC2016 doubts that single quotes around `$` are meant, SC1091 wants to see what is sourced.
    command = ["shellcheck", "--exclude=SC2016,SC1091", "-"]
    found = subprocess.run(command, input=case[1], text=True, capture_output=True)
    assert found.stdout == ""
    assert found.returncode == 0


hostile = st.sampled_from(["$(touch pwned)", "`id`", "'", '"', "\\", "-n", "*", "${HOME}", "a #b", "a;b", "a\nb", "☃"])


@given(value=hostile | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
def test_hostile_values_arrive_literally(value: str, make_job: MakeJob, tmp_path: Path) -> None:
    run = RunDir(tmp_path / "runs" / value.replace("/", "_"))
    (tmp_path / "here").mkdir(exist_ok=True)
    fake = tmp_path / "fake python"
    fake.write_text('#!/bin/sh\nprintf "%s\\0" "$VALUE" "$@"\n')
    fake.chmod(0o755)
    cluster = ClusterSpec(name="lab").model_copy(update={"env": {"VALUE": value}})
    place = Place(run, tmp_path / "here", str(fake))
    if any(ord(character) < 32 or ord(character) == 127 for character in value) or "\\" in value:
        with refused("path_not_for_slurm" if "\\" in value or "\n" in value else "control_character", "SLURM"):
            render_preparation(make_job(), cluster, place, missing("books"))
        return
    script = render_preparation(make_job(), cluster, place, missing("books"))
    done = subprocess.run(["bash", "-c", script], capture_output=True, check=True, text=True)
    words = done.stdout.split("\0")[:-1]
    assert words == [value, "-P", "-m", "orchestrator.data", "prepare", "--workers", "4", "--", str(run.path)]


def test_one_name_for_one_set_of_data_whichever_run_wants_it(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM runs jobs of one name one after the other when they ask for it (singleton)."""
    monkeypatch.chdir("/tmp")
    cluster = ClusterSpec(name="lab")
    other = replace(PLACE, run=RunDir(Path("/scratch/other")))

    def name(place: Place, *paths: str) -> str:
        lines = render_preparation(make_job(), cluster, place, missing(*paths)).splitlines()
        assert "#SBATCH --dependency=singleton" in lines
        return next(line for line in lines if "--job-name" in line)

    assert name(PLACE, "data/a", "data/b") == name(other, "/tmp/data/b", "/tmp/data/a")
    assert name(PLACE, "data/a") != name(PLACE, "data/b")


@pytest.fixture
def run(make_run: Callable[[JobSpec], RunDir], job: JobSpec) -> RunDir:
    return make_run(job)


SQUEUE = "{id}|{state}|0|0|1000|1000|2000|n1|None|\n"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", str(fake.bin), prepend=":")
    return fake


def submitted(run: RunDir) -> DataJob:
    append_event(run, "data_submitted", job_id="11", cluster="lab")
    append_event(run, "submitted", job_id="12", cluster="lab", data_job_id="11")
    found = latest_job(run.events())
    assert found is not None
    assert found.data is not None
    assert found.unsettled == ("12", "11")
    return found.data


def state(name: str, **fields: Any) -> JobState:
    phase = {"PENDING": "waiting", "RUNNING": "running"}.get(name, "over")
    return JobState("11", phase, name, succeeded=name == "COMPLETED", says=f"SLURM says {name}", **fields)


def test_a_run_waits_for_its_data(run: RunDir) -> None:
    data = submitted(run)
    assert data == DataJob("11", False, None)
    assert waiting_for(data, state("PENDING", reason="Priority")) == "waits for its data: job 11 is pending (Priority)"
    assert waiting_for(data, state("RUNNING")) == "waits for its data: job 11 is running"
    assert waiting_for(data, None) == "waits for its data (job 11)"
    for name in ("PENDING", "RUNNING", "COMPLETED"):
        assert failed_preparation(run, data, state(name), forgotten=False) is None


def test_a_failed_data_job_is_the_end_of_the_run(run: RunDir) -> None:
    data = submitted(run)
    run.logs.mkdir()
    run.data_log.write_text("one\n\ntwo\nerror: raw/books.jsonl:2 is not JSON\nthree\n")
    end = failed_preparation(run, data, state("FAILED", exit_code=2), forgotten=False)
    assert end is not None
    assert (end.cause, end.code) == ("data", 1)
    assert end.message == "job 11: SLURM says FAILED, exit code 2; see logs/data.log"
    assert end.evidence == ("data.log: two", "data.log: error: raw/books.jsonl:2 is not JSON", "data.log: three")


def test_what_it_said_itself_counts_for_more_and_needs_no_scheduler(run: RunDir) -> None:
    submitted(run)
    append_event(run, "data_failed", job_id="10", message="of an earlier job")
    assert submitted(run).failure is None
    append_event(run, "data_failed", job_id="11", message="raw/books.jsonl:2 is not JSON\nand more")
    end = failed_preparation(run, submitted(run), None, forgotten=False)
    assert end is not None
    assert end.message == "job 11: raw/books.jsonl:2 is not JSON; see logs/data.log"
    assert end.evidence == ()


def test_jobs_that_nobody_knows_any_more(run: RunDir) -> None:
    data = submitted(run)
    assert failed_preparation(run, data, None, forgotten=False) is None
    end = failed_preparation(run, data, None, forgotten=True)
    assert end is not None
    assert "no longer knows how it ended" in end.message
    append_event(run, "data_prepared", job_id="11", made=[], seconds=1.0)
    assert failed_preparation(run, submitted(run), None, forgotten=True) is None


def test_a_run_that_was_submitted_without_one_has_none(run: RunDir) -> None:
    submitted(run)
    append_event(run, "submitted", job_id="13", cluster="lab")
    found = latest_job(run.events())
    assert found is not None
    assert found.data is None
    assert data_job(run.events(), None) is None


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with text."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text("text\n")
    return tmp_path


def test_data_is_made_here_and_found_from_a_copy_of_the_code(
    project: Path, make_job: MakeJob, run: RunDir, slurm: FakeSlurm
) -> None:
    """What git ignores is linked into the copy; `kept` is such a folder, and `new` was not there when it was made."""
    paths = ("new/a", "kept/b", str(project / "absolute" / "c"))
    job = make_job(data={"blend": [{"path": path, "text": "raw/a.txt"} for path in paths]}, model__vocab_size=None)
    copy = project / "copy"
    (project / "kept").mkdir()
    copy.mkdir()
    (copy / "kept").symlink_to(project / "kept")
    slurm.says("sbatch", "11\n", delay=f'cat "$2" > {project}/submitted.sh')
    place = Place(run, copy, "python", "/code")
    assert submit_preparation(run, job, ClusterSpec(name="lab"), place, to_be_made(job)) == "11"
    script = (project / "submitted.sh").read_text()
    assert f"cd {project}\n" in script
    assert "export PYTHONPATH=/code\n" in script
    for path in ("new/a", "kept/b"):
        (project / path).parent.mkdir(exist_ok=True)
        (project / f"{path}.idx").write_text(path)
        assert (copy / f"{path}.idx").read_text() == path
    assert [event["event"] for event in lines_of(run)][-1:] == ["data_submitted"]


def test_what_lies_beside_conversations_is_found_too(
    project: Path, make_job: MakeJob, run: RunDir, slurm: FakeSlurm
) -> None:
    """The mask of what counts, and the images."""
    data = {"blend": [{"path": "new/a", "text": "raw/a.txt"}], "chat": {"packing": False}}
    vision = {"image_size": 4, "patch_size": 2, "num_attention_heads": 2, "hidden_size": 8}
    job = make_job(data=data, model__vocab_size=None, model__vision=vision)
    slurm.says("sbatch", "11\n")
    submit_preparation(run, job, ClusterSpec(name="lab"), Place(run, project / "copy", "python"), to_be_made(job))
    (project / "new").mkdir()
    for beside in ("", ".loss_mask", ".images"):
        for ending in ("bin", "idx"):
            (project / f"new/a{beside}.{ending}").write_text(beside)
            assert (project / f"copy/new/a{beside}.{ending}").read_text() == beside


def test_a_data_job_that_is_under_way_is_not_submitted_again(
    project: Path, make_job: MakeJob, run: RunDir, slurm: FakeSlurm
) -> None:
    job = make_job(data={"blend": [{"path": "a", "text": "raw/a.txt"}]}, model__vocab_size=None)
    place, cluster = Place(run, project, "python"), ClusterSpec(name="lab")
    slurm.says("squeue", SQUEUE.format(id=11, state="RUNNING"))
    slurm.says("sbatch", "22\n")
    submitted(run)
    assert submit_preparation(run, job, cluster, place, to_be_made(job)) == "11"
    append_event(run, "data_failed", job_id="11", message="raw/a.txt:2 is no JSON")
    assert submit_preparation(run, job, cluster, place, to_be_made(job)) == "22", "that one only has to end"
    slurm.says("squeue", SQUEUE.format(id=22, state="CANCELLED"))
    slurm.says("sbatch", "33\n")
    assert submit_preparation(run, job, cluster, place, to_be_made(job)) == "33"


WITH_TEXT = {"blend": [{"path": "data/a", "text": "raw/a.txt"}], "split": "1,0,0"}


def write_job(project: Path, make_job: MakeJob, **data: Any) -> Path:
    path = project / "job.yaml"
    path.write_text(make_job(data={**WITH_TEXT, **data}, model__vocab_size=None).model_dump_json(exclude_unset=True))
    return path


def test_run_makes_what_is_missing_first(orchestrator: Orchestrator, project: Path, make_job: MakeJob) -> None:
    job = write_job(project, make_job)
    code, out, err = orchestrator("run", job)
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0] == "wrote data/a: 1 documents, 6 tokens (bytes, as uint16)"
    assert lines[1].startswith("new run tiny/")
    assert lines[2] == "started 2 processes at iteration 0"
    assert "data/a: made from raw/a.txt" in err
    code, out, err = orchestrator("run", job, "--new", "--json")
    assert (code, json.loads(out)["error"]) == (2, "SpecError"), "what there is by now is too little"
    code, out, err = orchestrator("run", job, "--new", "--json", "--allow-warnings")
    assert code == 0
    assert json.loads(out)["state"] == "completed"


def test_no_run_is_left_where_its_data_cannot_be_made(
    orchestrator: Orchestrator, project: Path, make_job: MakeJob, runs_dir: Path
) -> None:
    job = write_job(project, make_job)
    good = create_run(make_job(), "", runs_dir)
    for arguments in ((), ("--json",)):
        (project / "raw" / "a.txt").write_bytes(b"")
        code, out, err = orchestrator("run", job, *arguments)
        assert code == 2
        assert "the input has no text for 'text'" in (json.loads(out)["message"] if arguments else err)
    assert all_runs(runs_dir) == [good]
    (project / "raw" / "a.txt").write_text("text\n")
    assert orchestrator("run", job)[0] == 0


@pytest.mark.parametrize(("command", "never"), [("run", "data.prepare=never"), ("drill", "data.prepare=never")])
def test_what_nobody_may_make_is_refused(
    command: str, never: str, orchestrator: Orchestrator, project: Path, make_job: MakeJob, runs_dir: Path
) -> None:
    code, _, err = orchestrator(command, write_job(project, make_job), "--set", never)
    assert code == 2
    assert "data.blend[0]: no indexed data set at data/a, and data.prepare is never" in err
    assert not runs_dir.exists()


def test_validate_and_plan_say_what_will_be_made(orchestrator: Orchestrator, project: Path, make_job: MakeJob) -> None:
    job = write_job(project, make_job, validation=[{"path": "data/v", "text": "raw"}, {"path": "data/gone"}])
    _, out, _ = orchestrator("validate", job)
    assert "  data         1 of 3 sources are not on this machine; 2 sources will be made from text first\n" in out
    assert "note: data/v does not exist yet; it is made first, from raw\n" in out
    assert re.search(r"warning .*no indexed data set at data/gone", out)
    _, out, _ = orchestrator("plan", job)
    assert re.search(r"data/a +100.0% .*to be made", out)
    _, out, _ = orchestrator("plan", job, "--json")
    assert [source["made_first"] for source in json.loads(out)["blend"]] == [True]


def test_a_dry_run_of_submit_shows_both_jobs(orchestrator: Orchestrator, project: Path, make_job: MakeJob) -> None:
    (project / "clusters").mkdir()
    (project / "clusters" / "lab.yaml").write_text("name: lab\ndata_partition: cpu\n")
    job = write_job(project, make_job)
    code, out, err = orchestrator("submit", job, "--dry-run")
    assert code == 0, err
    assert "#SBATCH --dependency=afterok:DATA_JOB\n" in out
    assert "#SBATCH --kill-on-invalid-dep=yes\n" in out
    assert (
        "1 source will be made from text first: data/a\n"
        "asking lab for: --nodes=1 --cpus-per-task=4 --partition=cpu --requeue\n"
    ) in err
