"""Starting ranks without torchrun, from one process that has imported torch and megatron-core already.

A start costs a second instead of five to ten. `python ranks.py` is that process: it reads one request a line, forks a
supervisor for it (a session of its own), and that forks the ranks. When a rank fails the supervisor ends the others, as
torchrun does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SECONDS_TO_END = 10


@dataclass(frozen=True)
class Started:
    """Ranks that were started. The exit code is in the file `done` when all have ended."""

    supervisor: int
    ranks: list[int]
    done: Path

    def poll(self) -> int | None:
        """0 when every rank succeeded, 1 when one did not, None while some run."""
        return int(self.done.read_text()) if self.done.exists() else None

    def wait(self, timeout: float = 240) -> int:
        """The exit code; on time-out everything is killed."""
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                self.signal(signal.SIGKILL)
                raise TimeoutError(f"the ranks did not end within {timeout} s")
            time.sleep(0.01)
        return code

    def signal(self, number: int) -> None:
        """Send a signal to every rank."""
        for pid in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


class RankStarter:
    """The process that forks. `start` may be called any number of times, also while others run."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._count = 0
        with open(scratch / "starter.log", "wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def start(
        self,
        run_dir: Path,
        world_size: int,
        *arguments: str,
        launch_id: str = "test",
        inject: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Started:
        """Start the training program; `inject` is a Python file that each rank executes first."""
        self._count += 1
        done = self._scratch / f"done-{self._count}"
        request = {
            "arguments": [str(run_dir), *arguments],
            "world_size": world_size,
            "environment": {**(env or {}), "ORCHESTRATOR_LAUNCH_ID": launch_id},
            "inject": str(inject) if inject else None,
            "done": str(done),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        reply = json.loads(self._process.stdout.readline())
        return Started(reply["supervisor"], reply["ranks"], done)

    def close(self) -> None:
        """End the process; ranks that still run notice that nobody waits for them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def serve() -> None:
    """Fork a supervisor for each request on standard input."""
    import orchestrator.runtime.__main__ as program  # noqa: F401 - what every rank needs is imported before the forks

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        request = json.loads(line)
        reader, writer = os.pipe()
        supervisor = os.fork()
        if supervisor == 0:
            os.close(reader)
            supervise(request, writer)
        os.close(writer)
        with open(reader) as pipe:
            ranks = json.loads(pipe.read())
        print(json.dumps({"supervisor": supervisor, "ranks": ranks}), flush=True)


def supervise(request: dict[str, Any], reply: int) -> None:
    """Fork the ranks, wait for them, leave the exit code. Never returns."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(request["world_size"]):
        pid = os.fork()
        if pid == 0:
            os.close(reply)
            be_rank(rank, port, request)
        ranks.append(pid)
    os.write(reply, json.dumps(ranks).encode())
    os.close(reply)
    alive, failed = set(ranks), False
    signal.signal(signal.SIGALRM, lambda number, frame: [os.kill(pid, signal.SIGKILL) for pid in alive])
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if status and not failed:
            failed = True
            for other in alive:
                os.kill(other, signal.SIGTERM)
            signal.alarm(_SECONDS_TO_END)
    draft = Path(request["done"] + ".draft")
    draft.write_text(str(int(failed)))
    draft.rename(request["done"])
    os._exit(0)


def be_rank(rank: int, port: int, request: dict[str, Any]) -> None:
    """Run the training program as one rank. Never returns."""
    code = 1
    try:
        os.environ.update(
            request["environment"],
            RANK=str(rank),
            LOCAL_RANK=str(rank),
            WORLD_SIZE=str(request["world_size"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        if request["inject"]:
            exec(compile(Path(request["inject"]).read_text(), request["inject"], "exec"), {"__name__": "injected"})
        import orchestrator.runtime.__main__ as program

        sys.argv = ["orchestrator.runtime", *request["arguments"]]
        code = program.main()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
