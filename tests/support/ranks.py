"""Starting ranks without torchrun, from one process that has imported torch and megatron-core already.

A start costs a second instead of five to ten. `python ranks.py` is that process: it reads one request a line, forks a
supervisor for it (a session of its own), and that forks the ranks. When a rank fails the supervisor ends the others, as
torchrun does. What stands in for programs that others start (forked/) asks by a socket.

A process that uses CUDA cannot fork others that do. Should a version use it on import, each rank imports for itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import functools
import importlib.metadata
import json
import marshal
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from support.rank_processes import Started

_SECONDS_TO_END = 10.0
_FIRST_PORT = 10_000
_TORCHRUN = Path(__file__).parent / "quick_torchrun" / "torch" / "distributed" / "run.py"
_REAL_TORCHRUN = Path(__file__).with_name("torchrun_with_forks.py")
_ASKING = Path(__file__).with_name("asking.py")
_FORKED = Path(__file__).parent / "forked"
_TESTS = Path(__file__).parents[1]
ROOM = "ROOM_FOR_VARIABLES"
_CHANCE = random.SystemRandom()  # the tests of several processes must not draw the same


class RankStarter:
    """The process that forks. `start` may be called any number of times, also while others run."""

    def __init__(self, scratch: Path, *modules: str) -> None:
        """`modules`: what is imported besides before the forks."""
        from support.rank_template import program_that_forks, variables_before_the_forks

        self._scratch = scratch
        self._count = 0
        self._one_at_a_time = threading.Lock()
        self._log = scratch / "starter.log"
        self.name = str(scratch / "socket")
        """RANKS_FROM of programs that are to be forked here as well."""
        with open(self._log, "wb") as log, socket.socket(socket.AF_UNIX) as listening:
            folder = os.open(scratch, os.O_PATH)
            listening.bind(f"/proc/self/fd/{folder}/socket")  # its whole name may be longer than a socket's can be
            os.close(folder)
            listening.listen()
            self._process = subprocess.Popen(
                [*program_that_forks(), str(listening.fileno()), ",".join(modules)],
                env=variables_before_the_forks(),
                pass_fds=[listening.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def start(
        self,
        run_dir: Path,
        world_size: int,
        *arguments: str,
        launch_id: str = "test",
        inject: Path | None = None,
        env: Mapping[str, str] | None = None,
        program: Path | None = None,
        seconds_to_end: float = _SECONDS_TO_END,
        per_node: int | None = None,
        chooses_core: bool = False,
    ) -> Started:
        """Start the training program, or another one, whose `main` is called; `inject` is a Python file that each rank
        executes first. When a rank fails, the others have `seconds_to_end`. With `per_node` every so many ranks take
        themselves for a node: those of several nodes share this machine's GPUs. `chooses_core`: they do themselves.
        """
        from support.rank_processes import Started

        with self._one_at_a_time:
            self._count += 1
            done = self._scratch / f"done-{self._count}"
        request = {
            "arguments": [str(run_dir), *arguments],
            "world_size": world_size,
            "environment": {**(env or {}), "ORCHESTRATOR_LAUNCH_ID": launch_id},
            "inject": str(inject) if inject else None,
            "program": str(program) if program else None,
            "seconds_to_end": seconds_to_end,
            "per_node": per_node or world_size,
            "chooses_core": chooses_core,
            "done": str(done),
        }
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._one_at_a_time:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process that forks has ended: {self.said()}")
        reply = json.loads(answer)
        return Started(reply["supervisor"], reply["ranks"], done)

    def said(self) -> str:
        """The end of what the process and programs in ranks have written, where it was not to a file of their own."""
        return self._log.read_text(errors="replace")[-3000:]

    def close(self) -> None:
        """End the process; ranks that still run notice that nobody waits for them."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


def import_all() -> None:
    """What every rank needs is there before the forks."""
    import torch

    from orchestrator.kernel_selection.libraries import versions_of
    from orchestrator.models import blocks
    from orchestrator.planning.hardware.devices import shipped
    from orchestrator.spec.schema.canonical import config_hash

    for program in ("runtime", "conversion", "data", "evaluation", "inference", "inference.serving"):
        importlib.import_module(f"orchestrator.{program}.__main__")
    later = ["torch.utils._device", "torch.utils.serialization.config", "orchestrator.runtime.layers.torch_layers"]
    later += (f"{blocks.__name__}.{each.parent.name}.layers" for each in Path(blocks.__path__[0]).glob("*/layers.py"))
    for module in later:  # a rank does so once it has read its job
        importlib.import_module(module)
    if torch.cuda.is_available():
        import torch._inductor.compile_fx
    # What each rank would find out at its start, and is the same for all.
    importlib.metadata.version = functools.cache(importlib.metadata.version)
    versions_of(["torch", "megatron-core", "triton", "numpy", "tokenizers", "mlflow", "megatron-orchestrator"])
    config_hash({})
    shipped("")


