"""Damage, full disks, NaN, hangs: what happens is said, and nothing that was saved is lost."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.faults import PATIENCE, CommandLine, Ranks, snapshot, wait_for_step, wait_until
from support.held import HOLD, hold_at
from support.training import events, exit_record, layout, logs, losses, make_run, tiny_job, values

from orchestrator.launch.processes.launch_processes import processes_of, ranks_of
from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE, committed, verify
from orchestrator.run_directory.exits.causes import by_word_of_the_ranks, cause_of
from orchestrator.run_directory.lease import read_holder
from orchestrator.run_directory.rundir import RunDir, in_command
from orchestrator.spec.job import JobSpec

Inject = Callable[[str], Path]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("starts of real ranks under torchrun take 5 to 10 s each"),
]

LONG = {"schedule": {"train_iters": 100_000}}
TWO = layout(tp=2)
ONE_MICRO_BATCH = {"micro_batch_size": 8}
HANG_TIMEOUT = 8


def flip_a_byte(checkpoint: Path) -> Path:
    """Damage a file of tensors in the middle, leaving its size as it is."""
    path = sorted(checkpoint.glob("*.distcp"))[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def test_damaged_checkpoints(ranks: Ranks, orchestrator: CommandLine, tmp_path: Path) -> None:
    """A torn and a damaged one are skipped, with a warning each; when none is left, nothing is begun or deleted."""
    job = tiny_job(
        "damage",
        parallelism=TWO,
        batch=ONE_MICRO_BATCH,
        checkpoint={"save_interval": 2, "keep_last": 9},
        model={"hidden_dropout": 0.1},
    )
    run = ranks.must_train(make_run(tmp_path, job), job)
    expected = losses(run)
    (run.checkpoint(8) / COMMIT_FILE).unlink()
    damaged = flip_a_byte(run.checkpoint(6))

    ranks.must_train(run, job, launch_id="second")
    skipped = events(run, "checkpoint_skipped")
    assert [event["path"] for event in skipped] == [str(run.checkpoint(8)), str(run.checkpoint(6))]
    assert f"{run.checkpoint(8)} has no commit.json: it was never finished" in skipped[0]["message"]
    assert f"{damaged} is damaged: its CRC-32 is" in skipped[1]["message"]
    assert [event["iteration"] for event in events(run, "resumed")] == [4]
    assert [(event["launch_id"], event["iteration"]) for event in events(run, "first_step")][1:] == [("second", 5)]
    assert losses(run) == expected
    assert [commit.iteration for commit in committed(run) if not verify(commit.path)] == [2, 4, 6, 8]

    assert "passed over" not in orchestrator("status", run.path).out, "both were saved anew"

    for commit in committed(run):
        flip_a_byte(commit.path)
    before = snapshot(run)
    said = orchestrator("resume", run.path)
    assert said.code == 1
    assert "has no readable checkpoint; to begin again at iteration 0, add --from-scratch" in said.err
    assert "Traceback" not in said.out + said.err
    assert "warning: skipped a checkpoint: " in said.out
    assert before.items() - {(str(run.events_file), before[str(run.events_file)])} <= snapshot(run).items()
    assert events(run, "exited")[-1]["cause"] == "checkpoint"
    told = f"{run.checkpoint(8) / damaged.name} is damaged: its CRC-32 is"
    assert f"skipped a checkpoint: {told}" in orchestrator("logs", run.path, "--rank", "0").out
    assert re.search(rf"^  passed over +{re.escape(told)}", orchestrator("status", run.path).out, re.MULTILINE)
    assert list(json.loads(orchestrator("status", run.path, "--json").out)["passed_over"]) == ["8", "6", "4", "2"]
    assert sorted(path.name for path in run.lease.glob("*.released")) == [f"00000{n}.released" for n in (1, 2, 3)]


def test_a_damaged_checkpoint_takes_no_whole_ones_place(ranks: Ranks, tmp_path: Path) -> None:
    """It was the newest: the one before, which the run went on from, stays until as many whole ones are newer."""

    def until(iteration: int) -> JobSpec:
        return tiny_job(
            "places",
            schedule={"train_iters": iteration},
            checkpoint={"save_interval": 2, "keep_last": 2},
        )

    def kept(run: RunDir) -> list[int]:
        return [commit.iteration for commit in committed(run)]

    run = ranks.must_train(make_run(tmp_path, until(3)), until(3))
    assert kept(run) == [2, 3]
    flip_a_byte(run.checkpoint(3))
    ranks.must_train(make_run(tmp_path, until(4)), until(4))
    assert [event["iteration"] for event in events(run, "resumed")] == [2]
    assert kept(run) == [2, 3, 4]
    ranks.must_train(make_run(tmp_path, until(5)), until(5))
    assert kept(run) == [4, 5]


def test_killed_before_the_first_save(ranks: Ranks, orchestrator: CommandLine, inject: Inject, tmp_path: Path) -> None:
    """A run that loses everything says so; it begins again only when told to. Then its spec is changed."""
    job = tiny_job("unsaved", batch=ONE_MICRO_BATCH, schedule={"train_iters": 16})
    run = make_run(tmp_path, job)
    hold = inject(HOLD)
    started = ranks.start(run, job, inject=hold, env=hold_at(5))
    wait_for_step(run, 3, saved=False)
    started.signal(signal.SIGKILL)
    assert started.wait() == 1
    reached = max(losses(run))
    assert reached < 16

    said = orchestrator("resume", run.path)
    assert said.code == 2
    assert "add --from-scratch" in said.err
    assert max(losses(run)) == reached

    alone = orchestrator.env
    orchestrator.env = {**ranks.for_commands(hold.parent), **hold_at(8)}
    with orchestrator.started("resume", run.path, "--from-scratch") as launcher:
        wait_until(lambda: len(events(run, "started")) == 2, "the second start")
        wait_until(lambda: reached + 1 in losses(run), "steps")
        launcher.send_signal(signal.SIGINT)
        out, err = launcher.communicate(timeout=PATIENCE)
    assert "stopped at iteration" in out + err, logs(run)
    assert events(run, "started")[-1]["iteration"] == 0
    orchestrator.env = alone

    refused = orchestrator("resume", run.path, "--set", "model.hidden_size=64")
    assert refused.code == 2
    assert "forbidden: this run cannot continue with it" in refused.out
    assert "model.hidden_size: 32 -> 64" in refused.out
    refused = orchestrator("resume", run.path, "--set", "optimizer.lr=0.002")
    assert refused.code == 2
    assert "changes the trajectory" in refused.out
    assert "add --allow-changes" in refused.err
    assert len(run.resolved_generations()) == 1
    changes = ["--set", "optimizer.lr=0.002", "--set", "parallelism.tensor_model_parallel_size=2"]
    said = orchestrator("resume", run.path, *changes, "--allow-changes")
    assert said.code == 0, said.err + logs(run)
    assert "parallelism.tensor_model_parallel_size: 1 -> 2" in said.out
    assert max(losses(run)) == 16
    last_rates = list(values(run, "train/lr").values())
    assert max(last_rates[-8:]) > 1e-3 * 0.01
    assert len(run.resolved_generations()) == 2
    said = orchestrator("resume", run.path, "--set", "checkpoint.keep_last=7")
    assert said.code == 0
    assert "checkpoint.keep_last: 3 -> 7" in said.out


def test_no_update_is_finite(ranks: Ranks, tmp_path: Path) -> None:
    job = tiny_job(
        "diverging",
        parallelism=TWO,
        optimizer={"lr": 1e30},
        schedule={"lr_warmup_iters": 0, "lr_decay_style": "constant"},
        runtime={"max_bad_steps": 4},
    )
    run = make_run(tmp_path, job)
    assert ranks.start(run, job).wait() == 1
    assert {exit_record(run, rank=rank)["cause"] for rank in (0, 1)} == {"nan"}
    told = f"{cause_of('nan').sentence}: {exit_record(run)['message']}"
    assert told == (
        "the training diverged: 4 consecutive steps had a NaN or infinite loss or gradient (the last one: 5)"
    )
    skipped = events(run, "step_skipped")
    assert len(skipped) == 4
    assert skipped[-1]["reason"] == "the gradient is not finite"
    counts = list(values(run, "train/skipped_steps").values())
    assert counts == sorted(counts)
    assert counts[-1] == 4
    assert skipped[-1]["iteration"] == max(losses(run)) < 20


INFINITE_LOSS_AT_STEP_7 = """
import torch
from orchestrator.runtime import loop
from orchestrator.runtime.steps.gpt import NextToken
real_step, real_loss = loop.train_step, NextToken.loss
bad = False
def train_step(session):
    global bad
    bad = session.state.iteration == 6
    return real_step(session)
