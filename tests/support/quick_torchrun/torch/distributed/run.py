"""What torchrun does with ranks, in a tenth of a second instead of two: it does not import torch.

It starts this machine's ranks with their variables. When one fails it ends the others, and says so in torchrun's words;
so it does when it is told to end itself. It takes the options that our launch scripts give it. Its ranks import the
real torch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

OWN = Path(__file__).parents[2]
FIRST_PORT = 10_000

REPORT = """\
E1122 00:00:00.000000 {own} torch/distributed/elastic/multiprocessing/api.py:1002] failed
[{rank}]:
  host      : {host}
  rank      : {rank} (local_rank: {local})
  exitcode  : {code} (pid: {pid})
"""
CLOSES = (
    "W1122 00:00:00.000000 {own} torch/distributed/elastic/multiprocessing/api.py:1028] "
    "Sending process {pid} closing signal SIGTERM"
)


class Rank(Protocol):
    """What this needs of a process."""

    pid: int
    returncode: int | None

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def start_rank(module: Sequence[str], env: Mapping[str, str]) -> Rank:
    return subprocess.Popen([sys.executable, "-P", "-m", *module], env=env)


def main(
    start: Callable[[Sequence[str], Mapping[str, str]], Rank] = start_rank, is_left: Callable[[], bool] = bool
) -> int:
    """Start ranks and see them through. When `is_left` says so, this has ended, and nobody sees them through."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--standalone", action="store_true")
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node-rank", type=int, default=int(os.environ.get("NODE_RANK", "0")))
    parser.add_argument("--nproc-per-node", type=int, required=True)
    for ignored in ("--master-addr", "--master-port", "--rdzv-id", "--rdzv-backend"):
        parser.add_argument(ignored)
    parser.add_argument("-m", dest="module", nargs=argparse.REMAINDER, required=True)
    words = sys.argv[1:]
    if "--no-python" in words:  # PYTHON -P -u -m MODULE …; a template of the user's own may have -m MODULE … alone
        at = words.index("--no-python")
        assert words[at + 2 : at + 5] == ["-P", "-u", "-m"], words
        del words[at : at + 4]
    options = parser.parse_args(words)
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: told.append(number))
    first, world_size = options.node_rank * options.nproc_per_node, options.nnodes * options.nproc_per_node
    ranks: list[Rank] = []
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()} if options.standalone else {}
    path = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each != str(OWN)]
    of_all = {"WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": options.nproc_per_node, "GROUP_RANK": options.node_rank}
    for local in range(options.nproc_per_node):
        variables = {**of_all, **meeting, "RANK": first + local, "LOCAL_RANK": local, "PYTHONPATH": ":".join(path)}
        ranks.append(start(options.module, {**os.environ, **{name: str(value) for name, value in variables.items()}}))
    while not told and None in [rank.poll() for rank in ranks] and not any(rank.returncode for rank in ranks):
        if is_left():
            return 1
        time.sleep(0.02)
    close(ranks)
    failed = {local: rank for local, rank in enumerate(ranks) if rank.returncode}
    for local, rank in failed.items():
        place = {"host": socket.gethostname(), "rank": first + local, "local": local}
        print(REPORT.format(own=os.getpid(), code=rank.returncode, pid=rank.pid, **place), file=sys.stderr, end="")
    sys.stderr.flush()
    return int(bool(failed or told))


def free_port() -> int:
    """A port to meet at, and none of those that the system hands out by itself: as in ranks.py."""
    first_handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = FIRST_PORT + int.from_bytes(os.urandom(4), "big") % (first_handed_out - FIRST_PORT)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def close(ranks: Sequence[Rank]) -> None:
    """End those that run, as torchrun does, by force after a while."""
    for rank in ranks:
        if rank.poll() is None:
            print(CLOSES.format(own=os.getpid(), pid=rank.pid), file=sys.stderr, flush=True)
            rank.terminate()
    deadline = time.monotonic() + float(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30"))
    for rank in ranks:
        try:
            rank.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            rank.kill()
            rank.wait()


if __name__ == "__main__":
    sys.exit(main())