def serve(listening: socket.socket, modules: Sequence[str]) -> None:
    """Fork a supervisor for each request on standard input."""
    from orchestrator.imports import staying

    with staying():
        import_all()
        for module in modules:
            importlib.import_module(module)
    afresh = uses_cuda()
    if afresh:
        print("importing has begun to use CUDA: every rank imports for itself", file=sys.stderr, flush=True)
        listening.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    del os.environ[ROOM]
    sources = [sys.stdin] if afresh else [sys.stdin, listening]
    while True:
        if listening in select.select(sources, [], [])[0]:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                stand_for(connection)
            connection.close()
            continue
        if not (line := sys.stdin.readline()):
            return
        request = json.loads(line)
        reader, writer = os.pipe()
        supervisor = os.fork()
        if supervisor == 0:
            os.close(reader)
            supervise(request, writer, afresh)
        os.close(writer)
        with open(reader) as pipe:
            ranks = json.loads(pipe.read())
        print(json.dumps({"supervisor": supervisor, "ranks": ranks}), flush=True)


def supervise(request: dict[str, Any], reply: int, afresh: bool) -> None:
    """Fork the ranks, wait for them, leave the exit code. Never returns. `afresh`: ranks import for themselves."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if "PYTEST_XDIST_WORKER" in os.environ and not request["chooses_core"]:
        core, _ = free_core()
        os.sched_setaffinity(0, {core})
    port = free_port()
    ranks = []
    for rank in range(request["world_size"]):
        pid = os.fork()
        if pid == 0:
            os.close(reply)
            if afresh:
                os.execv(sys.executable, [sys.executable, "-P", __file__, str(rank), str(port), json.dumps(request)])
            be_rank(rank, port, request)
        ranks.append(pid)
    os.write(reply, json.dumps(ranks).encode())
    os.close(reply)
    alive, failed = set(ranks), False

    def kill(number: int, frame: object) -> None:
        for pid in alive:
            os.kill(pid, signal.SIGKILL)

    signal.signal(signal.SIGALRM, kill)
    while alive:
        pid, status = os.wait()
        alive.discard(pid)
        if status and not failed:
            failed = True
            for other in alive:
                os.kill(other, signal.SIGTERM)
            signal.setitimer(signal.ITIMER_REAL, max(request["seconds_to_end"], 1e-3))
    draft = Path(request["done"] + ".draft")
    draft.write_text(str(int(failed)))
    draft.rename(request["done"])
    os._exit(0)


def free_core() -> tuple[int, int | None]:
    """A core for ranks, while one can be found one that no others have: none has it until what is opened here, which is
    inherited, is closed, and closed where this process and its ranks have ended.

    Where as many tests run as there are cores, ranks that wait for each other on different ones gain nothing by it, and
    each message between them wakes a core up: half as much again of CPU time in a tensor-parallel training.
    """
    cores = list(os.sched_getaffinity(0))
    _CHANCE.shuffle(cores)
    for core in cores:
        place = os.open(f"/sys/devices/system/cpu/cpu{core}", os.O_RDONLY)
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return core, place
        except BlockingIOError:
            os.close(place)
    return core, None


def free_port() -> int:
    """A port for a program that is yet to start. It is none of those that the system hands out by itself: of these,
    whoever asks for any port meanwhile may get it.
    """
    first_handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = _CHANCE.randrange(_FIRST_PORT, first_handed_out)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def uses_cuda() -> bool:
    """Whether this process has begun to use CUDA: its driver then answers."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)


