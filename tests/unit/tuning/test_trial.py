"""Running a layout for some steps: what is counted, what is kept, and what an end of another kind means."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import QUICK_TORCHRUN
from support.limits import set_limits
from support.refusals import fail_at
from support.refused import refused

from orchestrator.launch.local.launcher import Watcher
from orchestrator.launch.processes.stop_request import request_stop
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir, append_line, read_lines
from orchestrator.spec.job import JobSpec
from orchestrator.tuning.layout import layout_of
from orchestrator.tuning.trial import WARM_UP, Trials, trial_job, tune_name

MakeJob = Callable[..., JobSpec]


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trials:
    """Trials of a program that trains nothing and says that each step took FAKE_STEP_SECONDS."""
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parents[1] / 'launch'}:{QUICK_TORCHRUN}")
    monkeypatch.setenv("FAKE_STEP_SECONDS", "0.02")
    return Trials(tmp_path / "runs", 300, steps=5, module="fake_runtime")


def test_a_trial_trains_the_same_layout_and_nothing_beside_it(make_job: MakeJob) -> None:
    job = make_job(
        parallelism={"tensor_model_parallel_size": 2, "sequence_parallel": True},
        batch={"global_batch_size": 16, "rampup_batch_size": [8, 8, 100]},
        evaluation={"eval_interval": 5},
        checkpoint={"save_interval": 5},
        schedule={"train_iters": None, "train_tokens": 10**9, "lr_warmup_fraction": 0.1},
        launch={"env": {"A": "b"}},
    )
    short = trial_job(job, 300, 10)
    assert layout_of(short) == layout_of(job)
    assert (short.global_batch_size, short.world_size) == (job.global_batch_size, job.world_size)
    assert short.model.vocab_size == 300
    assert short.launch.env == {"A": "b"}
    assert short.batch.rampup_batch_size is None
    assert short.checkpoint.save_interval is None
    assert short.evaluation.eval_interval is None
    assert not short.tracking.mlflow
    assert short.name == tune_name(job) == "job-tune"
    assert trial_job(make_job(), 300, 10).config_hash != short.config_hash


def test_a_measured_trial_is_kept_and_known(trials: Trials, make_job: MakeJob) -> None:
    job = make_job()
    assert trials.known(job) is None
    trial = trials.run(job)
    assert (trial.outcome, trial.step_seconds, trial.steps) == ("measured", 0.02, 5)
    assert (trial.fastest, trial.slowest, trial.peak_bytes) == (0.02, 0.02, None)
    assert trials.known(job) == trial
    assert trials.known(make_job(batch={"micro_batch_size": 2})) is None, "another layout"
    assert Trials(trials.runs_dir, 300, steps=6).known(job) is None, "more steps"
    [record] = read_lines(trials.kept_in(job))
    assert record["layout"]["parallelism"]["tensor_model_parallel_size"] == 1
    assert os.listdir(trials.kept_in(job).parent) == ["measured.jsonl"], "nothing else is left, no checkpoint either"
    del record["key"]["memory"]
    trials.kept_in(job).unlink()
    append_line(trials.kept_in(job), record)
    assert trials.known(job) is None, "of a version whose runs took memory in another way"


def test_what_other_versions_measured_is_not_known(
    trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials.run(make_job())
    monkeypatch.setattr("orchestrator.tuning.trial.versions", lambda: {"torch": "0.4"})
    assert trials.known(make_job()) is None


def test_running_out_of_memory_is_a_result(trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_END", "memory@2")
    trial = trials.run(make_job())
    assert trial.outcome == "out_of_memory"
    assert "CUDA out of memory" in trial.message
    assert trials.known(make_job()) == trial


def test_another_failure_leaves_its_logs_and_is_tried_again(
    trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "nan@2")
    trial = trials.run(make_job())
    assert trial.outcome == "failed"
    [logs] = trials.runs_dir.glob("job-tune/*/logs")
    assert str(logs) in trial.message
    assert trials.known(make_job()) is None


def test_what_cannot_be_started_here_is_refused(trials: Trials, make_job: MakeJob) -> None:
    with refused("missing_python", "no-such-python"):
        trials.run(make_job(launch={"python": "no-such-python"}))
    assert not list(trials.runs_dir.glob("job-tune/*"))


def test_an_interrupt_ends_the_trial_without_saving(
    trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STEP_SECONDS", "600")
    over = threading.Event()
    interrupt = threading.Thread(target=_interrupt_when_started, args=(trials.runs_dir, over))
    interrupt.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            trials.run(make_job())
    finally:
        over.set()  # from here on the signal would end the tests
        interrupt.join()
    assert trials.known(make_job()) is None
    assert not list(trials.runs_dir.glob("job-tune/*"))


def _interrupt_when_started(runs_dir: Path, over: threading.Event) -> None:
    while not over.wait(0.02):
        if any('"started"' in events.read_text() for events in runs_dir.glob("job-tune/*/events.jsonl")):
            os.kill(os.getpid(), signal.SIGINT)
            return


def test_an_interrupt_before_the_start_leaves_nothing(
    trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_at(monkeypatch, "orchestrator.tuning.trial.launch", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        trials.run(make_job())
    assert not list(trials.runs_dir.glob("job-tune/*"))


def test_an_interrupt_while_a_trial_ends_keeps_it_and_is_heard(
    trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(run: RunDir, job: JobSpec, *, watcher: Watcher, module: str) -> Exit:
        for iteration in range(1, WARM_UP + trials.steps + 1):
            record = {"time": 1.0, "iteration": iteration, "samples": iteration, "tokens": iteration}
            append_line(run.metrics_file, {**record, "values": {"throughput/step_seconds": 0.5}})
        watcher.poll()
        request_stop(run, "SIGINT")
        watcher.poll()
        return Exit("killed", "", 8, 1)

    monkeypatch.setattr("orchestrator.tuning.trial.launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        trials.run(make_job())
    known = trials.known(make_job())
    assert known is not None
    assert known.step_seconds == 0.5
    assert os.listdir(trials.kept_in(make_job()).parent) == ["measured.jsonl"]


def test_slow_steps_need_not_be_many(trials: Trials, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HOLD", "10:nothing-that-comes")
    set_limits(monkeypatch, enough_to_measure=0.05)
    trial = Trials(trials.runs_dir, 300, steps=100, module="fake_runtime").run(make_job())
    assert trial.outcome == "measured"
    assert 3 <= trial.steps <= 10 - WARM_UP
