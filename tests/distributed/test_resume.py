"""Whatever ends a run, the resumed one has the losses of an uninterrupted one.

At the same layout they are bitwise equal, dropout included; at another one, without dropout, they agree to 1e-4.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.faults import PATIENCE, UNSAVED, CommandLine, Ranks, random_step, wait_for_step, wait_until
from support.held import HOLD, STEPS_UNTIL_A_STOP, hold_at, let_go
from support.matrix import FAMILIES
from support.trained_together import TrainedTogether, selected
from support.training import events, largest_difference, layout, logs, losses, make_run, session_members, tiny_job

from orchestrator.launch.processes.launch_processes import processes_of, ranks_of
from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.checkpoints.commit_markers import COMMIT_FILE, committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

Inject = Callable[[str], Path]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("starts of real ranks under torchrun take 5 to 10 s each"),
]

STEPS = 9
SAVE_INTERVAL = 3
HELD_AT = STEPS - STEPS_UNTIL_A_STOP - 1
"""A run goes no further until it is ended, and then not to its last step."""
DROPOUT = {"num_layers": 1, "hidden_dropout": 0.1, "attention_dropout": 0.1}
SHORT: dict[str, Any] = {
    "batch": {"micro_batch_size": 4},
    "schedule": {"train_iters": STEPS},
    "checkpoint": {"save_interval": SAVE_INTERVAL, "keep_last": 2},
}


def short_job(name: str, **sections: Any) -> JobSpec:
    return tiny_job(name, **{**SHORT, **sections})


def step_to_end_at() -> int:
    """After the step of a checkpoint, which whoever is held has put in place, and early enough that the run is not over
    by then.
    """
    return random_step(SAVE_INTERVAL + 1, HELD_AT - 1)


MANY_STEPS = 37
"""Enough for five ends of one run, each after a checkpoint of its own and none near the last step."""


def test_generators_of_another_device_are_not_restored(ranks: Ranks, tmp_path: Path) -> None:
    """Those of a GPU are of another size: dropout begins anew, and the log says so."""
    job = tiny_job("device", model=DROPOUT, schedule={"train_iters": 4}, checkpoint={"save_interval": 2})
    run = ranks.must_train(make_run(tmp_path, job), job)
    ends = {}
    for device in ("cpu", "cuda"):
        again = make_run(tmp_path / device, job)
        shutil.copytree(run.checkpoint(2), again.checkpoint(2))
        marker = again.checkpoint(2) / COMMIT_FILE
        said = json.loads(marker.read_text())
        assert said["device"] == "cpu"
        marker.write_text(json.dumps({**said, "device": device}))
        ranks.must_train(again, job)
        ends[device] = losses(again)
        told = "was written on cuda, and this is cpu: dropout is drawn anew from runtime.seed"
        assert (told in logs(again)) == (device == "cuda")
    assert ends["cpu"] == {step: loss for step, loss in losses(run).items() if step > 2}
    assert ends["cuda"].keys() == ends["cpu"].keys()
    assert ends["cuda"] != ends["cpu"]


@pytest.fixture(scope="module")
def text_job(real_text: list[str]) -> JobSpec:
    """Two ranks, real text, dropout."""
    return short_job(
        "text",
        model={**DROPOUT, "vocab_size": None},
        data={"random_tokens": False, "blend": [{"path": path} for path in real_text], "split": "90,10,0"},
        parallelism=layout(dp=2),
        optimizer={"lr": 5e-3},
        schedule={"train_iters": MANY_STEPS},
    )


@pytest.fixture(scope="module")
def undisturbed(ranks: Ranks, text_job: JobSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    curve = ranks.losses_of(text_job, tmp_path_factory.mktemp("undisturbed"))
    assert list(curve) == list(range(1, MANY_STEPS + 1))
    assert curve[MANY_STEPS] < curve[1] - 1, "real text is learnt"
    return curve


def the_launcher(launcher: int, launch_id: str) -> list[int]:
    return [launcher]


def torchrun(launcher: int, launch_id: str) -> list[int]:
    started = [pid for pid, env in processes_of(launch_id).items() if "RANK" not in env]
    return [max(started, key=lambda pid: len(Path(f"/proc/{pid}/cmdline").read_bytes()))]


def one_rank(launcher: int, launch_id: str) -> list[int]:
    return [ranks_of(launch_id)[1]]


def torchrun_and_all_ranks(launcher: int, launch_id: str) -> list[int]:
    return list(processes_of(launch_id))


class End(NamedTuple):
    """A way to end a run, and what is to come of it."""

    target: Callable[[int, str], list[int]]
    number: signal.Signals
    cause: str | None
    """What the launcher says; None where it is killed itself."""
    saves: bool
    """Whether the last step is saved."""
    real: bool = True
    """Whether torchrun has a part in it, and is to be the real one."""


ENDS = [
    End(one_rank, signal.SIGKILL, "killed", False),
    End(the_launcher, signal.SIGKILL, None, True, real=False),
    End(the_launcher, signal.SIGTERM, "stopped", True, real=False),
    End(torchrun_and_all_ranks, signal.SIGKILL, "killed", False, real=False),
    End(torchrun, signal.SIGKILL, "killed", True),  # the store by which its ranks have met is in it
]
"""SIGINT and SIGUSR1, which the launcher takes as it takes SIGTERM, are in tests/unit/launch/test_local.py."""


def test_same_layout_is_bitwise(
    text_job: JobSpec, undisturbed: dict[int, float], ranks: Ranks, orchestrator: CommandLine, inject: Inject
) -> None:
    """One run, ended in every way, one after the other, and resumed each time."""
    stays = ["--set", "launch.on_failure.killed=stop"]
    command: list[str | Path] = ["run", orchestrator.write(text_job), *stays]
    found = [0]
    hold = inject(HOLD).parent
    for end in ENDS:
        orchestrator.env = (ranks.under_torchrun if end.real else ranks.for_commands)(hold)
        run = start_and_end(orchestrator, command, end, found)
        command = ["resume", run.run_id]

    orchestrator.env = ranks.for_commands()
    said = orchestrator(*command)
    assert said.code == 0, said.out + said.err + logs(run)
    assert f"resumed from the checkpoint of iteration {found[-1]}" in said.out
    assert [event["iteration"] for event in events(run, "resumed")] == found[1:]
    assert losses(run) == undisturbed
    assert status_of(run).state == "completed"


def start_and_end(orchestrator: CommandLine, command: list[str | Path], end: End, found: list[int]) -> RunDir:
    """Start or resume a run and end it. `found` gets the iteration of the newest checkpoint that is left."""
    before = max(losses(orchestrator.run())) if len(found) > 1 else 0
    step = random_step(before + 1, before + SAVE_INTERVAL)
    orchestrator.env |= hold_at(step + 2, since=found[-1])
    with orchestrator.started(*command) as launcher:
        run = orchestrator.run()
        wait_for_step(run, step)
        wait_until(lambda: committed(run)[-1].iteration > found[-1], "a checkpoint of this launch")
        launch_id = wait_until(lambda: run.events().last_launch, "the launch").launch_id
        for pid in end.target(launcher.pid, launch_id):
            os.kill(pid, end.number)
        out, err = launcher.communicate(timeout=PATIENCE)
    if end.cause is None:  # the launcher itself was killed: the ranks end by themselves
        wait_until(lambda: not processes_of(launch_id), "the ranks to end")
        assert status_of(run).state == "stopped"
    else:
        exited = events(run, "exited")[-1]
        said = (exited["launch_id"], exited["cause"], launcher.returncode)
        assert said == (launch_id, end.cause, 1), out + err + logs(run)
    reached = max(losses(run))
    assert step <= reached < MANY_STEPS
    newest = committed(run)[-1].iteration
    assert newest == reached if end.saves else newest % SAVE_INTERVAL == 0
    found.append(newest)
    return run


LEG = 2
"""Steps until another layout goes on."""
WAY = [layout(dp=2), layout(tp=2, sequence_parallel=True), layout(pp=2), layout(), layout(dp=2)]
"""Each of them saves, and each goes on from another's. Layouts of four ranks are in test_reshape.py."""


