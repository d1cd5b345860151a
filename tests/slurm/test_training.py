"""Whatever a cluster does to a run, it comes back by itself and has the losses of an uninterrupted one, bitwise.

The trainings are real, of two ranks. SLURM takes its time over most faults, so several runs suffer theirs
side by side.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import Cluster
from slurm.conftest import FORKED, IMPORTED
from support.commands import Commands
from support.event_log import lines_of
from support.faults import UNSAVED, CommandLine, Ranks, ranks_forked_in, wait_until
from support.fixtures import inject, real_text
from support.held import HOLD, hold_at, let_go, wait_for_hold
from support.trained_together import TrainedTogether
from support.training import events, four_layer_job, layout, logs, losses
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.exits.causes import by_word_of_the_ranks
from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job
from orchestrator.spec.sections.notifications import NotificationsSpec
from orchestrator.spec.sections.tracking import TrackingSpec

__all__ = ["inject", "real_text"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.slow("SLURM needs half a minute to see a lost node, and ten seconds to start a job again"),
]

STEPS = 10
QUICKSTART = Path(__file__).parents[2] / "jobs" / "quickstart.yaml"
PATIENCE = 400.0
LAYOUTS = {"tp2": layout(tp=2), "pp2": layout(pp=2), "dp2": layout(dp=2)}
HOLD_AT = 6
TRACKERS = tuple(f"orchestrator.tracking.{name}" for name in ("mlflow.store", "event_files"))


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks from a process that has also imported what FORKED does, and the trackers."""
    with ranks_forked_in(tmp_path_factory.mktemp("ranks"), *IMPORTED, *TRACKERS) as made:
        yield made


@pytest.fixture(scope="module")
def make_job(real_text: list[str]) -> Callable[..., JobSpec]:
    """make_job(layout, **launch): real text, dropout, one rank on each of two nodes."""

    def make(name: str, **launch: Any) -> JobSpec:
        return four_layer_job(
            name,
            model={"num_layers": 2, "hidden_dropout": 0.1, "attention_dropout": 0.1, "vocab_size": None},
            data={"random_tokens": False, "blend": [{"path": path} for path in real_text], "split": "90,10,0"},
            batch={"micro_batch_size": 4},
            schedule={"train_iters": STEPS},
            checkpoint={"save_interval": 4, "keep_last": 2},
            parallelism=LAYOUTS[name],
            launch={"nodes": 2, "cluster": "test", "requeue_delay": 2, "health_check": False, **launch},
        )

    return make


@pytest.fixture(scope="module")
def make_quickstart(real_text: list[str]) -> Callable[..., JobSpec]:
    """make_quickstart(layout, **launch): the shipped quickstart, with dropout and other text, for ten steps."""

    def make(name: str, **launch: Any) -> JobSpec:
        job = load_job([QUICKSTART], ["model.hidden_dropout=0.1", "model.attention_dropout=0.1"]).job
        sections = job.model_dump(exclude_unset=True)
        sections["name"] = f"quickstart-{name}"
        sections["data"] = {"blend": [{"path": path} for path in real_text], "split": "90,10,0"}
        sections["schedule"] |= {"train_iters": STEPS, "lr_warmup_iters": 5}
        sections["checkpoint"] = {"save_interval": 4, "keep_last": 2}
        sections["batch"] = {"micro_batch_size": 1, "global_batch_size": 2}
        sections["parallelism"] = LAYOUTS[name]
        sections["tracking"] = {"mlflow": False}
        sections["launch"] = {"nodes": 2, "cluster": "test", "requeue_delay": 2, "health_check": False, **launch}
        del sections["evaluation"]
        return JobSpec.model_validate(sections)

    return make


@pytest.fixture(scope="module")
def undisturbed(
    ranks: Ranks,
    make_job: Callable[..., JobSpec],
    make_quickstart: Callable[..., JobSpec],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., dict[int, float]]:
    """undisturbed(layout, make): the losses of that job, trained here and without an interruption or a checkpoint. All
    are trained when the first is asked for: a test does that in a wait, for to train takes the processor.
    """
    unsaved = {"save_interval": None, "save_seconds": None}
    jobs = [("tp2", make_quickstart), *((name, make_job) for name in LAYOUTS)]
    made = {(name, make): make(name).changed(checkpoint=unsaved) for name, make in jobs}
    trained = TrainedTogether(ranks, tmp_path_factory.mktemp("undisturbed"), made, UNSAVED)
    return lambda name, make=make_job: losses(trained[name, make])


@dataclass(frozen=True)
class Submitted:
    """A run as a person who submitted it sees it."""

    command: CommandLine
    run: RunDir
    job_id: str

    def go_on(self) -> None:
        """Let the first start train on."""
        let_go(self.run)

    def wait_until_held(self) -> None:
        """A checkpoint is there by then."""
        wait_for_hold(self.run, 2)

    def wait_to_complete(self) -> RunStatus:
        """The status at the end, which is to be a good one."""
        deadline = time.monotonic() + PATIENCE
        while (status := status_of(self.run)).is_active and time.monotonic() < deadline:
            time.sleep(1)  # each look asks the scheduler
        assert status.state == "completed", f"{status.describe()}\n{self.run.launcher_log.read_text()}{logs(self.run)}"
        return status

    def causes(self) -> list[str]:
        """Why each of its starts ended."""
        return [event["cause"] for event in events(self.run, "exited")]


