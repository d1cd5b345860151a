"""`checkpoint.export`: Hugging Face models of a training's checkpoints, by a process that it never waits for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.event_log import lines_of
from support.faults import CommandLine, Ranks, wait_until
from support.training import events, layout, logs, losses, make_run, tiny_job

from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(600),
    pytest.mark.slow("six trainings, and a process that imports torch for each export"),
]

LLAMA = {
    **{"num_layers": 2, "num_query_groups": 2, "vocab_size": 261, "activation": "swiglu", "normalization": "RMSNorm"},
    **{"add_bias_linear": False},
}
BATCH = {"micro_batch_size": 2, "global_batch_size": 2}
STAND_IN = """
import json, os, resource, sys, time
from pathlib import Path
from orchestrator.conversion.hugging_face import hf_export
from orchestrator.conversion import __main__ as program
home = Path(__file__).parent
to_config = hf_export.to_config
def held(*arguments):
    with open(home / "held", "a") as file:
        file.write(json.dumps({"pid": os.getpid(), "nice": os.nice(0)}) + "\\n")
    while (home / "hold").exists():
        time.sleep(0.02)
    return to_config(*arguments)
hf_export.to_config = held
if (home / "full").exists():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
if "RANKS_FROM" in os.environ:
    program.live_beside = lambda parent, draft: None
sys.exit(program.main())
"""
"""One that is forked has no training for its parent, and would end at once."""
INJECT = """
import os, time
import orchestrator.runtime.checkpointing.exports as exports
import orchestrator.runtime.loop as loop
exports.EXCHANGE_MODULE = "stand_in"
seconds, step = float(os.environ.get("STEP_SECONDS", "0")), loop.train_step
def slow_step(session):
    time.sleep(seconds)
    return step(session)
