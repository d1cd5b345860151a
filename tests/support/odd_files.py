"""A run directory with every file that the product reads of one, and what may stand in the place of each."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.checkpoints.commit_markers import FileRecord, write_commit
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.results.record import Measure, Result, result_path, write_result
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved
from support.event_log import append_event
from support.training import four_layer_job

SECRET = "the secret of a folder that is none of a run"
LAUNCH = "20260131-120000-abcdef"


def whole_run(name: str, runs_dir: Path) -> RunDir:
    """A run that ended, with all that a training leaves behind."""
    job = four_layer_job(name, tracking={"mlflow": True})
    run = create_run(job, dump_resolved(job), runs_dir, CodeState({"version": "1", "repositories": []}, b"a change\n"))
    lease = Lease.acquire(run, launch_id=LAUNCH)
    lease.release()
    append_event(run, "launched", launch_id=LAUNCH, host="a", boot="b", pid=1, started=2)
    append_event(run, "started", launch_id=LAUNCH, iteration=0, world_size=1, device="cpu", layers="torch", token=1)
    append_event(run, "first_step", launch_id=LAUNCH, iteration=1, seconds={"launch": 1.0, "step": 0.5})
    append_event(run, "checkpoint_saved", iteration=2, seconds=0.1, bytes=7)
    end = {"code": 1, "cause": "bug", "message": "it failed", "iteration": 3, "evidence": ["rank-00000.log: it failed"]}
    append_event(run, "exited", launch_id=LAUNCH, **end)
    measured = [
        {"time": time.time(), "iteration": n, "samples": n, "tokens": 8 * n, "values": {"train/loss": 3.0 / n}}
        for n in range(1, 4)
    ]
    run.metrics_file.write_text("".join(json.dumps(each) + "\n" for each in measured))
    for path in (run.launcher_log, run.rank_log(0), run.data_log, run.stacks / "rank-00000.txt"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("it failed\n")
    checkpoint = run.checkpoint(2)
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_bytes(b"weights")
    write_commit(checkpoint, iteration=2, consumed_samples=4, files={"weights": FileRecord(7, zlib.crc32(b"weights"))})
    result = Result("lambada", "lambada", "0" * 64, 2, "c", {"accuracy": Measure(0.5)}, {"n": 1}, {}, [], 1.0, 1.0)
    write_result(result_path(run.evaluations, 2, "lambada", "0" * 64), result)
    system = {"time": time.time(), "iteration": 1, "host": "a", "values": {"cpu_utilization_percentage": 3.0}}
    others: Mapping[Path, object] = {
        run.exit_record(LAUNCH, 0): {"cause": "bug", "message": "it failed", "iteration": 3},
        run.health_report(LAUNCH): {"message": "well", "nodes_at_fault": []},
        run.system_log(0): system,
        run.datasets_file: [{"part": "training", "path": "a", "digest": "b", "bytes": 1}],
        run.membership: {"sweep": "wide", "cell": "one", "values": {"a": "1"}, "adopted": True},
        run.stop_file: {"by": "a person", "time": 1.0},
        run.path / "environment.json": {"python": "3.11"},
        run.path / "mlflow.json": {"store": "s", "experiment_id": "1", "run_id": "2", "offset": 0, "sent": {}},
        run.path / "tensorboard.json": {"offset": 0, "step": 0, "sent": {}},
    }
    for path, content in others.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content) + "\n")
    run.launch_script.write_text("#!/bin/sh\n")
    return run


def files_of(run: RunDir) -> list[str]:
    """Their paths within the run directory, by name."""
    return sorted(str(path.relative_to(run.path)) for path in run.path.rglob("*") if path.is_file())


def _replaced(make: Callable[[Path], object]) -> Callable[[Path], None]:
    def put(path: Path) -> None:
        path.unlink()
        make(path)

    return put


def _socket(path: Path) -> None:
    folder = os.getcwd()
    os.chdir(path.parent)  # the address of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)
    finally:
        os.chdir(folder)


def _sparse(path: Path) -> None:
    path.write_bytes(b"")
    os.truncate(path, 1 << 40)


def _changed(**fields: object) -> Callable[[Path], None]:
    """Other values in every object of a file of JSON."""

    def put(path: Path) -> None:
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        try:
            records = [json.loads(line) for line in lines]
        except ValueError:
            return  # a log, a script
        changed = [
            {key: fields["every"] if "every" in fields else fields.get(key, value) for key, value in record.items()}
            if isinstance(record, dict)
            else record
            for record in records
        ]
        kept = [
            {**after, "event": before["event"]} if isinstance(before, dict) and "event" in before else after
            for before, after in zip(records, changed, strict=True)
        ]
        path.write_text("".join(json.dumps(each) + "\n" for each in kept))

    return put


def kinds(outside: Path) -> dict[str, Callable[[Path], object]]:
    """What may stand in the place of a file, by what it is called. `outside`: a folder that is made for links to lead
    to, and holds a file of every name.
    """
    return {
        "gone": Path.unlink,
        "fifo": _replaced(os.mkfifo),
        "socket": _replaced(_socket),
        "folder": _replaced(Path.mkdir),
        "zeros": _replaced(lambda path: path.symlink_to("/dev/zero")),
        "loop": _replaced(lambda path: path.symlink_to(path.name)),
        "out": _replaced(lambda path: path.symlink_to(_secret(outside, path.name))),
        "sparse": _replaced(_sparse),
        "empty": lambda path: path.write_bytes(b""),
        "torn": lambda path: path.write_bytes(path.read_bytes()[:-3]),
        "long": lambda path: path.write_bytes(b'"' + b"x" * (3 << 20)),
        "deep": lambda path: path.write_bytes(b"[" * 200_000 + b"\n"),
        "nested": lambda path: path.write_bytes(b'{"values": ' * 500 + b"1" + b"}" * 500 + b"\n"),
        "digits": lambda path: path.write_bytes(b'{"iteration": ' + b"9" * 6000 + b"}\n"),
        "binary": lambda path: path.write_bytes(b"\xff\xfe\x00\xed\xa0\x80\n"),
        "numbers": _changed(every=7),
        "texts": _changed(every="\ud800 \x1b[2J <b>\n"),
        "nulls": _changed(every=None),
        "lists": _changed(every=[[1], {"a": None}]),
        "objects": _changed(every={"a": {"b": []}}),
        "large": _changed(every=10**400),
        "infinite": _changed(every=float("inf")),
        "negative": _changed(every=-1),
        "far": _changed(time=1e300, since=1e300, finished=1e300, time_to_live="soon", pid=-1, iteration=-5),
    }


def _secret(outside: Path, name: str) -> Path:
    outside.mkdir(exist_ok=True)
    (outside / name).write_text(json.dumps({"message": SECRET, "event": SECRET, "name": SECRET}) + "\n")
    return outside / name


def damaged_runs(template: RunDir, outside: Path) -> list[RunDir]:
    """Copies of a run beside it, each with one of its files replaced: `NAME` is what was replaced, by what."""
    found = []
    for number, file in enumerate(files_of(template)):
        for kind, put in kinds(outside).items():
            name = f"{kind}-{file.replace('/', '-').replace('.', '-')}"
            run = RunDir(template.path.parent.parent / name / f"{number:08x}")
            # All runs have the same files, but for this one.
            shutil.copytree(template.path, run.path, copy_function=os.link)
            path = run.path / file
            path.unlink()
            put(Path(shutil.copy2(template.path / file, path)))
            found.append(run)
    return found
