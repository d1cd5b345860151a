"""A new run that could not be started leaves nothing that would stand for its job's latest run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.fake_slurm import FakeSlurm
from support.light_forks import LightForks
from support.limits import set_limits
from support.refusals import before, fail_at

from orchestrator.launch.runs import all_runs, create_run, find_run
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.spec.job import JobSpec

MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]

NO_SLURM = "sbatch: error: s_p_parse_file: unable to status file /etc/slurm/slurm.conf: No such file or directory"
NO_ANSWER = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"


@pytest.mark.parametrize("detach", [(), ("--detach",)])
@pytest.mark.parametrize("wrong", ["launch.template=nope.j2", "launch.python=/nope/py"])
def test_a_run_that_cannot_be_started_here(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    job_file: Path,
    runs_dir: Path,
    wrong: str,
    detach: tuple[str, ...],
) -> None:
    good = create_run(make_job(), "", runs_dir)
    code, _, err = orchestrator("run", job_file, "--set", wrong, *detach)
    assert (code, wrong.partition("=")[2] in err) == (2, True)
    assert all_runs(runs_dir) == [good]
    assert find_run("tiny", runs_dir) == good


def test_a_run_that_was_there_before_stays(
    orchestrator: Orchestrator, make_job: MakeJob, tmp_path: Path, runs_dir: Path
) -> None:
    job = make_job(launch__python="/nope/py")
    run = create_run(job, "", runs_dir)
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    assert orchestrator("run", tmp_path / "job.yaml")[0] == 2
    assert all_runs(runs_dir) == [run]


@pytest.mark.parametrize(
    "moment", ["orchestrator.cli.runs.run.start", "orchestrator.cli.run_start.launch_with_restarts"]
)
@pytest.mark.parametrize("is_new", [True, False])
def test_a_run_that_is_stopped_before_it_is_launched(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    job_file: Path,
    runs_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    is_new: bool,
) -> None:
    if not is_new:
        create_run(make_job(), "", runs_dir)

    fail_at(monkeypatch, moment, KeyboardInterrupt())
    code, out, err = orchestrator("run", job_file)
    assert (code, out.startswith("new run tiny/") is is_new) == (130, True)
    assert ("stopped before it started; run tiny/" in err) is is_new
    assert len(all_runs(runs_dir)) == int(not is_new)


STANDS_STILL = """
import sys, time
from orchestrator.cli import run_start
from orchestrator.cli.main import main
from orchestrator.cli.runs import run
from orchestrator.launch import runs

def stand_still(*arguments, **named):
    print("there", flush=True)
    time.sleep(600)