def stand_for(connection: socket.socket) -> None:
    """Run a program in the place of one that was started, and say how it ended. Never returns."""
    is_elsewhere = runpy.run_path(str(_ASKING))["take_the_place_of_who_asks"](connection)
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, streams, _, _ = socket.recv_fds(connection, 4, 3)
    request = marshal.loads(connection.makefile("rb").read(int.from_bytes(size, "big")))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Ours may have been of another kind, which can be rewound.
    sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    os.chdir(request["cwd"])
    env, module, arguments = request["env"], request["module"], request["arguments"]
    connection.sendall(f"{os.getpid()}\n".encode())
    if module == "torch.distributed.run" and "REAL_TORCHRUN" not in env:
        os.environ.clear()
        os.environ.update(env)
        sys.argv = ["torchrun", *arguments]

        def is_left() -> bool:
            left = bool(select.select([connection], [], [], 0)[0])
            if left and is_elsewhere:  # SLURM ends what a step has started, and does not find these
                os.killpg(0, signal.SIGKILL)
            return left

        code = runpy.run_path(str(_TORCHRUN))["main"](LaunchedRank, is_left)
    else:
        threading.Thread(target=end_with, args=[connection, is_elsewhere], daemon=True).start()
        if module == "torch.distributed.run":
            runpy.run_path(str(_REAL_TORCHRUN))["fork_ranks"](LaunchedRank)
        code = run_module([module, *arguments], env, is_safe=request["is_safe"])
    os._exit(code)


def end_with(connection: socket.socket, is_elsewhere: bool) -> None:
    """End this process when the one is killed that it stands for."""
    connection.recv(1)
    if is_elsewhere:
        os.killpg(0, signal.SIGKILL)  # SLURM does not find what this has started
    os._exit(1)


class LaunchedRank:
    """A rank that is forked here, with what is needed of a `Popen`."""

    def __init__(self, module: Sequence[str], env: Mapping[str, str]) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            os._exit(run_module(module, env))

    def poll(self) -> int | None:
        """The exit code, or None."""
        if self.returncode is None and (found := os.waitpid(self.pid, os.WNOHANG))[0]:
            self.returncode = os.waitstatus_to_exitcode(found[1])
        return self.returncode

    def wait(self, timeout: float = 240) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("rank", timeout)
            time.sleep(0.01)
        return code

    def terminate(self) -> None:
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


def run_module(module: Sequence[str], env: Mapping[str, str], *, is_safe: bool = False) -> int:
    """What `python -m` with these variables would do; its exit code. `is_safe`: what `python -P -m` would."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    show_variables(env)
    folders = [each for each in env.get("PYTHONPATH", "").split(os.pathsep) if each not in ("", str(_FORKED))]
    sys.path[:0] = folders if is_safe else [os.getcwd(), *folders]
    if "IMPORT_AGAIN" in env:  # our package, from what PYTHONPATH says
        for name in [name for name in sys.modules if name.partition(".")[0] == "orchestrator"]:
            del sys.modules[name]
    sys.modules.pop(f"{module[0]}.__main__", None)  # it is executed anew
    if sets_variables := sys.modules.get("orchestrator.tracking.mlflow.environment"):
        importlib.reload(sets_variables)
    code: str | int | None = 1
    try:
        for folder in folders:
            if (first := Path(folder) / "sitecustomize.py").exists():
                runpy.run_path(str(first))
        sys.argv = list(module)
        runpy.run_module(module[0], run_name="__main__", alter_sys=True)
        code = 0
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def show_variables(env: Mapping[str, str]) -> None:
    """Have the system show these as the variables of this process: it shows the place where they were at the start."""
    content = b"".join(f"{name}={value}".encode() + b"\0" for name, value in env.items())
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    if len(content) > end - start:
        raise ValueError(f"{len(content)} bytes of variables, and room for {end - start}")
    ctypes.memmove(start, content.ljust(end - start, b"\0"), end - start)


def be_rank(rank: int, port: int, request: dict[str, Any]) -> None:
    """Run the training program as one rank. Never returns."""
    code = 1
    node, local_rank = divmod(rank, request["per_node"])
    try:
        os.environ.update(
            request["environment"],
            RANK=str(rank),
            LOCAL_RANK=str(local_rank),
            LOCAL_WORLD_SIZE=str(request["per_node"]),
            WORLD_SIZE=str(request["world_size"]),
            MASTER_ADDR="127.0.0.1",
            MASTER_PORT=str(port),
        )
        if request["per_node"] < request["world_size"]:
            os.environ["NCCL_HOSTID"] = f"node-{node}"  # NCCL refuses two ranks on one GPU of one host
        if request["inject"]:
            exec(compile(Path(request["inject"]).read_text(), request["inject"], "exec"), {"__name__": "injected"})
        import orchestrator.runtime.__main__ as training

        sys.argv = [request["program"] or "orchestrator.runtime", *request["arguments"]]
        if request["program"]:
            sys.path.append(str(_TESTS))  # it imports what tests do
        main = runpy.run_path(request["program"])["main"] if request["program"] else training.main
        code = main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    if sys.argv[3:]:
        be_rank(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))
    serve(socket.socket(fileno=int(sys.argv[1])), list(filter(None, sys.argv[2].split(","))))
