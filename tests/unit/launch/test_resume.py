"""`orchestrator resume`, as a person types it; the training program is the fake one."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import append_event, lines_of
from support.gate import Gate
from support.light_forks import ForkedProgram
from support.refusals import before

from orchestrator.launch.processes.launch_processes import ranks_of
from orchestrator.launch.runs import all_runs
from orchestrator.launch.states.run_states import status_of
from orchestrator.process import Process
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]


def failing_run(orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run that failed at step 12, after a checkpoint at step 10."""
    monkeypatch.setenv("FAKE_END", "raise@12")
    assert orchestrator("run", job_file)[0] == 1
    monkeypatch.delenv("FAKE_END")
    return all_runs(runs_dir)[0]


def test_held_run_is_refused(orchestrator: Orchestrator, job_file: Path, runs_dir: Path) -> None:
    assert orchestrator("run", job_file)[0] == 0
    run = all_runs(runs_dir)[0]
    lease = Lease.acquire(run, launch_id="x")
    # A run that has not completed, so that the same spec would go on with it.
    append_event(run, "launched", launch_id="x", **Process.current().to_record())
    code, out, err = orchestrator("run", job_file)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: run {run.run_id} is held by pid {os.getpid()} on {os.uname().nodename} since")
    assert f"stop it with `orchestrator cancel {run.run_id}`" in err
    code, _, err = orchestrator("resume", "tiny", "--set", "schedule.train_iters=25", "--allow-changes")
    assert code == 2
    assert f"error: run {run.run_id} is held by pid {os.getpid()} on {os.uname().nodename} since" in err
    assert len(run.resolved_generations()) == 1
    lease.release()