def loss(self, output, batch):
    return real_loss(self, output + float("inf") if bad else output, batch)
loop.train_step, NextToken.loss = train_step, loss
"""


def test_one_bad_step(ranks: Ranks, inject: Inject, tmp_path: Path) -> None:
    """It is skipped, though its gradient would be finite, and counted; the training goes on, also after a resume."""
    job = tiny_job("recovering", parallelism=TWO, checkpoint={"save_interval": 7}, runtime={"max_bad_steps": 2})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(INFINITE_LOSS_AT_STEP_7))
    assert [event["iteration"] for event in events(run, "step_skipped")] == [7]
    measured = losses(run)
    assert [iteration for iteration, loss in measured.items() if not math.isfinite(loss)] == [7]
    assert list(measured) == list(range(1, 9))
    assert list(values(run, "train/skipped_steps").values()) == [0] * 6 + [1] * 2
    assert measured[8] < 5.6, "no weight was touched by it"


MISTAKE_AT_STEP_5 = """
import orchestrator.runtime.loop as loop
real = loop.train_step
def train_step(session):
    if RANK == 1 and session.state.iteration == 5:
        raise ValueError("a mistake")
    return real(session)
loop.train_step = train_step
"""


def test_the_first_failure_is_told(ranks: Ranks, inject: Inject, tmp_path: Path) -> None:
    """And not what it does to the others, whose logs say where to look."""
    job = tiny_job("mistaken", parallelism=TWO, batch=ONE_MICRO_BATCH)
    run = make_run(tmp_path, job)
    assert ranks.start(run, job, inject=inject(MISTAKE_AT_STEP_5), launch_id="first").wait() == 1
    end = by_word_of_the_ranks(run, "first")
    assert end is not None
    assert (end.cause, end.message) == ("bug", "ValueError: a mistake")
    first, second = (run.rank_log(rank).read_text().splitlines() for rank in (0, 1))
    assert first[-1] == f"rank 0: another rank had ended; the reason:  orchestrator status {in_command(run)}"
    assert second[-1] == "rank 1: bug: ValueError: a mistake"


CRASH_AT_STEP_5 = """
import ctypes
import orchestrator.runtime.loop as loop
real = loop.train_step
def train_step(session):
    if session.state.iteration == 5:
        ctypes.string_at(0)
    return real(session)