loop.train_step = slow_step
"""


def exporting_job(name: str, steps: int = 4, **export: Any) -> Any:
    checkpoint = {"save_interval": 2, "keep_last": 1, "export": {"interval": 2, **export}}
    schedule = {"train_iters": steps, "lr_warmup_iters": 0}
    return tiny_job(name, model=LLAMA, batch=BATCH, schedule=schedule, checkpoint=checkpoint, parallelism=layout(tp=2))


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[Path]:
    """The folder of a program in the exporter's place: it stays between weights and configuration while `hold` is
    there, and has no room for its files while `full` is.
    """
    folder = tmp_path / "stand-in"
    folder.mkdir()
    (folder / "stand_in.py").write_text(STAND_IN)
    (folder / "inject.py").write_text(INJECT)
    yield folder
    (folder / "hold").unlink(missing_ok=True)


def forked(ranks: Ranks, stand_in: Path) -> dict[str, Any]:
    """Options of a training whose exporter is that program, in a process that need not import torch."""
    return {"inject": stand_in / "inject.py", "env": {**ranks.for_commands(stand_in), "FORKED_TOO": "stand_in"}}


def exports(run: RunDir) -> list[int]:
    return [number for number, _ in run.export_dirs("hf")]


def hidden(run: RunDir) -> list[str]:
    return [path.name for path in run.exports("hf").glob(".*")]


def test_each_checkpoint_of_the_interval_is_exported(
    ranks: Ranks, orchestrator: CommandLine, stand_in: Path, tmp_path: Path
) -> None:
    """To the byte what `checkpoint export` writes of it; the losses are those of a run that exports nothing."""
    job = exporting_job("exports", keep_last=1)
    run = ranks.must_train(make_run(tmp_path / "runs", job), job, **forked(ranks, stand_in))
    assert [event["iteration"] for event in events(run, "exported")] == [2, 4], logs(run)
    assert exports(run) == [4]
    assert hidden(run) == []
    assert [event["event"] for event in lines_of(run)][-2:] == ["exported", "finished"]
    said = orchestrator("checkpoint", "export", run.path, "by-hand", "--to", "hf")
    assert said.code == 0, said.err
    theirs, ours = tmp_path / "by-hand", run.exports("hf") / "iter_0000004"
    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    assert all((ours / path.name).read_bytes() == path.read_bytes() for path in theirs.iterdir())
    listed = json.loads(orchestrator("checkpoint", "list", run.path, "--json").out)
    assert [entry["exports"].get("hf") for entry in listed] == [str(ours)]
    assert str(ours) in orchestrator("checkpoint", "list", run.path).out
    plain = tiny_job("plain", model=LLAMA, batch=BATCH, schedule=dict(job.schedule), parallelism=layout(tp=2))
    assert ranks.losses_of(plain, tmp_path / "plain") == losses(run)


def held(stand_in: Path) -> list[dict[str, int]]:
    """The exporters that have written their weights."""
    seen = stand_in / "held"
    return [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []


def test_an_export_ends_with_its_training_and_the_next_start_makes_it(
    ranks: Ranks, stand_in: Path, tmp_path: Path
) -> None:
    """Also: it is alone and of a lower priority, training goes on beside it, and its checkpoint stays meanwhile."""
    job = exporting_job("killed", steps=100_000)
    run = make_run(tmp_path / "runs", job)
    (stand_in / "hold").touch()
    # The training must not be over, nor take the exporter's processor, before that is there.
    env = {"PYTHONPATH": str(stand_in), "STEP_SECONDS": "2"}
    options: dict[str, Any] = {"inject": stand_in / "inject.py", "env": env}
    started = ranks.start(run, job, **options)
    wait_until(lambda: held(stand_in) or started.poll() is not None, f"an export:\n{logs(run)}")
    saved = len(events(run, "checkpoint_saved"))
    wait_until(lambda: len(events(run, "checkpoint_saved")) > saved + 1, "checkpoints beside it")
    assert run.checkpoint(2).is_dir()
    started.signal(signal.SIGKILL)
    started.wait()
    [exporter] = held(stand_in)
    here = Process.current()
    wait_until(lambda: Process(here.host, here.boot, exporter["pid"]).is_dead, "the exporter to end")
    assert exporter["nice"] == os.nice(0) + 10
    assert (exports(run), hidden(run)) == ([], [])
    options = forked(ranks, stand_in)
    options["env"]["STEP_SECONDS"] = "0.5"
    again = ranks.start(run, job, **options)
    wait_until(lambda: len(held(stand_in)) > 1 or again.poll() is not None, f"another export:\n{logs(run)}")
    assert len(hidden(run)) == 1
    run.stop_file.touch()
    assert again.wait() == 0, logs(run)
    assert hidden(run) == []
    assert 2 in {event["iteration"] for event in events(run, "export_stopped")}
    (stand_in / "hold").unlink()
    run.stop_file.unlink()
    [stopped] = events(run, "stop_requested")
    shorter = exporting_job("killed", steps=stopped["iteration"] + 1)
    ranks.must_train(make_run(tmp_path / "runs", shorter), shorter, **forked(ranks, stand_in))
    assert exports(run)[0] == 2
    assert exports(run)[-1] >= stopped["iteration"] - 1
    assert len(committed(run)) == 1, "once they are exported, keep_last holds again"


def test_a_stop_during_the_last_export_leaves_it_to_the_next_start(
    ranks: Ranks, stand_in: Path, tmp_path: Path
) -> None:
    """Every step is done, and yet the run is not complete: then nothing would ever export its last checkpoint."""
    job = exporting_job("last", steps=2)
    run = make_run(tmp_path / "runs", job)
    (stand_in / "hold").touch()
    options = forked(ranks, stand_in)
    started = ranks.start(run, job, **options)
    wait_until(lambda: held(stand_in) or started.poll() is not None, f"an export:\n{logs(run)}")
    started.signal(signal.SIGTERM)
    assert started.wait() == 0, logs(run)
    assert exports(run) == hidden(run) == []
    assert {record["cause"] for record in exit_records(run)} == {"stopped"}
    assert [event["event"] for event in lines_of(run)][-2:] == ["export_stopped", "stop_requested"]
    (stand_in / "hold").unlink()
    ranks.must_train(run, job, launch_id="second", **options)
    assert exports(run) == [2]
    assert [event["event"] for event in lines_of(run)][-2:] == ["exported", "finished"]
    assert {record["cause"] for record in exit_records(run, "second")} == {"completed"}


def exit_records(run: RunDir, launch_id: str = "test") -> list[dict[str, Any]]:
    return [json.loads(path.read_text()) for path in (run.path / "exits" / launch_id).iterdir()]


def test_a_failed_export_leaves_the_training_alone(ranks: Ranks, stand_in: Path, tmp_path: Path) -> None:
    """Here: there is no room for its file."""
    job = exporting_job("full", steps=2)
    run = make_run(tmp_path / "runs", job)
    (stand_in / "full").touch()
    assert ranks.start(run, job, **forked(ranks, stand_in)).wait() == 0, logs(run)
    [failed] = events(run, "export_failed")
    assert failed["iteration"] == 2
    assert "no room" in failed["message"], failed
    assert exports(run) == []
    assert hidden(run) == []
    # The next start makes up for it, although there is nothing left to train.
    (stand_in / "full").unlink()
    ranks.must_train(run, job, **forked(ranks, stand_in))
    assert exports(run) == [2]
