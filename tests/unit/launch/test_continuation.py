"""A job file that was edited and run again: which run goes on, which does not, and what its name means."""

from __future__ import annotations

import json
import os
import pty
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.event_log import append_event, lines_of
from support.refused import refused

from orchestrator.api.starts.continuation import StartOptions, run_continued
from orchestrator.api.starts.reporter import Answer, Reporter
from orchestrator.fields.resume import AtTheStart
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.launch.continuation import find_continuation, with_unwritten
from orchestrator.launch.runs import add_generation, all_runs, create_run, find_run
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved, load_text
from orchestrator.spec.schema.shape import declared

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]


@pytest.fixture
def write(tmp_path: Path, make_job: MakeJob) -> Callable[..., Path]:
    """write(**changes): job.yaml, edited."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "job.yaml"
        path.write_text(make_job(**changes).model_dump_json(exclude_unset=True))
        return path

    return write


def saved(run: RunDir, iteration: int, samples: int | None = None, size: int = 0) -> RunDir:
    """A run that was started and has a checkpoint."""
    append_event(run, "started", iteration=0)
    folder = run.checkpoint(iteration)
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(size))
    write_commit(folder, iteration=iteration, consumed_samples=samples or 2 * iteration, files={})
    return run


def completed(run: RunDir, iteration: int) -> RunDir:
    saved(run, iteration)
    append_event(run, "launched", launch_id="l1", host="elsewhere")
    append_event(run, "exited", launch_id="l1", code=0, cause="completed", message="", iteration=iteration)
    return run


def text_of(job: JobSpec) -> str:
    return job.model_dump_json(exclude_unset=True)


def made(job: JobSpec, runs_dir: Path) -> RunDir:
    return create_run(job, text_of(job), runs_dir)


def continued(job: JobSpec, runs_dir: Path, **named: Any) -> tuple[RunDir, list[str], bool] | None:
    """(run, keys that changed, whether it goes on unasked)."""
    found = find_continuation(job, text_of(job), runs_dir, **named)
    return None if found is None else (found.run, [change.path for change in found.changes], found.is_settled)


def test_an_edited_safe_key_goes_on_where_the_run_stands(
    orchestrator: Orchestrator, write: Callable[..., Path], runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@12")
    assert orchestrator("run", write())[0] == 1
    [run] = all_runs(runs_dir)
    monkeypatch.delenv("FAKE_END")
    code, out, _ = orchestrator("run", write(checkpoint={"save_interval": 5, "keep_last": 9}))
    assert code == 0
    assert "checkpoint.keep_last: 3 -> 9" in out
    assert all_runs(runs_dir) == [run]
    assert [event["iteration"] for event in lines_of(run) if event["event"] == "resumed"] == [10]
    assert load_resolved(run.resolved()).checkpoint.keep_last == 9
    code, out, _ = orchestrator("run", write(checkpoint={"save_interval": 5, "keep_last": 4}))
    assert (code, "has completed already" in out, "checkpoint.keep_last: 9 -> 4" in out) == (0, True, True)
    code, out, _ = orchestrator("run", write(schedule__train_iters=25))
    assert code == 0
    assert "schedule.train_iters: 20 -> 25" in out, "a completed run is made longer"
    assert all_runs(runs_dir) == [run]


@pytest.mark.parametrize(("command", "as_json"), [("run", False), ("run", True), ("submit", False), ("submit", True)])
@pytest.mark.usefixtures("lab")
def test_other_edits_start_nothing_unasked(
    orchestrator: Orchestrator,
    write: Callable[..., Path],
    make_job: MakeJob,
    runs_dir: Path,
    command: str,
    as_json: bool,
) -> None:
    run = saved(made(make_job(), runs_dir), 10)
    before = sorted(run.path.rglob("*")), lines_of(run)
    options = ["--json"] if as_json else []
    for changes, forbidden in (({"optimizer__lr": 2e-3}, False), ({"model": {**MODEL, "num_layers": 4}}, True)):
        code, out, err = orchestrator(command, write(**changes), *options, *(["--allow-changes"] if forbidden else []))
        said = json.loads(out) if as_json else {"message": err}
        assert (code, said.get("error", "SpecChanged")) == (2, "SpecChanged")
        key = "model.num_layers: 2 -> 4" if forbidden else "optimizer.lr: 0.001 -> 0.002"
        assert key in said["message"]
        assert "--new" in said["message"]
        assert ("--allow-changes" in said["message"]) is not forbidden
    assert all_runs(runs_dir) == [run]
    assert (sorted(run.path.rglob("*")), lines_of(run)) == before
    assert orchestrator(command, write(), "--new", "--allow-changes")[0] == 2


MODEL = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 256}


def test_both_ways_out(
    orchestrator: Orchestrator, write: Callable[..., Path], runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@7")
    assert orchestrator("run", write())[0] == 1
    [first] = all_runs(runs_dir)
    monkeypatch.delenv("FAKE_END")
    edited = write(optimizer__lr=2e-3)
    assert orchestrator("run", edited, "--new")[0] == 0
    first_of_two, second = all_runs(runs_dir)
    assert first_of_two == first
    assert find_run("tiny", runs_dir) == second
    code, out, _ = orchestrator("run", write(optimizer__lr=3e-3), "--allow-changes")
    assert code == 0, "the run that was started last is the one"
    assert "optimizer.lr: 0.002 -> 0.003" in out
    assert orchestrator("run", write())[0] == 0
    assert find_run("tiny", runs_dir) == first, "started last, though it was made first"
    assert len(all_runs(runs_dir)) == 2


def test_which_run_goes_on(make_job: MakeJob, runs_dir: Path) -> None:
    first = saved(made(make_job(), runs_dir), 10)
    other = saved(made(make_job(optimizer__lr=2e-3), runs_dir), 5)
    safe = make_job(checkpoint={"save_interval": 5, "keep_last": 9})
    assert continued(make_job(), runs_dir) == (first, [], True)
    assert continued(safe, runs_dir) == (first, ["checkpoint.keep_last"], True)
    assert continued(make_job(optimizer__lr=3e-3), runs_dir) == (other, ["optimizer.lr"], False), "the last chosen"
    assert continued(make_job(schedule__train_iters=40), runs_dir) == (
        other,
        ["optimizer.lr", "schedule.train_iters"],
        False,
    )
    append_event(first, "launched", launch_id="l2", host="elsewhere")
    assert continued(make_job(optimizer__lr=3e-3), runs_dir) == (first, ["optimizer.lr"], False)
    assert find_run("tiny", runs_dir) == first
    append_event(other, "launched", launch_id="7.0", job_id="7")
    assert find_run("tiny", runs_dir) == first, "a cluster chose that moment, not a person"
    append_event(other, "submitted", job_id="8")
    assert find_run("tiny", runs_dir) == other
    assert continued(make_job(name="else"), runs_dir) is None


def test_what_decides_how_a_training_begins_is_asked_for(make_job: MakeJob, runs_dir: Path) -> None:
    """Safe for a run that goes on; but another seed is another training for who starts one."""
    run = saved(made(make_job(runtime={"device": "cpu", "seed": 1}), runs_dir), 10)
    assert continued(make_job(runtime={"device": "cpu", "seed": 2}), runs_dir) == (run, ["runtime.seed"], False)
    by_start = {"checkpoint.pretrained", "checkpoint.upcycle", "model.init_method_std", "runtime.seed"}
    assert {path for path, _ in declared(AtTheStart)} == by_start


def test_a_completed_run_goes_on_where_its_length_grew(make_job: MakeJob, runs_dir: Path) -> None:
    run = completed(made(make_job(), runs_dir), 20)
    assert continued(make_job(schedule__train_iters=40), runs_dir) == (run, ["schedule.train_iters"], True)
    shorter = continued(make_job(schedule__train_iters=10), runs_dir)
    assert shorter == (run, ["schedule.train_iters"], False)
    in_samples = continued(make_job(schedule={"train_samples": 80}), runs_dir)
    assert in_samples == (run, ["schedule.train_iters", "schedule.train_samples"], True)


def marker_of(run: RunDir, iteration: int) -> Path:
    return run.checkpoint(iteration) / "commit.json"


def as_a_pipe(marker: Path) -> None:
    marker.unlink()
    os.mkfifo(marker)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "no marker": Path.unlink,
    "a marker that is a pipe": as_a_pipe,
    "half a marker": lambda marker: marker.write_text('{"iteration": 20,'),
    "no checkpoint": lambda marker: shutil.rmtree(marker.parent),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_run_that_has_lost_what_it_saved_is_not_trained_again_unasked(
    make_job: MakeJob, runs_dir: Path, damage: Callable[[Path], object]
) -> None:
    done = completed(made(make_job(), runs_dir), 20)
    damage(marker_of(done, 20))
    safe, other = make_job(checkpoint={"save_interval": 5, "keep_last": 9}), make_job(optimizer__lr=2e-3)
    longer = make_job(schedule__train_iters=40)
    assert continued(safe, runs_dir) == (done, ["checkpoint.keep_last"], True), "it has completed all the same"
    for job, change in ((other, "optimizer.lr"), (longer, "schedule.train_iters")):
        assert continued(job, runs_dir) == (done, [change], False)
    append_event(done, "checkpoint_saved", iteration=20, seconds=1.0, bytes=1)
    append_event(done, "launched", launch_id="l2", host="elsewhere")
    append_event(done, "exited", launch_id="l2", code=1, cause="exception", message="", iteration=22)
    for job, change in ((other, "optimizer.lr"), (safe, "checkpoint.keep_last")):
        assert continued(job, runs_dir) == (done, [change], False)
    done.resolved().unlink()
    for job in (make_job(), other):
        with refused("unreadable_stored_spec", "iteration 20", "--new"):
            continued(job, runs_dir)


@pytest.mark.parametrize("command", ["run", "submit"])
@pytest.mark.usefixtures("lab")
def test_a_command_starts_nothing_in_place_of_a_run_that_has_lost_what_it_saved(
    orchestrator: Orchestrator,
    write: Callable[..., Path],
    make_job: MakeJob,
    runs_dir: Path,
    command: str,
) -> None:
    run = completed(made(make_job(), runs_dir), 20)
    marker_of(run, 20).unlink()
    for options in ((), ("--allow-changes",)):
        code, _, err = orchestrator(command, write(optimizer__lr=2e-3), *options)
        assert code == 2
        assert f"No whole checkpoint is left of tiny/{run.run_id} to continue from" in err
        assert err.endswith("to start another run, add --new.\n")
    code, out, _ = orchestrator(command, write(checkpoint={"save_interval": 5, "keep_last": 9}))
    assert (code, "has completed already" in out) == (0, True)
    assert all_runs(runs_dir) == [run]


def test_who_can_be_asked_may_start_another_run_but_not_continue_without_a_checkpoint(
    make_job: MakeJob, runs_dir: Path
) -> None:
    run = completed(made(make_job(), runs_dir), 20)
    marker_of(run, 20).unlink()
    asked = []

    class Person(Reporter):
        def choose(self, question: str, answers: Sequence[Answer]) -> Answer:
            asked.append((f"No whole checkpoint is left of tiny/{run.run_id}" in question, answers))
            return "new"

    edited = make_job(optimizer__lr=2e-3)
    loaded = load_text(text_of(edited), "job.yaml", ())
    assert run_continued(loaded, runs_dir, StartOptions(allow_changes=True), Person()) is None
    assert asked == [(True, ("new", "nothing"))]
    scratch = run_continued(loaded, runs_dir, StartOptions(allow_changes=True, from_scratch=True), Person())
    assert scratch is not None
    assert (scratch.run, len(asked)) == (run, 1), "the same run begins again, as it was told to"


def test_a_completed_run_that_has_lost_its_last_checkpoint_is_not_trained_from_the_one_before(
    orchestrator: Orchestrator, write: Callable[..., Path], runs_dir: Path
) -> None:
    assert orchestrator("run", write())[0] == 0
    [run] = all_runs(runs_dir)
    marker_of(run, 20).unlink()
    before = lines_of(run)
    code, out, _ = orchestrator("run", write(checkpoint={"save_interval": 5, "keep_last": 9}))
    assert (code, "has completed already" in out) == (0, True)
    assert (all_runs(runs_dir), lines_of(run)) == ([run], before)
    code, out, err = orchestrator("run", write(schedule__train_iters=25))
    assert code == 0
    assert "commit.json: it was never finished" in out + err
    assert "resumed from the checkpoint of iteration 15" in out


def test_a_run_that_has_nothing_to_go_on_with_is_not_asked_about(make_job: MakeJob, runs_dir: Path) -> None:
    never = made(make_job(), runs_dir)
    safe, other = make_job(checkpoint={"save_interval": 5, "keep_last": 9}), make_job(optimizer__lr=2e-3)
    assert continued(other, runs_dir) is None
    assert continued(safe, runs_dir) == (never, ["checkpoint.keep_last"], True), "it was never started"
    append_event(never, "started", iteration=0)
    assert continued(safe, runs_dir) is None, "it was, and has saved nothing"
    assert continued(safe, runs_dir, from_scratch=True) == (never, ["checkpoint.keep_last"], True)
    saved(never, 5)
    append_event(never, "imported", source="elsewhere")
    assert continued(safe, runs_dir) is None, "weights alone"
    cell = saved(made(make_job(optimizer__lr=5e-3), runs_dir), 5)
    cell.membership.write_text('{"sweep": "rates", "cell": "lr=5e-3"}')
    assert continued(make_job(optimizer__lr=5e-3), runs_dir) == (cell, [], True)
    assert continued(make_job(optimizer__lr=6e-3), runs_dir) is None


def test_a_live_run_is_left_as_it_is(
    orchestrator: Orchestrator, write: Callable[..., Path], make_job: MakeJob, runs_dir: Path
) -> None:
    run = saved(made(make_job(), runs_dir), 5)
    lease = Lease.acquire(run, launch_id="l1")
    try:
        code, out, _ = orchestrator("run", write(checkpoint={"save_interval": 5, "keep_last": 9}), "--json")
    finally:
        lease.release()
    said = json.loads(out)
    assert (code, said["error"]) == (2, "RunIsHeld")
    assert "checkpoint.keep_last: 3 -> 9" in said["message"]
    assert f"orchestrator cancel {run.run_id}" in said["message"]
    assert len(run.resolved_generations()) == 1


def test_a_run_whose_spec_cannot_be_read_does_not_begin_again_under_another(make_job: MakeJob, runs_dir: Path) -> None:
    run = saved(made(make_job(), runs_dir), 15)
    for damage in (lambda: run.resolved().write_text("{"), lambda: run.resolved().unlink()):
        damage()
        with refused("unreadable_stored_spec", "iteration 15", "--new"):
            continued(make_job(optimizer__lr=2e-3), runs_dir)
    other = saved(made(make_job(optimizer__lr=2e-3), runs_dir), 5)
    safe = make_job(optimizer__lr=2e-3, checkpoint={"save_interval": 5, "keep_last": 9})
    assert continued(safe, runs_dir) == (other, ["checkpoint.keep_last"], True)


@pytest.mark.parametrize("name", ["events.jsonl", "lease"])
def test_a_run_that_cannot_be_read_does_not_begin_again_under_another_spec(
    make_job: MakeJob, runs_dir: Path, name: str
) -> None:
    run = completed(made(make_job(), runs_dir), 20)
    (run.path / name).unlink(missing_ok=True)
    os.mkfifo(run.path / name)
    with refused("unreadable_run", f"{run.path / name}", "--new"):
        continued(make_job(optimizer__lr=2e-3), runs_dir)
    other = saved(made(make_job(optimizer__lr=2e-3), runs_dir), 5)
    assert continued(make_job(optimizer__lr=2e-3), runs_dir) == (other, [], True)


def test_a_spec_that_a_resume_changed(make_job: MakeJob, runs_dir: Path) -> None:
    """The file that it began with is another spec by now."""
    run = saved(made(make_job(), runs_dir), 10)
    changed = make_job(optimizer__lr=2e-3)
    add_generation(run, changed, text_of(changed))
    assert continued(make_job(), runs_dir) == (run, ["optimizer.lr"], False)
    assert continued(changed, runs_dir) == (run, [], True)


def test_what_nobody_wrote_is_no_change(make_job: MakeJob) -> None:
    """Defaults and presets differ between versions; the run keeps those that it has."""
    new = make_job()
    old = make_job(optimizer={"lr": 1e-3, "adam_beta2": 0.9}, tracking={"mlflow": False, "log_interval": 7})
    assert with_unwritten(old, new, text_of(new), text_of(new)) == old
    assert with_unwritten(old, new, text_of(old), text_of(new)) == new, "a line that was taken out is a change"
    assert with_unwritten(old, new, text_of(new), text_of(new) + "# --set optimizer.adam_beta2=0.95") == make_job(
        tracking={"mlflow": False, "log_interval": 7}
    )
    assert with_unwritten(old, new, "", text_of(new)) == new, "it is not known what was written"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ((), ("tp=2",), "parallelism.tensor_model_parallel_size"),
        (("tp=2",), (), "parallelism.tensor_model_parallel_size"),
        (("seq=16",), ("seq=8",), "model.seq_length"),
        ((), ("gbs=4",), "batch.global_batch_size"),
        (("tracking.plugins={mine: {a-b: 1}}",), ("tracking.plugins={mine: {a-b: 2}}",), "tracking.plugins"),
    ],
)
def test_what_is_set_by_a_short_name_or_under_a_free_key_is_a_change(
    make_job: MakeJob, before: tuple[str, ...], after: tuple[str, ...], changed: str
) -> None:
    """Neither the field's own name nor the key is a word of what was written."""
    text = make_job().model_dump_json(exclude_unset=True, exclude={"parallelism": True, "model": {"seq_length"}})
    text = text.replace('"model":{', '"model":{"preset":"gpt-tiny",')
    old, new = (load_text(text, "job.yaml", overrides) for overrides in (before, after))
    assert with_unwritten(old.job, new.job, old.text, new.text) == new.job
    assert [change.path for change in diff_jobs(old.job, new.job)] == [changed]