@pytest.fixture
def submit(
    tmp_path: Path,
    commands: Commands,
    make_job: Callable[..., JobSpec],
    inject: Callable[[str], Path],
    ranks: Ranks,
    empty_store: Path,
) -> Callable[..., Submitted]:
    """submit(layout, exclude, make, mlflow, start, **launch): a run of its own on the cluster `test`, whose first start
    is held. Where they work lies a torch.py that ends whoever imports it. `mlflow`: with trackers, and with somebody
    who is told. Ranks are forked on their nodes. `start`: all else of a job is `forked` as well, but with torchrun
    itself (`torchrun`); or it is started by SLURM (`slurm`).
    """
    holding = inject(HOLD).parent
    forked = {"FORKED_TOO": " ".join((*FORKED, "orchestrator.tracking"))}
    starts = {
        "torchrun": ranks.under_torchrun(holding) | forked,
        "slurm": ranks.for_commands(holding),
        "forked": ranks.for_commands(holding) | forked,
    }

    def submit_one(
        name: str,
        exclude: tuple[str, ...] = (),
        make: Callable[..., JobSpec] = make_job,
        mlflow: bool = False,
        start: str = "forked",
        **launch: Any,
    ) -> Submitted:
        folder = tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}"
        (folder / "clusters").mkdir(parents=True)
        (folder / "torch.py").write_text("raise SystemExit('the working directory is searched for modules')\n")
        (folder / "clusters" / "test.yaml").write_text(f"name: test\nexclude: {list(exclude)}\n")
        command = CommandLine(folder, commands)
        # The first start is there for whatever happens to it, however slow that or the machine is.
        job = make(name, env={**starts[start], **hold_at(HOLD_AT, None, since=0)}, **launch)
        if mlflow:
            (folder / "runs").mkdir()
            shutil.copy(empty_store, folder / "runs" / "mlflow.db")
            tells = ["sh", "-c", 'echo "$ORCHESTRATOR_OCCASION $ORCHESTRATOR_JOB_ID" >>"$0"', str(folder / "told")]
            job = job.model_copy(
                update={
                    "tracking": TrackingSpec(tensorboard=True),
                    "notifications": NotificationsSpec(command=tells),
                }
            )
        said = command("submit", command.write(job))
        assert said.code == 0, said.out + said.err
        command.env = ranks.for_commands() | forked
        run = command.run()
        return Submitted(command, run, events(run, "submitted")[-1]["job_id"])

    return submit_one


def stored_losses(run: RunDir) -> list[dict[int, float]]:
    """The training losses of each MLflow run in the store of the runs folder."""
    with closing(sqlite3.connect(f"file:{run.path.parent.parent / 'mlflow.db'}?mode=ro", uri=True)) as store:
        rows = store.execute("select run_uuid, step, value from metrics where key = 'train/loss'").fetchall()
        runs = [uuid for (uuid,) in store.execute("select run_uuid from runs")]
    return [{step: value for uuid, step, value in rows if uuid == each} for each in runs]


def test_a_time_limit_and_meanwhile_a_requeue_and_a_killed_batch_script(
    submit: Callable[..., Submitted],
    make_job: Callable[..., JobSpec],
    make_quickstart: Callable[..., JobSpec],
    undisturbed: Callable[..., dict[int, float]],
    cluster: Cluster,
) -> None:
    """Two layouts are at their limit, one of them the quickstart; the third has SLURM's notice where it is preempted.
    The notice comes up to half a minute early, and not before both are held: three quarters of a minute after their
    start.
    """
    makes = {"tp2": make_quickstart, "pp2": make_job}
    limited = {name: submit(name, make=make, time=120, stop_margin=45) for name, make in makes.items()}
    requeued = submit("tp2", mlflow=True, start="torchrun")
    for each in limited.values():
        each.wait_until_held()
    killed = submit("pp2", start="slurm")
    with requeued.command.started("logs", requeued.run.run_id, "-f") as following:
        for each in (requeued, killed):
            each.wait_until_held()
        cluster.call("scontrol", "requeue", requeued.job_id)
        cluster.call("scancel", "--signal=KILL", "--batch", killed.job_id)
        expected = {name: undisturbed(name, make) for name, make in makes.items()}
        for each, name, cause in ((requeued, "tp2", "requeued"), (killed, "pp2", "killed")):
            each.wait_to_complete()
            assert each.causes() == [cause, "completed"]
            assert losses(each.run) == undisturbed(name)
        shown, _ = following.communicate(timeout=PATIENCE)
    assert f"launch test-{requeued.job_id}.0 on" in shown
    assert f"launch test-{requeued.job_id}.1 on" in shown, "the logs are followed across the requeue"
    assert "[1] rank 1: completed" in shown
    cluster.wait_for(int(requeued.job_id), "COMPLETED")
    trackers_and_people_have_heard(requeued, undisturbed("tp2"))
    for name, each in limited.items():
        status = each.wait_to_complete()
        assert set(each.causes()) == {"time_limit", "completed"}
        assert status.launches >= 2
        assert losses(each.run) == expected[name]
        assert len(expected[name]) == STEPS
        resumed = [event["iteration"] for event in events(each.run, "resumed")]
        assert resumed == sorted(resumed)
        assert len(resumed) == status.launches - 1
        assert int(cluster.job(int(each.job_id))["Restarts"]) == status.launches - 1