setattr({moment}, stand_still)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("moment", "said"),
    [
        ("runs, 'code_state'", ""),
        ("run, 'start'", "stopped before it started; run tiny/{} was removed again\n"),
        ("run_start, 'launch_with_restarts'", "stopped before it started; run tiny/{} was removed again\n"),
    ],
)
def test_a_signal_before_the_launch_leaves_nothing(
    make_job: MakeJob,
    job_file: Path,
    runs_dir: Path,
    tmp_path: Path,
    light_forks: LightForks,
    until: Callable[..., None],
    moment: str,
    said: str,
    number: signal.Signals,
) -> None:
    runs_dir.mkdir()
    (tmp_path / "stands_still.py").write_text(STANDS_STILL.format(moment=moment))
    command, env = (
        ("stands_still", "run", job_file, f"--runs-dir={runs_dir}"),
        {**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    out, err = tmp_path / "out", tmp_path / "err"
    with open(out, "wb") as output, open(err, "wb") as errors:
        process = light_forks.start(*command, env=env, output=output, errors=errors)
    with contextlib.closing(process):
        until(lambda: "there" in out.read_text().splitlines() or process.poll() is not None)
        assert list(runs_dir.glob("tiny/*"))
        process.send_signal(number)
        assert (process.wait(100), err.read_text()) == (130, said.format(make_job().config_hash[:8]))
    assert not list(runs_dir.iterdir())


def test_a_run_that_is_refused_is_not_called_new(
    orchestrator: Orchestrator, make_job: MakeJob, tmp_path: Path, runs_dir: Path
) -> None:
    job = make_job(launch={"nodes": 2, "gpus_per_node": 1})
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    code, out, err = orchestrator("run", tmp_path / "job.yaml")
    assert (code, out) == (2, "")
    assert "start it on the first one, with MASTER_ADDR set" in err
    assert not list(runs_dir.iterdir())


@pytest.mark.parametrize("command", [("run",), ("render",), ("submit", "--dry-run")])
@pytest.mark.usefixtures("lab")
def test_a_spec_whose_run_has_lost_it(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    job_file: Path,
    runs_dir: Path,
    command: tuple[str, ...],
) -> None:
    run = create_run(make_job(), "", runs_dir)
    run.resolved().unlink()
    run.checkpoint(20).mkdir(parents=True)
    write_commit(run.checkpoint(20), iteration=20, consumed_samples=40, files={})
    code, out, err = orchestrator(*command, job_file)
    assert (code, out) == (2, "")
    assert "or start another run at iteration 0 with --new" in err
    assert list(run.path.parent.iterdir()) == [run.path]


@pytest.mark.parametrize("is_changed", [False, True])
def test_a_run_for_which_the_disk_has_no_room(is_changed: bool, job_file: Path, runs_dir: Path, tmp_path: Path) -> None:
    """In a repository with modules that git does not track, too, whose record needs room for a while."""
    runs_dir.mkdir()
    if is_changed:
        subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
        (tmp_path / "new.py").touch()
    words = ["bash", "-c", 'ulimit -f 0; exec "$@"', "-", sys.executable, "-m", "orchestrator", "run", str(job_file)]
    said = subprocess.run([*words, f"--runs-dir={runs_dir}"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    message = f"error: no run can be created in {runs_dir}/tiny: File too large\n"
    assert (said.returncode, said.stderr) == (2, message)
    assert not list(runs_dir.iterdir())


DIES = "print('no room for it', file=sys.stderr, flush=True); os._exit(1)"
HANGS = "print('it hangs', file=sys.stderr, flush=True); open(PIDS, 'a').write(f'{os.getpid()}'); time.sleep(600)"


@pytest.mark.parametrize(("fault", "seconds", "said"), [(DIES, 60.0, "no room for it"), (HANGS, 3.0, "it hangs")])
def test_a_launcher_in_the_background_that_never_launches(
    orchestrator: Orchestrator,
    job_file: Path,
    runs_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    seconds: float,
    said: str,
) -> None:
    pids = tmp_path / "pids"
    launcher = f"import os, sys, time\nPIDS = {str(pids)!r}\nif 'orchestrator.launch' in sys.orig_argv: {fault}\n"
    (tmp_path / "sitecustomize.py").write_text(launcher)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    set_limits(monkeypatch, to_start_in_the_background=seconds)
    code, _, err = orchestrator("run", job_file, "--detach")
    assert (code, f"could not be started in the background: {said}" in err) == (1, True)
    assert not list(runs_dir.iterdir())
    assert fault == DIES or not Path("/proc", pids.read_text()).exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_start_in_the_background_that_is_stopped_ends_its_launcher(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    job_file: Path,
    runs_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: signal.Signals,
    is_new: bool,
) -> None:
    words: tuple[object, ...] = ("run", job_file)
    if not is_new:
        run = create_run(make_job(), "", runs_dir)
        run.checkpoint(5).mkdir(parents=True)
        write_commit(run.checkpoint(5), iteration=5, consumed_samples=10, files={})
        words = ("resume", "tiny")
    pids = tmp_path / "pids"
    launcher = f"import os, sys, time\nPIDS = {str(pids)!r}\nif 'orchestrator.launch' in sys.orig_argv: {HANGS}\n"
    (tmp_path / "sitecustomize.py").write_text(launcher)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    def interrupt(*looked: object) -> None:
        if pids.exists() and pids.read_text():
            signal.raise_signal(number)

    before(monkeypatch, "orchestrator.launch.local.background.launch_id_of", interrupt)
    code, _, err = orchestrator(*words, "--detach")
    assert (code, "stopped before it started" in err) == (130, is_new)
    assert len(all_runs(runs_dir)) == int(not is_new)
    assert not Path("/proc", pids.read_text()).exists()


def test_sigterm_while_data_are_made_ends_that_too(
    make_job: MakeJob, runs_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, until: Callable[..., None]
) -> None:
    """A terminal's Ctrl-C reaches both of them; SIGTERM is sent to one."""
    pids = tmp_path / "pids"
    program = f"import os, sys, time\nPIDS = {str(pids)!r}\nif sys.orig_argv[3] == 'orchestrator.data': {HANGS}\n"
    (tmp_path / "sitecustomize.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("text\n")
    data = {"blend": [{"path": "a", "text": "a.txt"}], "tokenizer": {"type": "byte_level"}, "split": "1,0,0"}
    job = make_job(data=data, model__vocab_size=None)
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    command = [sys.executable, "-m", "orchestrator", "run", "job.yaml", f"--runs-dir={runs_dir}"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        until(lambda: pids.exists() and pids.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(100) == 130
    until(lambda: not Path("/proc", pids.read_text()).exists())
    assert not runs_dir.exists()


@pytest.mark.parametrize(("words", "runs_left"), [(NO_SLURM, 0), (NO_ANSWER, 1)])
@pytest.mark.usefixtures("lab")
def test_only_what_may_be_in_the_queue_stays_after_a_failed_submission(
    orchestrator: Orchestrator,
    job_file: Path,
    runs_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    runs_left: int,
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm")
    slurm.says("sbatch", err=f"{words}\n", code=1)
    monkeypatch.setenv("PATH", str(slurm.bin))
    code, _, err = orchestrator("submit", job_file)
    assert (code, "may be in the queue" in err) == (1, bool(runs_left))
    assert len(all_runs(runs_dir)) == runs_left


REFUSED = "sbatch: error: Batch job submission failed: Requested node configuration is not available"
NO_CANCEL = "scancel: error: slurm_kill_job2() failed: Unable to contact slurm controller (connect failure)"


@pytest.mark.parametrize(
    ("words", "complaint", "code", "said", "runs_left"),
    [
        (REFUSED, "", 2, "", 0),
        (NO_SLURM, "", 1, "", 0),
        (NO_ANSWER, "", 1, "job 11, which makes the data, is in the queue\n", 1),
        (REFUSED, NO_CANCEL, 1, "job 11, which makes the data, is in the queue still, and could not be removed", 1),
    ],
)
@pytest.mark.usefixtures("lab")
def test_a_training_that_is_refused_after_its_data_job_was_taken(
    orchestrator: Orchestrator,
    make_job: MakeJob,
    runs_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    complaint: str,
    code: int,
    said: str,
    runs_left: int,
) -> None:
    slurm = FakeSlurm(tmp_path / "slurm")
    slurm.says(
        "sbatch", err=f"{words}\n", code=1, delay=f"[ -e {tmp_path}/11 ] || {{ : > {tmp_path}/11; echo 11; exit; }}"
    )
    slurm.says("scancel", err=complaint, code=1 if complaint else 0)
    monkeypatch.setenv("PATH", str(slurm.bin))
    (tmp_path / "a.txt").write_text("text\n")
    data = {"blend": [{"path": "data/a", "text": "a.txt"}], "split": "1,0,0"}
    job = make_job(data=data, model__vocab_size=None)
    (tmp_path / "job.yaml").write_text(job.model_dump_json(exclude_unset=True))
    answer = orchestrator("submit", "job.yaml")
    assert (answer[0], said in answer[2]) == (code, True), answer
    assert len(slurm.calls("sbatch")) == 2
    assert slurm.calls("scancel") == ([] if words == NO_ANSWER else [["11"]])
    assert len(all_runs(runs_dir)) == runs_left
