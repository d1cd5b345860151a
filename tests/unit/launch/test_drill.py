"""The drill: kill, resume and compare, with real processes of the fake training program."""

import contextlib
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from support.event_log import lines_of
from support.gate import Gate
from support.light_forks import LightForks
from support.refused import refused

from orchestrator.errors import JobError
from orchestrator.launch.local.drill import Step, drill, shortened
from orchestrator.launch.processes.launch_processes import processes_of
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.planning.training_schedule.learning_rate import LearningRateSchedule
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

MakeJob = Callable[..., JobSpec]


def test_shortened_job_has_the_same_first_steps(make_job: MakeJob, tmp_path: Path) -> None:
    for schedule in (
        {"train_iters": 1000, "lr_warmup_iters": 100},
        {"train_samples": 2000, "lr_warmup_samples": 100},
        {"train_tokens": 16000, "lr_warmup_fraction": 0.1},
        {"train_iters": 1000, "lr_decay_iters": 500},
    ):
        job = make_job(schedule=schedule)
        short = shortened(job, 8, 5, tmp_path)
        full_batches, batches = BatchSchedule.of(job), BatchSchedule.of(short)
        assert batches.train_iters == 8
        rates = [LearningRateSchedule.of(job, full_batches), LearningRateSchedule.of(short, batches)]
        for iteration in range(8):
            first, second = (rate.at(batches.samples_at(iteration)) for rate in rates)
            assert first == second
        assert short.checkpoint.save_interval == 3
        assert not short.tracking.mlflow


def test_weights_of_a_job_beside_this_one_are_found_from_the_drill(make_job: MakeJob, tmp_path: Path) -> None:
    source = RunDir(tmp_path / "runs" / "source" / "00000000")
    source.checkpoint(10).mkdir(parents=True)
    (source.path / "resolved.json").write_text("{}")
    write_commit(source.checkpoint(10), iteration=10, consumed_samples=0, files={})
    short = shortened(make_job(checkpoint__pretrained="source"), 8, 5, tmp_path / "runs")
    assert short.checkpoint.pretrained == str(source.path)
    with refused("missing_pretrained"):
        shortened(make_job(checkpoint__pretrained="another"), 8, 5, tmp_path / "runs")


