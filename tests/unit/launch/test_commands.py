"""The commands around a run, as a person types them; the training program is the fake one."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import append_event, lines_of
from support.gate import Gate
from support.light_forks import ForkedProgram
from support.limits import set_limits
from support.programs import run_instead
from support.refused import refused
from support.stopping import stopped_once_launched
from support.this_machine import Gpus, Libraries

from orchestrator.launch.local.background import start_in_background
from orchestrator.launch.processes.launch_processes import processes_of
from orchestrator.launch.runs import all_runs, find_run
from orchestrator.launch.start_checks import refuse_missing
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.job import JobSpec
from tests.unit.launch.conftest import start_nothing

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]


def only_run(runs_dir: Path) -> RunDir:
    (run,) = all_runs(runs_dir)
    return run


def test_run_then_look_at_it(orchestrator: Orchestrator, job_file: Path, runs_dir: Path) -> None:
    code, out, err = orchestrator("run", job_file)
    assert (code, err) == (0, "")
    run = only_run(runs_dir)
    lines = out.splitlines()
    assert lines[0] == f"new run tiny/{run.run_id} in {run.path}"
    assert lines[1] == "started 2 processes at iteration 0"
    assert lines[-1].startswith(f"run tiny/{run.run_id} completed at iteration 20 of 20: loss 0.")
    assert run.job_yaml.read_text() == job_file.read_text()

    code, out, _ = orchestrator("list")
    header = ["NAME", "RUN", "STATE", "ITERATION", "LOSS", "VALIDATION", "CHECKPOINT", "DISK", "AGE"]
    assert out.splitlines()[0].split() == header
    assert out.splitlines()[1].split()[:4] == ["tiny", run.run_id, "completed", "20/20"]
    assert orchestrator("list", "other")[1] == f"no runs of other in {runs_dir}\n"

    code, out, _ = orchestrator("status", "tiny", "--json")
    status = json.loads(out)
    assert (code, status["state"], status["iteration"], status["train_iters"]) == (0, "completed", 20, 20)
    assert status["checkpoints"] == [5, 10, 15, 20]
    assert (status["goodput"]["launches"], status["goodput"]["lost_steps"]) == (1, 0)
    shown = orchestrator("status", run.run_id[:4])[1]
    assert "state        completed\n" in shown
    assert re.search(r"  goodput      \d+%: 0:00:\d\d of training in 0:0\d:\d\d", shown)

    seconds = {"launch": 1.25, "imports": 2.5, "before_steps": 0.01, "step": 0.5}
    append_event(run, "first_step", launch_id="one", iteration=1, seconds=seconds)
    said = "iteration 1, 4.3 s after the launch (launch 1.2, imports 2.5, step 0.5)"
    assert f"  first step   {said}\n" in orchestrator("status", "tiny")[1]
    assert json.loads(orchestrator("status", "tiny", "--json")[1])["first_step"]["seconds"] == seconds

    _, out, _ = orchestrator("logs", "tiny")
    assert "[1] rank 1 of 2 in launch" in out
    assert orchestrator("logs", "tiny", "--rank", "1", "-n", "1")[1].startswith("rank 1 of 2")
    assert orchestrator("logs", "tiny", "--rank", "7") == (
        2,
        "",
        f"error: run tiny/{run.run_id} has no log of rank 7\n",
    )
    assert "[1] rank 1 of 2" in orchestrator("logs", "tiny", "-f")[1]  # ends by itself: the run has completed
    followed = [json.loads(line) for line in orchestrator("logs", "tiny", "-f", "--json", "-n", "1")[1].splitlines()]
    assert {record["log"] for record in followed} == {"launcher", "0", "1"}
    assert followed[-1]["line"].startswith("rank 1 of 2 in launch")

    _, out, _ = orchestrator("checkpoint", "list", "tiny")
    assert [line.split()[0] for line in out.splitlines()] == ["ITERATION", "5", "10", "15", "20"]
    assert len(json.loads(orchestrator("checkpoint", "list", "tiny", "--json")[1])) == 4

    code, out, _ = orchestrator("cancel", "tiny")
    assert (code, out) == (0, f"run tiny/{run.run_id} does not run: completed\n")


def test_validation_is_shown(
    orchestrator: Orchestrator, make_job: MakeJob, make_run: Callable[[JobSpec], RunDir]
) -> None:
    run = make_run(make_job())
    record = {"time": 1.0, "iteration": 10, "samples": 20, "tokens": 160}
    for values in ({"train/loss": 2.75}, {"validation/loss": 3.25, "validation/wiki/loss": 3.5}):
        append_line(run.metrics_file, {**record, "values": values})
    header, row = (line.split() for line in orchestrator("list")[1].splitlines())
    assert (row[header.index("LOSS")], row[header.index("VALIDATION")]) == ("2.7500", "3.2500")
    assert "validation loss  3.25\n" in orchestrator("status", run.path)[1]


def test_reader_that_leaves_does_not_end_the_training(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path
) -> None:
    """As `orchestrator run job.yaml | head -1`."""
    program = (
        "import functools, sys; from orchestrator.cli import main, run_start; from orchestrator.launch.local.restarts "
        "import launch_with_restarts; run_start.launch_with_restarts = functools.partial(launch_with_restarts, "
        "module='fake_runtime'); sys.exit(main.main(sys.argv[1:]))"
    )
    command = [sys.executable, "-c", program, "run", str(job_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("new run tiny/")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0
    assert status_of(only_run(runs_dir)).state == "completed"


def test_same_spec_again_attaches_and_new_does_not(orchestrator: Orchestrator, job_file: Path, runs_dir: Path) -> None:
    assert orchestrator("run", job_file)[0] == 0
    run = only_run(runs_dir)
    code, out, _ = orchestrator("run", job_file)
    assert code == 0
    assert "has completed already, at iteration 20; nothing was started" in out
    assert orchestrator("run", job_file, "--new")[0] == 0
    assert [each.run_id for each in all_runs(runs_dir)] == [run.run_id, f"{run.run_id}-2"]


def test_failed_run_says_why_and_running_it_again_continues(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "raise@12")
    code, _, err = orchestrator("run", job_file)
    run = only_run(runs_dir)
    assert code == 1
    assert err == (
        f"error: run tiny/{run.run_id} ended at iteration 11 of 20: the training program failed: "
        f"ValueError: the fake has a bug\n      all details: orchestrator logs {run.run_id}\n"
    )
    monkeypatch.delenv("FAKE_END")
    code, out, _ = orchestrator("run", job_file)
    assert code == 0
    assert out.startswith(f"continuing run tiny/{run.run_id} in {run.path} (failed: ")
    assert "resumed from the checkpoint of iteration 10" in out


def test_run_as_json_prints_one_object(
    orchestrator: Orchestrator, job_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "nan@12")
    code, out, err = orchestrator("run", job_file, "--json")
    end = json.loads(out)
    assert (code, err, end["exit_code"], end["state"], end["cause"]) == (1, "", 1, "failed", "nan")
    assert end["message"] == "the loss was NaN in 10 consecutive steps"


def test_stopped_run_says_where_and_how_to_go_on(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_HOLD", "0:nothing-that-comes")
    with stopped_once_launched(runs_dir):
        code, out, err = orchestrator("run", job_file)
    run = only_run(runs_dir)
    assert code == 1
    assert f"run tiny/{run.run_id} stopped at iteration 0 of 20, saved" in err
    assert f"continue with: orchestrator resume {run.run_id}" in err
    assert "stopping at iteration 0 (the test)" in out


def test_render_prints_the_script_that_run_starts(orchestrator: Orchestrator, job_file: Path, runs_dir: Path) -> None:
    code, script, _ = orchestrator("render", job_file)
    assert code == 0
    assert not runs_dir.exists()
    orchestrator("run", job_file)
    run = only_run(runs_dir)
    assert script == run.launch_script.read_text().replace("-m fake_runtime", "-m orchestrator.runtime")
    assert orchestrator("render", job_file)[1] == script
    rendered = json.loads(orchestrator("render", job_file, "--new", "--json")[1])
    assert rendered["run_dir"] == f"{run.path}-2"
    assert rendered["script"] == script.replace(str(run.path), f"{run.path}-2")


def test_verify_names_what_is_damaged(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator("run", job_file)
    run = only_run(runs_dir)
    assert orchestrator("checkpoint", "verify", run.path)[0] == 0
    (run.checkpoint(15) / "loss").write_text("x")
    code, out, err = orchestrator("checkpoint", "verify", run.path)
    assert code == 1
    assert f"{run.checkpoint(15)}/loss is damaged: it has 1 bytes instead of" in err
    assert f"{run.checkpoint(20)}: whole, 1 files" in out
    findings = json.loads(orchestrator("checkpoint", "verify", run.checkpoint(15), "--json")[1])
    assert findings[0]["ok"] is False
    for named in (run.run_id, run.name):
        said = json.loads(orchestrator("checkpoint", "verify", named, "--json")[1])
        assert [(each["path"], each["ok"]) for each in said] == [
            (str(folder), folder != run.checkpoint(15)) for _, folder in run.checkpoint_dirs()
        ]
    monkeypatch.chdir(run.checkpoint(15))
    assert len(json.loads(orchestrator("checkpoint", "verify", ".", "--json")[1])) == 1
    code, out, err = orchestrator("checkpoint", "verify", "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere" in err


def test_unknown_run(orchestrator: Orchestrator) -> None:
    for command in (["status", "x"], ["logs", "x"], ["cancel", "x"], ["resume", "x"], ["checkpoint", "list", "x"]):
        code, out, err = orchestrator(*command)
        assert (code, out) == (2, "")
        assert err.startswith("error: there is no run x: ")


def test_a_folder_that_is_no_run_is_told_what_it_lacks(orchestrator: Orchestrator, tmp_path: Path) -> None:
    folder = tmp_path / "copied"
    folder.mkdir()
    (folder / "events.jsonl").touch()
    for command in (["status", folder], ["logs", folder], ["cancel", folder], ["checkpoint", "list", folder]):
        code, out, err = orchestrator(*command)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {folder} is a folder, but not a run: it has no resolved.json.\n      ")
        assert "Name their folder with --runs-dir" in err


def test_machine_that_refuses_is_one_line(
    orchestrator: Orchestrator, make_job: MakeJob, make_run: Callable[[JobSpec], RunDir]
) -> None:
    run = make_run(make_job())
    Lease.acquire(run, launch_id="a")
    run.stop_file.mkdir()
    assert orchestrator("cancel", run.path) == (1, "", f"error: Is a directory: {run.stop_file}\n")


def test_one_damaged_run_does_not_hide_the_others(
    orchestrator: Orchestrator, make_job: MakeJob, make_run: Callable[[JobSpec], RunDir]
) -> None:
    run, other = make_run(make_job()), make_run(make_job(name="other"))
    run.resolved().write_text("{")
    code, out, _ = orchestrator("list")
    assert code == 0
    assert f"tiny   {run.run_id}  created  0/?" in out
    assert f"other  {other.run_id}  created  0/20" in out


@pytest.mark.parametrize("spec", ["{", '{"name": "tiny", "model": {"num_layers": "two"}}'])
def test_one_damaged_run_does_not_block_the_job(
    spec: str, orchestrator: Orchestrator, job_file: Path, make_job: MakeJob, make_run: Callable[[JobSpec], RunDir]
) -> None:
    damaged = make_run(make_job(optimizer__lr=1e-4))
    damaged.resolved().write_text(spec)
    for command in ("render", "run"):
        code, _, err = orchestrator(command, job_file)
        assert code == 0
        assert err.startswith(f"warning: run tiny/{damaged.run_id} is skipped: {damaged.resolved()}")
        assert len(err.splitlines()) == 1


def test_missing_dependency_is_one_line(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, libraries: Libraries
) -> None:
    libraries.missing("torch", "megatron.core")
    code, _, err = orchestrator("run", job_file)
    assert code == 2
    assert err == (
        "error: training needs torch and megatron-core, which this Python lacks: "
        "pip install 'megatron-orchestrator[train]'\n"
    )
    assert not runs_dir.exists()


def test_missing_data_is_told_before_a_run_is_made(orchestrator: Orchestrator, job_file: Path, runs_dir: Path) -> None:
    wanted = ("data.random_tokens=false", "data.blend=[nowhere]", "model.vocab_size=null")
    code, _, err = orchestrator("run", job_file, *(word for each in wanted for word in ("--set", each)))
    assert code == 2
    assert "no indexed data set at nowhere" in err
    assert not runs_dir.exists()


def test_where_nothing_is_to_be_seen(
    orchestrator: Orchestrator, make_job: MakeJob, make_run: Callable[[JobSpec], RunDir], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for name, said in (("nope", "nope is not there"), ("file", "file is not a folder")):
        code, out, err = orchestrator("list", "--runs-dir", tmp_path / name)
        assert (code, out) == (2, "")
        assert said in err
    run = make_run(make_job())
    code, out, err = orchestrator("logs", run.path)
    assert (code, out) == (0, "")
    assert "has no logs yet" in err
    assert orchestrator("logs", run.path, "-n", "0")[2] == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("launch.env={TOKEN: '${env:NOWHERE_SET}'}", "launch.env.TOKEN: ${env:NOWHERE_SET} is used here"),
        ("runtime.train_step=nowhere.steps:Loss", "runtime.train_step: module nowhere.steps was not found"),
        ("runtime.train_step=json.decoder:Loss", "runtime.train_step: there is no Loss in "),
        ("checkpoint.pretrained=nowhere", "checkpoint.pretrained nowhere: there is no checkpoint and no run at"),
    ],
)
def test_what_this_machine_lacks_is_told_before_a_run_is_made(
    change: str, said: str, orchestrator: Orchestrator, job_file: Path, runs_dir: Path
) -> None:
    code, _, err = orchestrator("run", job_file, "--set", change)
    assert code == 2
    assert said in err
    assert not runs_dir.exists()


def test_cuda_without_a_gpu_is_told_before_a_run_is_made(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, gpus: Gpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_GPUS_ON_NODE", raising=False)
    code, _, err = orchestrator("run", job_file, "--set", "runtime.device=cuda")
    assert code == 2
    assert "runtime.device is cuda, and this machine has no GPU" in err
    assert not runs_dir.exists()
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "1")
    assert "this machine has no GPU" not in orchestrator("run", job_file, "--set", "runtime.device=cuda")[2]


def test_a_folder_of_indices_that_cannot_be_written_is_told_before_a_start(make_job: MakeJob) -> None:
    job = make_job(data={"blend": [{"path": "d"}], "cache_dir": "/dev/null/index"}, model__vocab_size=300)
    with refused("cache_unwritable", "data.cache_dir", "/dev/null/index"):
        refuse_missing(job)


def test_background_run_can_be_followed_and_cancelled(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    make_run: Callable[[JobSpec], RunDir],
    fake_runtime: str,
    until: Callable[..., None],
    step_of: Callable[[RunDir], int],
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = make_run(job := make_job(launch__env=gate.after(2)))
    launch_id = start_in_background(run, job, from_scratch=False, module=fake_runtime)
    until(lambda: step_of(run) == 2)
    assert json.loads(orchestrator("status", "tiny", "--json")[1])["state"] == "running"
    code, out, _ = orchestrator("cancel", "tiny")
    assert code == 0
    assert ": stopped as asked, after saving" in out
    until(lambda: processes_of(launch_id) == {})

    gate.open()
    monkeypatch.setenv("FAKE_STEP_SECONDS", "600")  # in the middle of which nobody stops by himself
    launch_id = start_in_background(run, job, from_scratch=False, module=fake_runtime)
    until(lambda: any(event["event"] == "resumed" for event in lines_of(run)))
    code, out, _ = orchestrator("cancel", "tiny", "--now")
    assert code == 0
    assert ": cancelled (ended at once, without waiting for a save, by orchestrator cancel --now)" in out
    assert orchestrator("list")[1].splitlines()[1].split()[2] == "cancelled"
    assert processes_of(launch_id) == {}


def test_cancel_says_the_end_of_a_run_whose_launcher_cannot(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    make_run: Callable[[JobSpec], RunDir],
    start_launcher: Callable[..., ForkedProgram],
    until: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_limits(monkeypatch, for_the_launcher_to_stop=0.5)
    run = make_run(make_job(launch__env={"FAKE_STEP_SECONDS": "600"}))
    launcher = start_launcher(run)
    until(lambda: any(event["event"] == "started" for event in lines_of(run)))
    launcher.send_signal(signal.SIGSTOP)
    code, out, _ = orchestrator("cancel", "tiny", "--now")
    assert code == 0
    ended = "cancelled (ended at once, without waiting for a save, by orchestrator cancel --now)"
    assert f"run tiny/{run.run_id} before its first step: {ended}" in out
    assert [event["cause"] for event in lines_of(run) if event["event"] == "exited"] == ["cancelled"]


def test_generate_runs_one_replica_and_passes_everything_literally(
    orchestrator: Orchestrator,
    job_file: Path,
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_instead(monkeypatch, "fake_inference", "inference")
    orchestrator("run", job_file)
    run = find_run("tiny", runs_dir)
    code, out, err = orchestrator("generate", "tiny", "--prompt", "--it's $HOME", "--top-k", "5", "--iteration", "10")
    assert (code, err) == (0, "")
    assert out == (f"{run.path} --prompt=--it's $HOME --options={json.dumps({'top_k': 5})} --iteration=10 2 True\n")
    monkeypatch.setenv("MASTER_ADDR", "192.0.2.1")  # of a launcher around the command
    alone = ("--tensor-model-parallel-size", "1")
    code, out, err = orchestrator("generate", "tiny", "--prompt", "--it's $HOME", *alone)
    assert (code, err) == (0, "")
    assert out == f"{run.path} --tensor-model-parallel-size=1 --prompt=--it's $HOME --options={{}} 1 False\n"
    assert orchestrator("generate", "tiny", "--prompt", "x", "--iteration", "7") == (
        2,
        "",
        f"error: run tiny/{run.run_id} has no checkpoint of iteration 7; it has 5, 10, 15, 20\n",
    )
    for words in ((), alone):
        said = orchestrator("generate", "tiny", "--prompt", "too long", *words)
        assert said == (2, "", "error: ask for at most 7 new tokens\n")
        code, _, err = orchestrator("generate", "tiny", "--prompt", "fail", *words)
        assert (code, err) == (1, "error: generation failed: RuntimeError: no such tokenizer\n")


def test_drill_refuses_a_kill_after_the_end(orchestrator: Orchestrator, job_file: Path) -> None:
    code, _, err = orchestrator("drill", job_file, "--iters", "5", "--kill-at", "5")
    assert (code, err) == (2, "error: --kill-at 5 must be before the end, --iters 5\n")
    changes = ("--set", "schedule.train_iters=4", "--set", "checkpoint.save_interval=2")
    code, _, err = orchestrator("drill", job_file, *changes)
    assert (code, err) == (2, "error: --kill-at 5 must be before the end: the job has only 4 steps\n")


def test_an_imported_run_is_no_start_that_failed_to_come(
    orchestrator: Orchestrator, make_job: Callable[..., JobSpec], make_run: Callable[[JobSpec], RunDir]
) -> None:
    run = make_run(make_job())
    append_event(run, "imported", source="gpt2")
    assert orchestrator("list")[1].splitlines()[1].split()[:4] == ["tiny", run.run_id, "imported", "-"]
    said = orchestrator("status", "tiny")[1]
    assert f"start a job from it, with checkpoint.pretrained: {run.path}" in said
    assert "orchestrator resume" not in said


def test_submit_starts_a_job_in_the_background_that_no_scheduler_gets(
    orchestrator: Orchestrator, job_file: Path, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_nothing(monkeypatch, "launched-now")
    local = ("submit", job_file, "--set", "launch.executor=local")
    code, script, _ = orchestrator(*local, "--dry-run")
    assert (code, all_runs(runs_dir)) == (0, [])
    assert "torch.distributed.run" in script
    code, _, err = orchestrator(*local, "--after", "another")
    assert code == 2, err
    code, out, err = orchestrator(*local, "--json")
    assert code == 0, err
    assert json.loads(out)["launch_id"] == "launched-now"
    assert len(all_runs(runs_dir)) == 1
