"""Tags, notes, names, archiving, deleting and pruning, as commands."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event, lines_of
from support.refusals import refuse
from support.refused import refused

import orchestrator as interface
from orchestrator.errors import RunNotFound
from orchestrator.launch.runs import all_runs, create_run, find_run, next_run_dir
from orchestrator.run_directory.checkpoints.commit_markers import committed, write_commit
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import FOLDER, trashed
from orchestrator.spec.job import JobSpec
from orchestrator.tracking.measurements.metrics import MetricLog

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]
CreateRun = Callable[..., RunDir]


@pytest.fixture
def create(make_job: MakeJob, runs_dir: Path) -> CreateRun:
    """create(name, lr, **changes): a new run."""

    def create(name: str = "tiny", lr: float = 1e-3, **changes: Any) -> RunDir:
        job = make_job(name=name, optimizer__lr=lr, **changes)
        return create_run(job, job.model_dump_json(exclude_unset=True), runs_dir)

    return create


def ended(run: RunDir, cause: str = "completed", iteration: int = 20) -> RunDir:
    append_event(run, "launched", launch_id="l1", host="elsewhere")
    append_event(run, "started", launch_id="l1", iteration=0)
    append_event(run, "exited", launch_id="l1", code=0, cause=cause, message="", iteration=iteration)
    return run


def saved(run: RunDir, *iterations: int, size: int = 1000) -> RunDir:
    for iteration in iterations:
        folder = run.checkpoint(iteration)
        folder.mkdir(parents=True)
        (folder / "weights").write_bytes(bytes(size))
        write_commit(folder, iteration=iteration, consumed_samples=iteration, files={})
    return run


def test_labels_of_a_live_run_leave_its_training_alone(orchestrator: Orchestrator, create: CreateRun) -> None:
    run = create()
    lease = Lease.acquire(run, launch_id="l1")
    before = run.events_file.read_bytes()
    assert orchestrator("tag", "tiny", "best", "paper", "best") == (0, f"run tiny/{run.run_id}: best, paper\n", "")
    assert orchestrator("tag", "tiny", "--remove", "paper")[1] == f"run tiny/{run.run_id}: best\n"
    code, out, err = orchestrator("tag", "tiny", "more", "--remove", "best", "--remove", "bets")
    assert (code, out, "did you mean best?" in err, read_labels(run.path).tags) == (2, "", True, ("best",))
    assert orchestrator("note", run.run_id, "one\ntwo")[0] == 0
    assert orchestrator("note", run.run_id)[1] == f"run tiny/{run.run_id}: one\ntwo\n"
    assert orchestrator("rename", run.run_id[:5], "champion")[0] == 0
    assert orchestrator("archive", "champion")[1] == f"run champion/{run.run_id} is archived\n"
    record = json.loads(orchestrator("tag", "champion", "--json")[1])
    assert (record["name"], record["tags"], record["archived"]) == ("champion", ["best"], True)
    shown = orchestrator("status", f"champion/{run.run_id}")[1]
    assert f"run champion/{run.run_id}\n" in shown
    assert re.search(r"state +running \(archived\)\n +tags +best\n +note +one\n +two\n +renamed from +tiny\n", shown)
    assert json.loads(orchestrator("status", "tiny", "--json")[1])["labels"]["note"] == "one\ntwo"
    assert orchestrator("archive", "champion", "--undo")[1] == f"run champion/{run.run_id} is shown again\n"
    assert run.events_file.read_bytes() == before
    lease.check()
    code, out, err = orchestrator("delete", "champion", "--yes")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: run champion/{run.run_id} is running: nothing was deleted.")
    assert run.path.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tag", "tiny", "two words"), "'two words' is no tag"),
        (("tag", "tiny", "a,b"), "'a,b' is no tag"),
        (("tag", "tiny", "\x1b[31m"), "is no tag"),
        (("note", "tiny", "bell \x07"), "control characters"),
        (("note", "tiny", "x" * 4001), "at most 4,000 characters"),
        (("rename", "tiny", "../../etc"), "is no name"),
        (("rename", "tiny", ".hidden"), "is no name"),
        (("rename", "tiny", "a/b"), "is no name"),
        (("rename", "tiny", "x\n"), "is no name"),
        (("rename", "tiny", ""), "is no name"),
        (("rename", "tiny", "other"), "other is the name of a job that has runs here"),
        (("rename", "tiny", "taken"), "taken is what run other/"),
        (("tag", "nothing", "x"), "there is no run nothing"),
        (("delete", "../..", "--yes"), "but not a run"),
        (("delete", "/", "--yes"), "but not a run"),
        (("delete", ".trash", "--yes"), "there is no run .trash"),
        (("prune", "--older-than", "soon"), "--older-than soon: expects a time like"),
        (("prune", "--runs-dir", "nowhere"), "nowhere is not there: it should hold runs"),
        (("sweep", "list", "--runs-dir", "nowhere"), "nowhere is not there: it should hold runs"),
        (("sync", "--all", "--runs-dir", "nowhere"), "nowhere is not there: it should hold runs"),
        (("delete", "tiny", "--undo"), "there is no tiny in the trash"),
        (("delete", "tiny", "--undo", "--dry-run"), "leave out the other options"),
    ],
)
def test_what_is_refused_changes_nothing(
    orchestrator: Orchestrator, create: CreateRun, words: tuple[str, ...], said: str
) -> None:
    run, other = create(), create("other")
    orchestrator("rename", other.run_id, "taken")
    before = sorted(run.path.parent.parent.rglob("*"))
    code, out, err = orchestrator(*words)
    assert (code, out) == (2, "")
    assert said in err
    assert sorted(run.path.parent.parent.rglob("*")) == before


def test_a_run_is_found_by_every_name_that_it_had(
    orchestrator: Orchestrator, create: CreateRun, runs_dir: Path
) -> None:
    first, second = create(lr=1e-3), create(lr=2e-3)
    orchestrator("rename", second.run_id, "one")
    orchestrator("rename", "one", "two")
    for name in ("two", "one", f"two/{second.run_id}", f"one/{second.run_id}", f"tiny/{second.run_id}"):
        assert find_run(name, runs_dir) == second, name
    assert find_run("tiny", runs_dir) == first, "the other is called so no more"
    orchestrator("rename", first.run_id, "one")
    assert find_run("one", runs_dir) == first, "who has a name goes before who had it"
    orchestrator("rename", "two", "tiny")
    assert find_run("tiny", runs_dir) == second
    assert read_labels(second.path).former_names == ("one", "two")
    with refused("run_not_found", "tinny", "tiny", kind=RunNotFound):
        find_run("tinny", runs_dir)


@pytest.mark.parametrize("words", [("list",), ("status", "one"), ("compare", "one", "other"), ("cancel", "one")])
def test_programs_are_told_both_names(orchestrator: Orchestrator, create: CreateRun, words: tuple[str, ...]) -> None:
    run, _ = ended(create()), ended(create("other"))
    orchestrator("rename", run.run_id, "one")
    found = json.loads(orchestrator(*words, "--json")[1])
    records = found if isinstance(found, list) else found.get("runs", [found])
    [record] = [each for each in records if each["run_id"] == run.run_id]
    assert (record["name"], record["shown_name"]) == ("tiny", "one")


def test_deleting_asks_and_can_be_undone(orchestrator: Orchestrator, create: CreateRun, runs_dir: Path) -> None:
    run = ended(saved(create(), 10))
    orchestrator("rename", run.run_id, "champion")
    content = sorted(path.relative_to(run.path) for path in run.path.rglob("*"))
    code, out, err = orchestrator("delete", "champion")
    assert (code, err) == (
        2,
        "error: nobody can be asked here: add --yes to do it, or --dry-run to see what it would do\n",
    )
    code, out, _ = orchestrator("delete", "champion", "--dry-run")
    assert code == 0
    assert out.splitlines()[-1].endswith(" would go to the trash; nothing was deleted")
    dry = json.loads(orchestrator("delete", "champion", "--dry-run", "--json")[1])
    assert dry["bytes"] == dry["would_delete"][0]["bytes"] > 1000
    assert run.path.exists()
    assert orchestrator("delete", "champion", "--yes")[0] == 0
    assert not run.path.exists()
    assert all_runs(runs_dir) == []
    assert next_run_dir(
        JobSpec.model_validate_json((trashed(runs_dir)[0].content / "resolved.json").read_text()), runs_dir
    )
    assert "champion/" in orchestrator("prune", "--dry-run")[1]
    assert orchestrator("prune", "--older-than", "1d", "--yes")[1] == "the trash is empty\n"
    assert orchestrator("delete", "tiny", "--undo")[:2] == (0, f"{run.path} is back\n")
    found = {path.relative_to(run.path) for path in run.path.rglob("*")}
    assert set(content) <= found
    assert find_run("champion", runs_dir) == run
    Lease.acquire(run, launch_id="it is free")
    assert trashed(runs_dir) == []


def test_an_id_in_the_trash_is_not_given_again(orchestrator: Orchestrator, create: CreateRun, runs_dir: Path) -> None:
    first = create()
    orchestrator("delete", first.run_id, "--yes")
    second = create()
    assert second.run_id == f"{first.run_id}-2"
    assert orchestrator("delete", first.run_id, "--undo")[0] == 0
    orchestrator("delete", first.run_id, second.run_id, "--yes", "--json")
    assert orchestrator("prune", "--yes")[0] == 0
    assert os.listdir(runs_dir / FOLDER) == []
    assert create() == first


def test_what_was_deleted_is_found_by_the_beginning_of_its_id(orchestrator: Orchestrator, create: CreateRun) -> None:
    run, other = saved(create(), 5, 10), create("other")
    begin = run.run_id[:6]
    assert orchestrator("delete", run.checkpoint(5), "--yes")[0] == 0
    assert orchestrator("delete", begin, "--undo")[:2] == (0, f"{run.checkpoint(5)} is back\n")
    assert orchestrator("delete", begin, other.run_id, "--yes")[0] == 0
    code, out, err = orchestrator("status", begin)
    assert (code, out) == (2, "")
    undo = f"orchestrator delete {run.run_id}"
    assert err.startswith(f"error: run tiny/{run.run_id} was deleted: `{undo}")
    assert orchestrator("delete", begin, "--undo")[:2] == (0, f"{run.path} is back\n")
    assert not other.path.exists()


def test_the_beginning_of_two_ids_puts_nothing_back(
    orchestrator: Orchestrator, create: CreateRun, runs_dir: Path
) -> None:
    runs = [create(), create(name="tiny")]
    orchestrator("delete", *(run.run_id for run in runs), "--yes")
    code, _, err = orchestrator("delete", runs[0].run_id[:6], "--undo")
    assert (code, f"not one run in the trash but 2: {runs[0].run_id}, {runs[1].run_id}" in err) == (2, True), err
    assert len(trashed(runs_dir)) == 2


def test_only_what_is_named_is_deleted(orchestrator: Orchestrator, create: CreateRun) -> None:
    runs = [create(lr=lr) for lr in (1e-3, 2e-3)]
    code, _, err = orchestrator("delete", "tiny", "--yes")
    assert (code, "tiny has 2 runs; name those that are meant:" in err) == (2, True)
    code, _, err = orchestrator("delete", runs[0].run_id, "nothing", "--yes")
    assert (code, [run.path.exists() for run in runs]) == (2, [True, True]), "all or nothing"


def test_checkpoints_are_thinned_out(orchestrator: Orchestrator, create: CreateRun, runs_dir: Path) -> None:
    run = saved(create(), 5, 10, 15, 20)
    log = MetricLog(run, lambda: None)
    for step, loss in ((5, 3.0), (10, 1.0), (12, 0.5), (15, 2.0), (20, 1.5)):
        log.append(step, step, step, {"train/loss": 3.0, "validation/loss": loss})
    ended(run)
    out = orchestrator("delete", "tiny", "--keep-last", "1", "--keep", "best", "--dry-run")[1]
    assert out.count("checkpoint") == 2
    assert "checkpoint 10 " not in out
    assert orchestrator("delete", "tiny", "--keep-last", "1", "--keep", "best", "--yes")[0] == 0
    assert [commit.iteration for commit in committed(run)] == [10, 20]
    assert orchestrator("delete", run.checkpoint(10), "--yes")[0] == 0
    assert [commit.iteration for commit in committed(run)] == [20]
    assert orchestrator("delete", "tiny", "--undo")[0] == 0
    assert [commit.iteration for commit in committed(run)] == [10, 20], "the last deletion alone"
    assert orchestrator("delete", "tiny", "--undo")[0] == 0
    assert [commit.iteration for commit in committed(run)] == [5, 10, 15, 20]
    assert run.run_id in {found.run_id for found in all_runs(runs_dir)}
    assert orchestrator("delete", "tiny", "--keep-last", "9", "--yes")[1] == "nothing is to be deleted\n"


def test_nothing_that_is_needed_is_deleted(
    orchestrator: Orchestrator, create: CreateRun, make_job: MakeJob, runs_dir: Path
) -> None:
    source = ended(saved(create("base"), 5, 10))
    heir = create("heir", checkpoint={"save_interval": 5, "pretrained": "base"})
    for words in ((source.run_id,), ("base", "--keep-last", "0"), (str(source.checkpoint(10)),)):
        code, _, err = orchestrator("delete", *words, "--yes")
        assert (code, f"is needed: run heir/{heir.run_id} begins with its weights" in err) == (2, True), err
    assert orchestrator("delete", "base", "--keep-last", "1", "--yes")[0] == 0, "the older one is not"
    assert orchestrator("delete", "base", "heir", "--dry-run")[0] == 0, "both together"
    saved(heir, 5)
    assert orchestrator("delete", "base", "--yes")[0] == 0, "it has its own by now"
    live = saved(create("live"), 5, 10)
    lease = Lease.acquire(live, launch_id="l1")
    code, _, err = orchestrator("delete", "live", "--keep-last", "0", "--yes")
    assert (code, "checkpoint 10 of run live/" in err, "the run is under way" in err) == (2, True, True)
    assert orchestrator("delete", "live", "--keep-last", "1", "--yes")[0] == 0
    assert [commit.iteration for commit in committed(live)] == [10]
    lease.check()
    assert len(list(live.lease.glob("*.json"))) == 1


def test_a_queued_run_is_not_deleted(
    orchestrator: Orchestrator, create: CreateRun, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = create()
    append_event(run, "submitted", job_id="7", cluster="alps")
    (tmp_path / "bin").mkdir()
    for name in ("squeue", "sacct"):
        command = tmp_path / "bin" / name
        command.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
        command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    code, _, err = orchestrator("delete", "tiny", "--yes")
    assert (code, "is queued: nothing was deleted" in err) == (2, True), err


def test_links_lead_nothing_out_of_the_folder(
    orchestrator: Orchestrator, create: CreateRun, runs_dir: Path, tmp_path: Path
) -> None:
    precious = tmp_path / "precious"
    elsewhere = saved(create("linked"), 5)
    precious.mkdir()
    (precious / "file").write_text("kept")
    elsewhere.path.rename(precious / elsewhere.run_id)
    elsewhere.path.parent.rmdir()
    elsewhere.path.parent.symlink_to(precious)  # the folder of a job
    code, _, err = orchestrator("delete", elsewhere.run_id, "--yes")
    assert (code, "or only through a link: nothing outside of it is deleted" in err) == (2, True), err
    outside = create("tiny")
    moved = tmp_path / "outside"
    outside.path.rename(moved)
    outside.path.symlink_to(moved)  # a run
    inner = saved(create("inner"), 5)
    (inner.path / "data").symlink_to(precious)
    (inner.checkpoints / "iter_0000009").symlink_to(precious)
    assert orchestrator("delete", "inner", "tiny", "--yes")[0] == 0
    assert not outside.path.is_symlink()
    assert orchestrator("prune", "--yes")[0] == 0
    assert os.listdir(runs_dir / FOLDER) == []
    assert (precious / "file").read_text() == "kept"
    assert (moved / "resolved.json").exists()
    (runs_dir / FOLDER).rmdir()
    (runs_dir / FOLDER).symlink_to(precious)
    last = create("last")
    code, _, err = orchestrator("delete", "last", "--yes")
    assert (code, "is not a folder of its own" in err) == (2, True)
    assert last.path.exists()
    code, _, err = orchestrator("prune", "--yes")
    assert (code, (precious / "file").exists()) == (2, True)


@pytest.mark.parametrize(
    "place", ["../outside/run", "/etc/passwd", "tiny/../../x/y", ".trash/x", "a", "tiny/./x", "a\n/b"]
)
def test_a_forged_entry_of_the_trash_is_none(
    orchestrator: Orchestrator, runs_dir: Path, tmp_path: Path, place: str
) -> None:
    entry = runs_dir / FOLDER / "x.00000000"
    (entry / "content").mkdir(parents=True)
    (entry / "entry.json").write_text(json.dumps({"time": 1, "name": "x", "place": place, "deletion": "d"}))
    code, _, err = orchestrator("delete", "x", "--undo")
    assert (code, "there is no x in the trash" in err) == (2, True)
    assert not (tmp_path / "outside").exists()


def test_an_edited_tag_starts_no_finished_run(
    orchestrator: Orchestrator, make_job: MakeJob, tmp_path: Path, runs_dir: Path
) -> None:
    job_file = tmp_path / "job.yaml"

    def write(**tags: str) -> Path:
        job = make_job(tracking={"mlflow": False, "tags": tags})
        job_file.write_text(job.model_dump_json(exclude_unset=True))
        return job_file

    assert orchestrator("run", write(stage="first"))[0] == 0
    [run] = all_runs(runs_dir)
    starts = [event["event"] for event in lines_of(run)].count("launched")
    assert orchestrator("delete", "tiny", "--keep-last", "0", "--yes")[0] == 0
    for edited in (write(stage="second"), write(stage="second", also="this")):
        code, out, err = orchestrator("run", edited)
        assert (code, "has completed already" in out, f"orchestrator tag {run.run_id} TAG" in out) == (0, True, True), (
            err
        )
    code, _, err = orchestrator("resume", "tiny", "--set", "tracking.tags.stage=third")
    assert code == 2, err
    assert all_runs(runs_dir) == [run]
    assert [event["event"] for event in lines_of(run)].count("launched") == starts


WRITES = ("tag x", "note x", "rename x", "archive", "delete --yes")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
@pytest.mark.parametrize("words", WRITES)
def test_what_the_system_refuses(
    orchestrator: Orchestrator,
    create: CreateRun,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    number: int,
) -> None:
    """In one line of what was not done, where, why and the way out, and nothing is changed."""
    run = create()
    command, *rest = words.split()
    before = sorted(run.path.parent.parent.rglob("*"))
    refuse(monkeypatch, "builtins.open", number, lambda path, mode="r", *_, **__: mode == "xb")
    refuse(monkeypatch, "os.rename", number)
    code, _, err = orchestrator(command, "tiny", *rest)
    assert (code, len(err.splitlines())) == (2, 1)
    assert f"tiny/{run.run_id} is not " in err
    assert os.strerror(number) in err
    assert sorted(run.path.parent.parent.rglob("*")) == before or command == "delete"
    assert (read_labels(run.path), run.path.exists(), trashed(run.path.parent.parent)) == (Labels(), True, [])


def test_what_others_deleted_keeps_nobody_from_pruning(
    orchestrator: Orchestrator, create: CreateRun, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, own = create("theirs"), create("own")
    assert orchestrator("delete", "theirs", "own", "--yes")[0] == 0
    refused = PermissionError(errno.EACCES, "Permission denied", str(runs_dir / FOLDER / "a"), None, "b")
    refuse(monkeypatch, "os.rename", refused, lambda path, *_: theirs.run_id in str(path))
    code, _, err = orchestrator("prune", "--yes")
    assert (code, f"theirs/{theirs.run_id} is not removed" in err, own.run_id in err) == (2, True, False)
    assert [entry.name for entry in trashed(runs_dir)] == [f"theirs/{theirs.run_id}"]


def test_a_file_that_stays_is_told_by_its_folder(
    orchestrator: Orchestrator, create: CreateRun, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create()
    assert orchestrator("delete", "tiny", "--yes")[0] == 0
    refuse(monkeypatch, "shutil.rmtree", PermissionError(errno.EACCES, "Permission denied", "job.yaml"))
    code, _, err = orchestrator("prune", "--yes")
    assert (code, f"in {runs_dir / FOLDER}" in err) == (2, True)
    assert orchestrator("prune", "--yes")[0] == 0, "what is left of it is not ours, and no run any more"


def test_the_public_interface_does_the_same(create: CreateRun, runs_dir: Path) -> None:
    folder = ended(saved(create(), 5, 10))
    run = interface.find_run("tiny", runs_dir=runs_dir)
    assert run.tag("a", "b", remove=["b"]).tags == ("a",)
    assert run.note("words").note == "words"
    assert run.rename("champion").name == "champion"
    assert run.archive().archived
    assert interface.find_run("champion", runs_dir=runs_dir).labels() == run.labels()
    assert run.delete_checkpoints(keep_last=1) == [5]
    run.delete()
    with pytest.raises(RunNotFound):
        interface.find_run("champion", runs_dir=runs_dir)
    assert interface.undelete("champion", runs_dir=runs_dir) == [folder.path]
    lease = Lease.acquire(folder, launch_id="l2")
    with refused("run_is_active"):
        run.delete()
    lease.release()
    interface.delete("champion", runs_dir=runs_dir)
    assert interface.prune(older_than=3600, runs_dir=runs_dir) == 0
    assert interface.prune(runs_dir=runs_dir) > 1000
    with refused("run_not_found", kind=RunNotFound):
        interface.undelete("champion", runs_dir=runs_dir)