def trackers_and_people_have_heard(requeued: Submitted, expected: dict[int, float]) -> None:
    """Of a run that was requeued and is over: once each."""
    synced = requeued.command("sync", requeued.run.run_id)  # a run does not wait for a tracker that takes too long
    assert synced.code == 0, synced.err
    [tracked] = stored_losses(requeued.run)
    assert tracked == expected, "one MLflow run, with the whole curve"
    board = EventAccumulator(str(requeued.run.path / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    shown_there = {event.step: event.value for event in board.Scalars("train/loss")}
    assert shown_there == pytest.approx(expected), "each step once, although some were trained twice"
    told = requeued.command.folder / "told"
    assert told.read_text() == f"completed {requeued.job_id}\n", "once, and not at each requeue"


def test_a_preemption_a_lost_slurmd_and_a_node_that_is_cut_off(
    cluster: Cluster,
    submit: Callable[..., Submitted],
    undisturbed: Callable[..., dict[int, float]],
    tmp_path: Path,
) -> None:
    """Both ranks of the run on the node that is cut off are there: for them nothing has happened, and the shared disk
    is still there. They write nothing after their run went on elsewhere.
    """
    preempted = submit("dp2", exclude=("n1", "n2"), partition="low", stop_margin=10)
    lost = submit("tp2", exclude=("n2",), nodes=1, gpus_per_node=2)
    cut_off = submit("tp2", exclude=("n1",), nodes=1, gpus_per_node=2)
    for each in (preempted, lost, cut_off):
        each.wait_until_held()
    nodes = events(preempted.run, "launched")[-1]["nodes"]
    stale = events(cut_off.run, "launched")[-1]
    theirs = [*nodes, *events(lost.run, "launched")[-1]["nodes"], *stale["nodes"]]
    assert len(theirs) == len(set(theirs)), "what happens to a run's nodes is to happen to no other run"
    urgent = cluster.submit("sleep 3", f"--nodelist={','.join(nodes)}", "--exclusive", folder=tmp_path)
    cluster.kill_slurmd(events(lost.run, "launched")[-1]["nodes"][0])
    cluster.cut(stale["nodes"][0])
    preempted.wait_to_complete()
    assert preempted.causes() == ["preempted", "completed"]
    lost.wait_to_complete()
    assert lost.causes() == ["node_fail", "completed"]
    assert losses(preempted.run) == undisturbed("dp2")
    assert losses(lost.run) == undisturbed("tp2")
    cluster.wait_for(urgent, "COMPLETED")

    wait_until(lambda: events(cut_off.run, "resumed"), "the start elsewhere")
    cut_off.go_on()
    cut_off.wait_to_complete()
    assert cut_off.causes() == ["node_fail", "completed"]
    assert losses(cut_off.run) == undisturbed("tp2")
    assert events(cut_off.run, "launched")[-1]["nodes"] != stale["nodes"]
    was_refused(cut_off.run, stale["launch_id"])


def was_refused(run: RunDir, stale: str) -> None:
    """A start that was cut off has trained on until it was about to write, and has not written."""
    wait_until(lambda: run.exit_record(stale, 0).exists(), "the end of the stale rank")
    assert by_word_of_the_ranks(run, stale).cause == "lease_lost"
    assert "lease 1 was taken over by a newer start of this run" in run.rank_log(0).read_text()
    records = list(read_lines(run.metrics_file))
    resumed = next(event["time"] for event in lines_of(run) if event["event"] == "resumed")
    after = [record["iteration"] for record in records if record["time"] > resumed]
    assert after == sorted(after), "one writer"
    assert status_of(run).state == "completed"


def test_a_controller_that_is_away_for_a_minute(
    cluster: Cluster, submit: Callable[..., Submitted], undisturbed: Callable[..., dict[int, float]]
) -> None:
    each = submit("tp2")
    each.wait_until_held()
    cluster.stop_controller()
    away = time.monotonic()
    said = each.command("status", each.run.run_id)
    assert said.code == 0
    assert "running" in said.out
    assert "according to the run directory" in said.out
    each.go_on()
    each.wait_to_complete()
    time.sleep(max(0.0, 60 - (time.monotonic() - away)))
    cluster.start_controller()
    each.wait_to_complete()
    assert each.causes() == ["completed"]
    assert losses(each.run) == undisturbed("tp2")
