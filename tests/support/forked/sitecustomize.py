"""First on PYTHONPATH: programs that begin with two seconds of importing torch are forked instead from a process that
has imported it, where RANKS_FROM names that one's socket (ranks.py). The process that was started stays, passes signals
on, and ends as the other does.

`-m torch.distributed.run` becomes what quick_torchrun has in its place, but where REAL_TORCHRUN is set
(torchrun_with_forks.py), and its ranks are forked as well. So are the tests' own programs, `-m …_program`, and those
that FORKED_TOO names: `MODULE@0` on the first node of a job alone.
"""

from __future__ import annotations

# Nothing that takes long to import: half of what a Python costs that only stands for another program.
import _signal
import _socket
import marshal
import os
import sys

PROGRAMS = (
    "orchestrator.evaluation",
    "orchestrator.conversion",
    "orchestrator.inference",
    "orchestrator.inference.serving",
    "torch.distributed.run",
)
NODE = "orchestrator.batch.node"
PASSED_ON = (_signal.SIGTERM, _signal.SIGINT, _signal.SIGHUP, _signal.SIGUSR1)


def stand_for(name: str, module: str, arguments: list[str]) -> int:
    """Have a program run in a process of its own; its exit code."""
    connection = _socket.socket(_socket.AF_UNIX)
    folder = os.open(os.path.dirname(name), os.O_PATH)
    connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(name)}")
    os.close(folder)
    request = {"module": module, "arguments": arguments, "env": dict(os.environ), "cwd": os.getcwd()}
    request["is_safe"] = bool(sys.flags.safe_path)
    message = marshal.dumps(request)
    streams = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2))
    ancillary = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, streams)]
    connection.sendmsg([len(message).to_bytes(4, "big")], ancillary)
    connection.sendall(message)
    if not (first := line_of(connection)):
        raise ConnectionResetError("nobody forks there")
    there = int(first)
    send = os.killpg if module == NODE else os.kill  # SLURM's go to a whole step
    for number in PASSED_ON:
        _signal.signal(number, lambda number, frame: send(there, number))
    return int(line_of(connection) or 1)


def line_of(connection: _socket.socket) -> bytes:
    """The next line that is answered; nothing at the end."""
    line = b""
    while not line.endswith(b"\n") and (byte := connection.recv(1)):
        line += byte
    return line


def is_forked(module: str) -> bool:
    if module == NODE and os.environ["SLURM_NODEID"] != "0":  # it becomes another program, with this process's number
        return False
    named = {module, f"{module}@{os.environ.get('SLURM_NODEID')}"} & {*os.environ.get("FORKED_TOO", "").split()}
    return module in PROGRAMS or module.endswith("_program") or bool(named)


def begin() -> None:
    words = iter(sys.orig_argv[1:])
    option, module = next((word for word in words if word not in ("-u", "-P")), ""), next(words, "")
    if "RANKS_FROM" in os.environ and option == "-m" and is_forked(module):
        try:
            os._exit(stand_for(os.environ["RANKS_FROM"], module, list(words)))
        except (ConnectionError, FileNotFoundError):  # where nobody can fork, it starts as ever
            return


begin()