loop.train_step = train_step
"""


def test_a_crash_says_where(orchestrator: CommandLine, ranks: Ranks, inject: Inject) -> None:
    """By a signal that nobody sent: the line that ran then is told, all threads' are in the log."""
    job = tiny_job("crashed", batch=ONE_MICRO_BATCH, launch={"on_failure": {"killed": "stop"}})
    orchestrator.env = ranks.for_commands(inject(CRASH_AT_STEP_5).parent)
    said = orchestrator("run", orchestrator.write(job))
    assert said.code == 1
    assert "rank 0 was ended by SIGSEGV" in said.err
    [line] = json.loads(orchestrator("status", job.name, "--json").out)["evidence"]
    assert re.fullmatch(r'rank-00000.log: File ".*ctypes/__init__.py", line \d+ in string_at', line)


SLEEP_AT_STEP_5 = """
import time
import orchestrator.runtime.loop as loop
real = loop.train_step
def train_step(session):
    if RANK == 1 and session.state.iteration == 5:
        time.sleep(1000)
    return real(session)
loop.train_step = train_step
"""


def test_hung_rank(orchestrator: CommandLine, ranks: Ranks, inject: Inject) -> None:
    """A rank that sleeps for ever ends the job and leaves every rank's stacks behind; so does one that is stopped."""
    job = tiny_job(
        "hanging",
        parallelism=TWO,
        batch=ONE_MICRO_BATCH,
        runtime={"hang_timeout": HANG_TIMEOUT},
        checkpoint={"save_interval": 2},
        launch={"on_failure": {"hang": "stop"}},
    )
    orchestrator.env = ranks.for_commands(inject(SLEEP_AT_STEP_5).parent)
    with orchestrator.started("run", orchestrator.write(job)) as launcher:
        run = orchestrator.run()
        wait_until(lambda: 4 in losses(run), f"step 4:\n{logs(run)}")
        began = time.monotonic()
        out, err = launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 1, out + err
    assert time.monotonic() - began < HANG_TIMEOUT + 60
    [exited] = events(run, "exited")
    assert exited["cause"] == "hang"
    assert "runtime.hang_timeout is 8 s" in exited["message"]
    stacks = [(run.stacks / f"rank-{rank:05d}.txt").read_text() for rank in (0, 1)]
    assert "train_step" in stacks[0]
    assert "sitecustomize.py" in stacks[1], "the sleeping line is shown"
    [hang] = events(run, "hang")
    assert HANG_TIMEOUT <= hang["seconds"] < HANG_TIMEOUT + 60
    assert hang["iteration"] == exited["iteration"] == 5
    holder = read_holder(run)
    assert holder is not None
    assert not holder.live

    # Under torchrun.
    # A rank that is stopped does not end when it is asked to.
    orchestrator.env = {**ranks.under_torchrun(), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "5"}
    with orchestrator.started(
        "resume", run.run_id, "--set", "schedule.train_iters=100000", "--allow-changes"
    ) as launcher:
        wait_until(lambda: len(events(run, "resumed")) == 1, f"the resume:\n{logs(run)}")
        wait_until(lambda: 8 in losses(run), "step 8")
        launch_id = wait_until(lambda: run.events().last_launch, "the launch").launch_id
        os.kill(ranks_of(launch_id)[0], signal.SIGSTOP)
        launcher.communicate(timeout=PATIENCE)
    assert launcher.returncode == 1
    assert events(run, "exited")[-1]["cause"] == "hang"
    assert not processes_of(launch_id)
    holder = read_holder(run)
    assert holder is not None
    assert not holder.live


