"""A training program with the formats of docs/reference/file-formats.md that trains nothing: `-m fake_runtime RUN_DIR`.

The loss of a step follows from the one before, so a resume that restores nothing shows. Variables say what it does:
FAKE_STEP_SECONDS, and FAKE_END for a step: "nan@7", "raise@3", "memory@3", "kill1@5" (rank 1 kills itself), "kill0@5".
FAKE_HOLD="7:FILE" holds it after step 7 (0: before the first one) until FILE exists or it is told to stop, so that a
test decides how long a run goes on, not the speed of the machine. FAKE_FORGETS makes a resume start from a slightly
wrong state; FAKE_LATE_SECONDS keep the other ranks from hearing signals, as their imports do.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from orchestrator.errors import RunIsHeld
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit
from orchestrator.run_directory.checkpoints.newest import latest_valid
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import STOP_AT_VARIABLE, RunDir, append_line, read_lines, write_atomically

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
LAUNCH_ID = os.environ["ORCHESTRATOR_LAUNCH_ID"]
STEP_SECONDS = float(os.environ.get("FAKE_STEP_SECONDS", "0.01"))
END, _, END_AT = os.environ.get("FAKE_END", "@-1").partition("@")
HOLD_AT, _, HOLD_UNTIL = os.environ.get("FAKE_HOLD", "-1:").partition(":")
STOP_AT = int(os.environ.get(STOP_AT_VARIABLE, "0"))
MOST_SECONDS_HELD = 600  # what a test that died has left behind ends at last

stop_signals: list[str] = []


def main() -> int:
    if RANK:
        time.sleep(float(os.environ.get("FAKE_LATE_SECONDS", "0")))
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, lambda number, frame: stop_signals.append(signal.Signals(number).name))
    run = RunDir(Path(sys.argv[1]))
    descriptor = os.open(run.rank_log(RANK), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    machine = f" on machine {os.environ['NODE_RANK']}" if "NODE_RANK" in os.environ else ""
    print(f"rank {RANK} of {WORLD_SIZE} in launch {LAUNCH_ID}{machine}", flush=True)
    if RANK:
        return follow(run)
    try:
        lease = Lease.acquire(run, launch_id=LAUNCH_ID)
    except RunIsHeld as error:
        return end(run, "held", str(error), 0)
    lease.start_heartbeat()
    try:
        return train(run, lease)
    finally:
        lease.release()


def follow(run: RunDir) -> int:
    """Another rank: it ends when rank 0 has, and dies on demand."""
    while not run.exit_record(LAUNCH_ID, 0).exists():
        if f"kill{RANK}" == END and last_step(run) >= int(END_AT):
            os.kill(os.getpid(), signal.SIGKILL)
        if stop_signals:
            time.sleep(0.1)
            return end(run, "stopped", "", last_step(run))
        time.sleep(0.01)
    first = json.loads(run.exit_record(LAUNCH_ID, 0).read_text())
    return end(run, first["cause"], "", first["iteration"])


def train(run: RunDir, lease: Lease) -> int:
    job = json.loads(run.resolved().read_text())
    total, interval = job["schedule"]["train_iters"], job["checkpoint"]["save_interval"]
    iteration, loss = restore(run)
    layers = {"layers": os.environ["FAKE_LAYERS"], "cuda_graphs": False} if "FAKE_LAYERS" in os.environ else {}
    started = {"launch_id": LAUNCH_ID, "token": lease.token, "world_size": WORLD_SIZE, "iteration": iteration}
    _say(run, "started", **started, **layers)
    if iteration:
        _say(run, "resumed", iteration=iteration, checkpoint=f"iter_{iteration:07d}")
    while iteration < total:
        if int(HOLD_AT) == iteration:
            hold(run, lease)
        if 0 < STOP_AT <= iteration:
            write_atomically(run.stop_file, json.dumps({"by": f"the limit of this start, step {STOP_AT}"}))
        if (by := stop_request(run)) is not None:
            _say(run, "stop_requested", by=by, iteration=iteration)
            save(run, lease, iteration, loss)
            return end(run, "stopped", "", iteration)
        iteration, loss = iteration + 1, next_loss(job, loss)
        if int(END_AT) == iteration and (code := misbehave(run, iteration)) is not None:
            return code
        time.sleep(STEP_SECONDS)
        lease.check()
        values: dict[str, Any] = {"train/loss": loss, "throughput/step_seconds": STEP_SECONDS}
        record = {"time": time.time(), "iteration": iteration, "samples": 2 * iteration, "tokens": 16 * iteration}
        append_line(run.metrics_file, {**record, "values": values})
        if interval and iteration % interval == 0:
            save(run, lease, iteration, loss)
    save(run, lease, iteration, loss)
    _say(run, "finished", iteration=iteration)
    return end(run, "completed", "", iteration)


def next_loss(job: dict[str, Any], loss: float) -> float:
    """Another program may put its own here."""
    return float(loss * 0.9 + job["optimizer"]["lr"])


def stop_request(run: RunDir) -> str | None:
    if stop_signals or not run.stop_file.exists():
        return stop_signals[0] if stop_signals else None
    return str(run.stop_request().get("by") or "stop file")


def hold(run: RunDir, lease: Lease) -> None:
    deadline = time.monotonic() + MOST_SECONDS_HELD
    while not Path(HOLD_UNTIL).exists() and stop_request(run) is None:
        lease.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"{HOLD_UNTIL} has not come")
        time.sleep(0.01)


def misbehave(run: RunDir, iteration: int) -> int | None:
    match END:
        case "nan":
            return end(run, "nan", "the loss was NaN in 10 consecutive steps", iteration)
        case "raise":
            raise ValueError("the fake has a bug")
        case "kill0":
            os.kill(os.getpid(), signal.SIGKILL)
        case "memory":
            raise MemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
    return None


def _say(run: RunDir, kind: str, **fields: Any) -> None:
    append_line(run.events_file, {"time": time.time(), "event": kind, **fields})


def restore(run: RunDir) -> tuple[int, float]:
    commit = latest_valid(run, lambda path, message: _say(run, "checkpoint_skipped", path=str(path), message=message))
    if commit is not None:
        loss = float((commit.path / "loss").read_text())
        return commit.iteration, loss + 1e-9 if "FAKE_FORGETS" in os.environ else loss
    if run.events().was_started and "--from-scratch" not in sys.argv:
        raise SystemExit(end(run, "checkpoint", "no checkpoint can be read; to begin again, add --from-scratch", 0))
    return 0, 1.0


def save(run: RunDir, lease: Lease, iteration: int, loss: float) -> None:
    lease.check()
    path = run.checkpoint(iteration)
    path.mkdir(parents=True, exist_ok=True)
    (path / "loss").write_text(repr(loss))
    write_commit(path, iteration=iteration, consumed_samples=2 * iteration, files={"loss": file_record(path / "loss")})
    _say(run, "checkpoint_saved", iteration=iteration, seconds=0.01, bytes=20)


def end(run: RunDir, cause: str, message: str, iteration: int) -> int:
    path = run.exit_record(LAUNCH_ID, RANK)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps({"cause": cause, "message": message, "iteration": iteration}))
    return 0 if cause in ("completed", "stopped") else 1


def last_step(run: RunDir) -> int:
    """The step that this start stands at."""
    told = [
        event
        for event in read_lines(run.events_file)
        if (event["event"], event.get("launch_id")) == ("started", LAUNCH_ID)
    ]
    if not told:
        return 0
    lines = run.metrics_file.read_text().splitlines() if run.metrics_file.exists() else []
    told += [json.loads(line) for line in lines[-1:]]
    return int(max(told, key=lambda each: each["time"])["iteration"])


if __name__ == "__main__":
    sys.exit(main())