def test_other_layouts_agree(ranks: Ranks, tmp_path: Path) -> None:
    """One run, on at another layout every other step, and the losses of one rank."""

    def until(step: int, parallelism: dict[str, Any]) -> JobSpec:
        schedule = {"train_iters": step, "lr_decay_iters": LEG * len(WAY)}
        return short_job("moved", parallelism=parallelism, schedule=schedule, checkpoint={})

    for leg, parallelism in enumerate(WAY, 1):
        job = until(LEG * leg, parallelism)
        run = ranks.must_train(make_run(tmp_path, job), job, launch_id=f"leg-{leg}")
    alone = ranks.losses_of(until(LEG * len(WAY), layout()), tmp_path / "alone")
    difference = largest_difference(alone, losses(run))
    print(f"largest relative difference {difference:.1e}")
    assert difference < 1e-5, "in fp32 it is about 1e-7; 1e-4 is promised"
    assert [event["iteration"] for event in events(run, "resumed")] == [LEG * leg for leg in range(1, len(WAY))]


RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
VARIANTS: dict[str, dict[str, Any]] = {
    "ramp-up-in-bf16": {  # one micro-batch on each rank, and then up to four, whose gradients add up
        "precision": {"dtype": "bf16"},
        "batch": {"micro_batch_size": 2, "global_batch_size": 16, "rampup_batch_size": [4, 4, 60]},
        "parallelism": layout(dp=2),
    },
    "saves-that-overlap": {
        "checkpoint": {"save_interval": 1},
        "parallelism": layout(tp=2),
        "batch": {"micro_batch_size": 8},
    },
    "bf16-plain-optimizer": {"precision": {"dtype": "bf16"}, "parallelism": layout(use_distributed_optimizer=False)},
    "latents-sequence-parallel-and-recomputed": {
        "model": {**FAMILIES["latent"], **DROPOUT, "attention_dropout": 0.1},
        "parallelism": layout(tp=2, sequence_parallel=True),
        "batch": {"micro_batch_size": 8},
        "runtime": RECOMPUTED,
    },
    "interleaved-with-synchronous-saves": {
        "model": {**DROPOUT, "num_layers": 4},
        "parallelism": layout(pp=2, vp=2),
        "checkpoint": {**SHORT["checkpoint"], "async_save": False},
    },
}