SLOW_LAST_WRITE = """
import time
from orchestrator.runtime.checkpointing.checkpointer import Checkpointer
real = Checkpointer._start_writing
def start_writing(self, saving):
    if RANK == 1:
        call = saving.request.async_fn
        saving.request = saving.request._replace(async_fn=lambda *a, **k: (time.sleep(12), call(*a, **k)))
    real(self, saving)
Checkpointer._start_writing = start_writing
"""


def test_a_slow_save_is_no_hang(ranks: Ranks, inject: Inject, tmp_path: Path) -> None:
    """Neither for the rank that writes nor for the one that waits for it."""
    schedule = {"train_iters": 2, "lr_warmup_iters": 0}
    job = tiny_job("slow", parallelism=TWO, schedule=schedule, runtime={"hang_timeout": HANG_TIMEOUT})
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(SLOW_LAST_WRITE))
    [saved] = events(run, "checkpoint_saved")
    assert saved["iteration"] == 2
    assert saved["seconds"] > 12 > HANG_TIMEOUT


SLOW_STEPS = """
import time
import orchestrator.runtime.loop as loop
real = loop.train_step
def train_step(session):
    time.sleep(0.1)
    return real(session)
loop.train_step = train_step
"""


def test_one_holder_at_a_time(orchestrator: CommandLine, ranks: Ranks, inject: Inject) -> None:
    """A second start of a live run is refused by the command line, and by the training program itself."""
    job = tiny_job("held", **LONG, parallelism=TWO, batch=ONE_MICRO_BATCH)
    orchestrator.env = ranks.for_commands(inject(SLOW_STEPS).parent)
    path = orchestrator.write(job)
    with orchestrator.started("run", path) as launcher:
        run = orchestrator.run()
        wait_for_step(run, 3, saved=False)
        holder = read_holder(run)
        assert holder is not None
        for command in (("run", path), ("resume", run.run_id)):
            said = orchestrator(*command)
            assert said.code == 2
            assert f"run {run.run_id} is held by pid {holder.process.pid} on {holder.process.host}" in said.err
        assert ranks.start(run, job, launch_id="second").wait() == 1
        assert {exit_record(run, "second", rank)["cause"] for rank in (0, 1)} == {"held"}
        reached = max(losses(run))
        wait_for_step(run, reached + 3, saved=False)
        launcher.send_signal(signal.SIGINT)
        out, err = launcher.communicate(timeout=PATIENCE)
    assert "stopped at iteration" in out + err
    assert len(events(run, "started")) == 1
    assert committed(run)[-1].iteration == max(losses(run))


WAITS_FOR_ITS_KILLER = """
import os, time
import orchestrator.runtime.loop as loop
from orchestrator.run_directory.events.types import Resumed
real = loop.train_step
def is_to_be_killed(run):
    return len(os.listdir(run.path.parent)) == 2 and run.events().first(Resumed) is None
def train_step(session):
    while session.state.iteration == 8 and is_to_be_killed(session.launch.run):
        time.sleep(0.02)
    return real(session)
loop.train_step = train_step
"""
"""The second of the two runs, in its first launch."""


def test_drill(orchestrator: CommandLine, ranks: Ranks, inject: Inject) -> None:
    """It passes for a job that resumes well, and fails for one that does not (its generators are not restored)."""
    job = tiny_job(
        "drilled",
        model={"hidden_dropout": 0.1},
        batch=ONE_MICRO_BATCH,
        schedule={"train_iters": 1000},
        evaluation={"eval_interval": 3, "eval_iters": 2},
    )
    path = orchestrator.write(job)
    orchestrator.env = ranks.for_commands(inject(WAITS_FOR_ITS_KILLER).parent)
    said = orchestrator("drill", path, "--iters", "12", "--kill-at", "4")
    assert said.code == 0, said.out + said.err
    assert "passed: 12 steps bitwise equal after kill -9 and resume" in said.out
    assert "killed after step 4" in said.out

    forgetful = (
        "\nfrom orchestrator.runtime.checkpointing import checkpointer as it\nit.set_rng_state = lambda state: None"
    )
    inject(WAITS_FOR_ITS_KILLER + forgetful)
    said = orchestrator("drill", path, "--iters", "12", "--kill-at", "4", "--json")
    assert said.code == 1, said.out + said.err
    result = json.loads(said.out)
    assert result["equal"] is False
    assert {step["iteration"] for step in result["steps"] if not step["equal"]} == set(
        range(result["resumed_from"] + 1, 13)
    )
    assert Path(result["folder"]).is_dir()