@pytest.fixture
def held(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """held(line): hears what a drill says, and holds the training that is to be killed after step 5 until it is."""

    def hear(line: str) -> None:
        if line.startswith("training again"):
            for name, value in gate.after(5).items():
                monkeypatch.setenv(name, value)
        elif line.startswith("resuming"):
            gate.open()

    return hear


def test_drill_passes_for_a_program_that_resumes(
    make_job: MakeJob, runs_dir: Path, fake_runtime: str, held: Callable[[str], None]
) -> None:
    job = shortened(make_job(), 10, 5, runs_dir)
    said: list[str] = []

    def tell(line: str) -> None:
        held(line)
        said.append(line)

    result = drill(job, kill_at=5, folder=runs_dir, tell=tell, module=fake_runtime)
    assert result.equal
    assert [step.iteration for step in result.steps] == list(range(1, 11))
    assert result.resumed_from == 3
    assert said[-1] == "resuming from the checkpoint of step 3"
    assert not result.folder.exists()
    assert json.dumps(result.to_json())


def test_drill_fails_for_a_program_that_forgets_and_keeps_the_runs(
    make_job: MakeJob, runs_dir: Path, fake_runtime: str, held: Callable[[str], None]
) -> None:
    job = shortened(make_job(launch__env={"FAKE_FORGETS": "1"}), 10, 5, runs_dir)
    result = drill(job, kill_at=5, folder=runs_dir, tell=held, module=fake_runtime)
    assert not result.equal
    assert [step.iteration for step in result.steps if not step.equal] == list(range(4, 11))
    assert result.folder.is_dir()
    shutil.rmtree(result.folder)


def test_the_second_training_computes_as_the_first_chose(
    make_job: MakeJob, runs_dir: Path, fake_runtime: str, held: Callable[[str], None]
) -> None:
    forgets = {"FAKE_FORGETS": "1", "FAKE_LAYERS": "transformer_engine"}  # so that the runs are kept
    result = drill(
        shortened(make_job(launch__env=forgets), 10, 5, runs_dir),
        kill_at=5,
        folder=runs_dir,
        tell=held,
        module=fake_runtime,
    )
    resolved = [json.loads(file.read_text()) for file in result.folder.glob("*/*/resolved*.json")]
    assert sorted(job["runtime"]["layers"] for job in resolved) == ["auto", "transformer_engine"]
    assert {job["runtime"]["cuda_graphs"] for job in resolved} == {None, False}
    shutil.rmtree(result.folder)


def test_drill_of_a_job_that_fails_by_itself(
    make_job: MakeJob, runs_dir: Path, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_END", "nan@2")
    job = shortened(make_job(), 10, 5, runs_dir)
    with refused("failed_drill", "NaN", kind=JobError):
        drill(job, kill_at=5, folder=runs_dir, tell=lambda line: None, module=fake_runtime)


def test_drill_whose_ranks_are_killed_too_soon(
    make_job: MakeJob, runs_dir: Path, fake_runtime: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die_in_the_second_training(line: str) -> None:
        if line.startswith("training again"):
            monkeypatch.setenv("FAKE_END", "kill0@1")

    job = shortened(make_job(), 10, 5, runs_dir)
    with refused("killed_before_checkpoint", "its run: ", kind=JobError):
        drill(job, kill_at=5, folder=runs_dir, tell=die_in_the_second_training, module=fake_runtime)


PROGRAM = """
import functools, sys
from orchestrator.cli.main import main
from orchestrator.cli.runs import drill
drill.drill = functools.partial(drill.drill, module="fake_runtime")
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_drill_that_is_stopped_leaves_nothing(
    job_file: Path,
    runs_dir: Path,
    tmp_path: Path,
    fake_runtime: str,
    light_forks: LightForks,
    gate: Gate,
    until: Callable[..., None],
    number: signal.Signals,
) -> None:
    (tmp_path / "drills_fakes.py").write_text(PROGRAM)
    command = ("drills_fakes", "drill", job_file, "--runs-dir", runs_dir)
    environment = {**os.environ, **gate.after(5), "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{tmp_path}"}
    err = tmp_path / "err"
    with open(os.devnull, "wb") as nowhere, open(err, "wb") as errors:
        process = light_forks.start(*command, env=environment, output=nowhere, errors=errors)
    with contextlib.closing(process):
        until(lambda: list(runs_dir.glob(".drill-*/tiny/*/metrics.jsonl")))
        [run] = map(RunDir, runs_dir.glob(".drill-*/tiny/*"))
        launch_id = next(event["launch_id"] for event in lines_of(run) if event["event"] == "launched")
        assert processes_of(launch_id)
        process.send_signal(number)
        said = "stopped; nothing was proved, and what it had trained is removed\n"
        assert (process.wait(100), err.read_text()) == (130, said)
    assert not processes_of(launch_id)
    assert not list(runs_dir.glob(".drill-*"))


def test_a_drill_that_is_stopped_between_two_trainings_leaves_nothing(
    make_job: MakeJob, runs_dir: Path, fake_runtime: str
) -> None:
    def interrupt(line: str) -> None:
        if line.startswith("training again"):
            signal.raise_signal(signal.SIGTERM)

    def unheard(number: int, frame: object) -> None:
        pytest.fail("it is not heard")

    before = signal.signal(signal.SIGTERM, unheard)
    job = shortened(make_job(), 10, 5, runs_dir)
    try:
        with pytest.raises(KeyboardInterrupt):
            drill(job, kill_at=5, folder=runs_dir, tell=interrupt, module=fake_runtime)
        assert signal.getsignal(signal.SIGTERM) is unheard
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not list(runs_dir.glob(".drill-*"))


@pytest.mark.parametrize(
    ("reference", "resumed", "equal"),
    [(1.0, 1.0, True), (1.0, 1.0000000000000002, False), (float("nan"), float("nan"), True), (None, None, False)],
)
def test_losses_are_compared_bit_by_bit(reference: float | None, resumed: float | None, equal: bool) -> None:
    assert Step(1, reference, resumed).equal is equal