ENDS_OF_RANKS: dict[str, tuple[signal.Signals, bool]] = {
    # the signal, and whether every rank gets it
    "ramp-up-in-bf16": (signal.SIGTERM, True),
    "bf16-plain-optimizer": (signal.SIGUSR1, False),
    "latents-sequence-parallel-and-recomputed": (signal.SIGINT, True),
    "interleaved-with-synchronous-saves": (signal.SIGTERM, False),
}
"""Of variants; every rank of the others is killed."""


def end_ranks(ranks: Ranks, run: RunDir, job: JobSpec, hold: Path, number: signal.Signals, *, every: bool) -> None:
    """Start the run and end it with a signal at a random step; a signal that is not SIGKILL loses no step."""
    started = ranks.start(run, job, launch_id="ended", inject=hold, env=hold_at(HELD_AT, since=0))
    wait_for_step(run, step_to_end_at())
    if every:
        started.signal(number)
    else:
        os.kill(started.ranks[-1], number)
    let_go(run)
    killed = number == signal.SIGKILL
    assert started.wait() == int(killed), logs(run)
    assert not set(session_members(started.supervisor)) - {started.supervisor}
    reached = max(losses(run))
    assert reached < STEPS
    if not killed:
        assert committed(run)[-1].iteration == reached


@pytest.fixture(scope="module")
def variants(request: pytest.FixtureRequest) -> dict[str, JobSpec]:
    """Those that this session tests; with dropout."""
    return {name: short_job(name, **{"model": DROPOUT, **VARIANTS[name]}) for name in selected(request, "name")}


@pytest.fixture(scope="module")
def left_alone(
    ranks: Ranks, variants: dict[str, JobSpec], tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    """Each without an end before its own, and without a checkpoint."""
    never = {"save_interval": None, "save_seconds": None}
    jobs = {
        name: job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update=never)})
        for name, job in variants.items()
    }
    return TrainedTogether(ranks, tmp_path_factory.mktemp("whole"), jobs, UNSAVED)


@pytest.fixture(scope="module")
def resumed(
    ranks: Ranks, variants: dict[str, JobSpec], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], RunDir]:
    """resumed(name) -> the run after an end that something else made of it. What went wrong there is its own failure
    alone.
    """
    folder = tmp_path_factory.mktemp("ended")
    hold = folder / "hold.py"
    hold.write_text(HOLD)
    trained, wrong = TrainedTogether(ranks, folder, variants), dict[str, Exception]()
    for name, job in variants.items():
        number, every = ENDS_OF_RANKS.get(name, (signal.SIGKILL, True))
        try:
            end_ranks(ranks, trained.run_of(name), job, hold, number, every=every)
        except (AssertionError, OSError) as error:
            wrong[name] = error

    def run_of(name: str) -> RunDir:
        if name in wrong:
            raise wrong[name]
        return trained[name]

    return run_of


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_is_bitwise(name: str, left_alone: TrainedTogether[str], resumed: Callable[[str], RunDir]) -> None:
    """Ended, resumed, and compared with the same job left alone."""
    run = resumed(name)
    assert losses(run) == losses(left_alone[name])
    assert [0 < event["iteration"] < STEPS for event in events(run, "resumed")] == [True]
    assert committed(run)[-1].iteration == STEPS
    assert not events(run, "checkpoint_failed")
    assert [path.name for path in run.checkpoints.iterdir() if path.name.startswith(".")] == []