def test_another_preset_is_a_change_of_all_that_it_says(make_job: MakeJob) -> None:
    new, old = make_job(model={**MODEL, "preset": "gpt-tiny"}), make_job(model={**MODEL, "norm_epsilon": 1e-6})
    assert with_unwritten(old, new, "model: {}", "model: {preset: gpt-tiny}") == new


TERMINAL = """
import functools, sys
from orchestrator.cli import run_start
from orchestrator.cli.main import main
from orchestrator.launch.local.restarts import launch_with_restarts
run_start.launch_with_restarts = functools.partial(launch_with_restarts, module="fake_runtime")
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def at_a_terminal(fake_runtime: str, runs_dir: Path) -> Callable[..., tuple[int, str]]:
    """at_a_terminal(arguments, typed) -> (exit code, what was shown)."""

    def run(*arguments: str | Path, typed: str) -> tuple[int, str]:
        pid, terminal = pty.fork()
        if pid == 0:
            os.environ["ORCHESTRATOR_RUNS_DIR"] = str(runs_dir)
            os.execv(sys.executable, [sys.executable, "-c", TERMINAL, *map(str, arguments)])
        shown, deadline = b"", time.monotonic() + 100
        while b"nothing]" not in shown and time.monotonic() < deadline:
            shown += os.read(terminal, 4096)
        os.write(terminal, typed.encode())
        while True:
            try:
                shown += os.read(terminal, 4096)
            except OSError:  # the terminal of a process that has ended
                break
        os.close(terminal)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), shown.decode()

    return run


@pytest.mark.parametrize(
    ("typed", "code", "count"), [("nothing\n", 2, 1), ("\x04", 2, 1), ("x\nc\n", 0, 1), ("n\nnew\n", 0, 2)]
)
def test_a_person_at_a_terminal_is_asked(
    at_a_terminal: Callable[..., tuple[int, str]],
    write: Callable[..., Path],
    make_job: MakeJob,
    runs_dir: Path,
    typed: str,
    code: int,
    count: int,
) -> None:
    run = saved(made(make_job(), runs_dir), 5)
    (run.checkpoint(5) / "loss").write_text("1.0")
    ended, shown = at_a_terminal("run", write(optimizer__lr=2e-3), typed=typed)
    assert (ended, len(all_runs(runs_dir))) == (code, count), shown
    assert "optimizer.lr: 0.001 -> 0.002" in shown
    resumed = load_resolved(run.resolved()).optimizer.lr == 2e-3
    assert resumed is (code == 0 and count == 1)