def test_resume_continues(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    code, out, _ = orchestrator("resume", "tiny")
    assert code == 0
    assert out.startswith(f"resuming run tiny/{run.run_id} in {run.path} (failed: the training program failed")
    assert "resumed from the checkpoint of iteration 10" in out
    assert status_of(run).state == "completed"
    said = orchestrator("resume", "tiny")[1]
    assert "has completed already" in said
    assert f"orchestrator resume {run.run_id} --set schedule.train_iters=… --allow-changes" in said
    again = said.partition("as another run: orchestrator ")[2].splitlines()[0]
    assert orchestrator(*again.split())[0] == 0
    assert [run.run_id for run in all_runs(runs_dir)] == [run.run_id, f"{run.run_id}-2"]


@pytest.mark.parametrize("key", ["train_samples", "train_tokens"])
def test_a_completed_run_is_made_longer_by_the_key_of_its_spec(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, key: str
) -> None:
    assert orchestrator("run", job_file)[0] == 0
    resolved = all_runs(runs_dir)[0].resolved()
    record = json.loads(resolved.read_bytes())
    record["schedule"] |= {"train_iters": None, key: 1000}
    resolved.write_text(json.dumps(record))
    assert f"--set schedule.{key}=… --allow-changes" in orchestrator("resume", "tiny")[1]


@pytest.mark.parametrize("content", ["{", "[]", '{"name": 1}'])
def test_a_run_without_a_readable_spec_says_which_file_and_the_way_out(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, content: str
) -> None:
    assert orchestrator("run", job_file)[0] == 0
    [run] = all_runs(runs_dir)
    run.resolved().write_text(content)
    code, _, err = orchestrator("resume", run.path)
    assert code == 2
    assert f"run tiny/{run.run_id} cannot be continued: {run.resolved()}" in err
    command = err.partition("Restore that file, or start another run at iteration 0 with `orchestrator ")[2]
    words = command.partition("`")[0].replace("JOB.yaml", str(run.job_yaml)).split()
    assert orchestrator(*words)[0] == 0
    assert len(all_runs(runs_dir)) == 2


def test_resume_with_changes_shows_them_by_class(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)

    code, out, err = orchestrator("resume", "tiny", "--set", "model.num_layers=4")
    assert code == 2
    assert "forbidden: this run cannot continue with it\n  model.num_layers: 2 -> 4" in out
    assert "this run cannot be continued with that spec" in err
    again = f"orchestrator run {run.resolved()} --set model.num_layers=4 --new --runs-dir {runs_dir}"
    assert err.endswith(f"\n      To train it as another run, from the start: {again}\n")

    code, out, err = orchestrator("resume", "tiny", "--set", "optimizer.lr=2e-3", "--set", "checkpoint.keep_last=9")
    assert code == 2
    assert "changes the trajectory" in out
    assert "  optimizer.lr: 0.001 -> 0.002" in out
    assert out.index("optimizer.lr") < out.index("safe\n  checkpoint.keep_last: 3 -> 9")
    assert "add --allow-changes" in err
    assert len(run.resolved_generations()) == 1

    code, _, _ = orchestrator("resume", "tiny", "--set", "optimizer.lr=2e-3", "--allow-changes")
    assert code == 0
    assert json.loads((run.path / "resolved.2.json").read_text())["optimizer"]["lr"] == 2e-3
    assert json.loads((run.path / "resolved.json").read_text())["optimizer"]["lr"] == 1e-3
    assert (run.path / "job.2.yaml").read_text() == f"# --set optimizer.lr=2e-3\n{job_file.read_text()}"


def test_other_batches_move_the_end_and_every_display_says_where_to(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """20 steps of 4 are 80 samples, of which 20 are done at step 10: 15 more steps."""
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    monkeypatch.setenv("FAKE_END", "raise@12")
    code, out, _ = orchestrator("resume", "tiny", "--set", "batch.global_batch_size=4", "--allow-changes")
    assert code == 1
    said = "it ends at iteration 25: 20 steps with this spec are 80 samples in total, and 20 are done at iteration 10"
    assert said in out
    assert "iteration 11/25" in out
    assert " of 25\n" in orchestrator("status", run.run_id)[1]
    assert "/25 " in orchestrator("list")[1]


@pytest.mark.parametrize("change", ["batch.global_batch_size=1", "schedule.train_iters=9"])
def test_resume_with_nothing_left_to_train_is_refused(
    change: str, orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A smaller batch makes the same number of steps a shorter training, which must not end in silence."""
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    code, _, err = orchestrator("resume", "tiny", "--set", change, "--allow-changes")
    assert code == 2
    assert "nothing was started" in err
    assert "20 are done at iteration 10" in err
    assert "write a longer schedule.train_iters" in err
    assert len(run.resolved_generations()) == 1
    exact = ("--set", "schedule.train_iters=10", "--allow-changes")
    assert orchestrator("resume", "tiny", *exact)[0] == 0, "it may end exactly where it stands"


def test_resume_under_another_name_is_another_job(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    code, _, err = orchestrator("resume", "tiny", "--set", "name=other", "--allow-changes")
    assert code == 2
    assert "name: another name is another job, whose runs have a folder of their own" in err
    assert len(run.resolved_generations()) == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["launch.template={folder}/broken.j2"], "broken.j2:1: the launch template is wrong"),
        (["data.random_tokens=false", "data.blend=[nowhere]"], "no indexed data set at nowhere"),
    ],
)
def test_resume_that_cannot_start_leaves_the_spec_as_it_was(
    changes: list[str],
    said: str,
    orchestrator: Orchestrator,
    job_file: Path,
    tmp_path: Path,
    make_job: MakeJob,
    make_run: Callable[[JobSpec], RunDir],
) -> None:
    (tmp_path / "broken.j2").write_text("{% if %}")
    run = make_run(make_job(model__vocab_size=261))
    words = [f"--set={change.format(folder=tmp_path)}" for change in changes]
    code, out, err = orchestrator("resume", run.path, *words, "--allow-changes")
    assert code == 2
    assert said in err
    assert "resuming" not in out
    assert len(run.resolved_generations()) == 1


def test_resume_with_changes_waits_for_the_ranks_of_a_killed_launcher(
    orchestrator: Orchestrator,
    monkeypatch: pytest.MonkeyPatch,
    gate: Gate,
    make_job: MakeJob,
    make_run: Callable[[JobSpec], RunDir],
    start_launcher: Callable[..., ForkedProgram],
    until: Callable[..., None],
    step_of: Callable[[RunDir], int],
) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600")  # a rank that is stopped is not killed meanwhile
    run = make_run(make_job(launch__env=gate.after(2)))
    launcher = start_launcher(run)
    until(lambda: step_of(run) == 2)
    [launched] = (event for event in lines_of(run) if event["event"] == "launched")
    rank = ranks_of(launched["launch_id"])[0]
    os.kill(rank, signal.SIGSTOP)
    launcher.kill()
    launcher.wait()
    looks = 0

    def look(run: RunDir) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            gate.open()
            os.kill(rank, signal.SIGCONT)

    before(monkeypatch, "orchestrator.api.starts.previous_launch.read_holder", look)
    code, out, err = orchestrator("resume", run.path, "--set=schedule.train_iters=10", "--allow-changes")
    assert (code, err) == (0, "")
    assert "the processes of the last start are still saving and stopping: waiting for them" in out
    assert len(run.resolved_generations()) == 2


def test_resume_with_a_changed_file(
    orchestrator: Orchestrator,
    job_file: Path,
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    make_job: MakeJob,
) -> None:
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    changed = job_file.with_name("changed.yaml")
    changed.write_text(make_job(checkpoint__keep_last=7).model_dump_json(exclude_unset=True))
    assert orchestrator("resume", run.run_id, changed)[0] == 0
    assert (run.path / "job.2.yaml").read_text() == changed.read_text()


@pytest.mark.parametrize("words", [["resume"], ["resume", "--detach"], ["run"]])
def test_start_that_would_lose_everything_is_refused_before_its_ranks_start(
    words: list[str], orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@3")
    orchestrator("run", job_file)
    monkeypatch.delenv("FAKE_END")
    run = all_runs(runs_dir)[0]
    before = lines_of(run)
    code, _, err = orchestrator(*words, run.path if words[0] == "resume" else job_file)
    assert code == 2
    assert "has no checkpoint to continue from; nothing was started or changed.\n      To begin again" in err
    assert lines_of(run) == before


def test_a_run_goes_on_from_the_newest_whole_checkpoint_and_says_so(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    (run.checkpoint(10) / "commit.json").unlink()
    code, out, err = orchestrator("run", job_file)
    assert code == 0
    assert "iter_0000010 has no commit.json: it was never finished" in out + err
    assert "resumed from the checkpoint of iteration 5" in out


@pytest.mark.parametrize("changes", [(), ("--set", "checkpoint.keep_last=9"), ("--set", "optimizer.lr=2e-3")])
def test_a_run_whose_checkpoints_are_all_damaged_is_neither_trained_again_nor_changed(
    orchestrator: Orchestrator,
    job_file: Path,
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: tuple[str, ...],
) -> None:
    run = failing_run(orchestrator, job_file, runs_dir, monkeypatch)
    for iteration in (5, 10):
        (run.checkpoint(iteration) / "commit.json").unlink()
    before = lines_of(run)
    code, _, err = orchestrator("run", job_file, *changes)
    assert code == 2
    assert "to continue from" in err
    assert (all_runs(runs_dir), lines_of(run), len(run.resolved_generations())) == ([run], before, 1)


def test_advice_after_a_nan_without_a_checkpoint_works_as_it_stands(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "nan@3")
    code, _, err = orchestrator("run", job_file)
    monkeypatch.delenv("FAKE_END")
    run = all_runs(runs_dir)[0]
    advice = f"orchestrator resume {run.run_id} --from-scratch --set optimizer.lr=… --allow-changes"
    assert code == 1
    assert err.count("optimizer.lr") == 2, err  # what to lower, and how
    assert err.rstrip().endswith(advice)
    assert advice in orchestrator("status", run.run_id)[1]

    wanted = ["--set", "optimizer.lr=2e-4", "--allow-changes"]
    code, _, err = orchestrator("resume", run.run_id, *wanted)
    assert code == 2
    assert "add --from-scratch" in err
    assert len(run.resolved_generations()) == 1, "a refused resume leaves the spec as it was"
    assert (status_of(run).state, status_of(run).cause) == ("failed", "nan")

    code, out, _ = orchestrator(*advice.replace("…", "2e-4").split()[1:])
    assert code == 0
    assert json.loads((run.path / "resolved.2.json").read_text())["optimizer"]["lr"] == 2e-4
    assert "completed at iteration 20" in out


def test_advice_after_a_checkpoint_goes_on_from_it(
    orchestrator: Orchestrator, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "nan@7")
    _, _, err = orchestrator("run", job_file)
    assert "--set optimizer.lr=… --allow-changes" in err
    assert "--from-scratch" not in err


def test_status_says_what_a_resume_would_lose(
    orchestrator: Orchestrator, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def told() -> tuple[str, int]:
        lines = orchestrator("status", "tiny")[1].splitlines()
        unsaved = json.loads(orchestrator("status", "tiny", "--json")[1])["unsaved_steps"]
        return next(line.removeprefix("  launches     ") for line in lines if "launches" in line), unsaved

    monkeypatch.setenv("FAKE_END", "kill0@13")
    assert orchestrator("run", job_file, "--set", "launch.on_failure.killed=stop")[0] == 1
    assert told() == ("1, 0 steps lost; a resume loses 2 more, which no checkpoint has", 2)
    monkeypatch.setenv("FAKE_END", "kill0@11")  # in its first step: what was measured before is lost already
    assert orchestrator("resume", "tiny")[0] == 1
    assert told() == ("2, 2 steps lost", 0)
    monkeypatch.setenv("FAKE_END", "kill0@14")
    assert orchestrator("resume", "tiny")[0] == 1
    assert told() == ("3, 2 steps lost; a resume loses 3 more, which no checkpoint has", 3)
    monkeypatch.delenv("FAKE_END")
    assert orchestrator("resume", "tiny")[0] == 0
    assert told() == ("4, 5 steps lost", 0)
