"""A laptop: a machine without SLURM and torch, which reaches this one, the login node, by a real sshd alone."""

from __future__ import annotations

import contextlib
import os
import random
import select
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from slurm.machine import Machine, MachineError, hardware_address, run, wait_until
from support.commands import Commands

SLURM = ("sbatch", "scancel", "scontrol", "sacct", "sinfo", "squeue", "srun")
HIDDEN = ("torch", "megatron", "transformer_engine")
ANSWERS = """\
ListenAddress {address}
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
SetEnv {variables}
"""
CALLS = """\
Host login
  HostName {address}
  User root
  IdentityFile {home}/.ssh/key
  IdentitiesOnly yes
  UserKnownHostsFile {home}/.ssh/known_hosts
  StrictHostKeyChecking yes
  LogLevel ERROR
  # By default keys are exchanged in a way that takes a tenth of a second of the processor.
  KexAlgorithms curve25519-sha256
"""


class Laptop:
    """Its home and project are on a disk of its own. `project` is where its person works."""

    def __init__(self, changing: Callable[[], AbstractContextManager[None]]) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="laptop-", dir="/tmp"))
        self._machine = Machine("laptop", self._folder)
        self._disk = self._folder / "disk"
        self._changing = changing
        self._link: str | None = None
        self._commands: Commands | None = None
        self.project = self._disk / "project"
        self.home = self._disk / "home"

    def start(self, variables: dict[str, str]) -> None:
        """Raises MachineError where namespaces are not allowed. `variables` are set for whoever logs in."""
        Path("/run/sshd").mkdir(exist_ok=True)
        (self._folder / "hosts").write_text("127.0.0.1 localhost\n")
        (self._folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self._disk.mkdir()
        for key in ("key", "host_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / key))
        self._machine.boot()
        with self._changing():
            self._address = self._connect()
        self._take_away()
        self._settle()
        (self._folder / "home").mkdir()  # there: what this machine's own shells begin with is nothing of ours
        self._of_logins = variables
        self.answer_with({})

    def stop(self) -> None:
        """End its processes and the sshd, and remove its files."""
        self.break_connections()
        if (pid := self._folder / "sshd.pid").exists():
            run("kill", pid.read_text().strip(), check=False)
        if self._link is not None:
            with self._changing():
                run("ip", "link", "delete", self._link, check=False)
        self._machine.kill()
        shutil.rmtree(self._folder)

    def write(self, name: str, text: str) -> None:
        """A file of the project."""
        self.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "-", str(self.project / name), text)

    def fork_commands(self, commands: Commands) -> None:
        """Commands that are typed from now on are forked."""
        self._commands = commands

    def answer_with(self, more: Mapping[str, str]) -> None:
        """Whoever logs in from now on has more variables. Connections break."""
        there = {"HOME": self._folder / "home", **self._of_logins, **more}
        said = " ".join(f'"{name}={value}"' for name, value in there.items())
        settings = self._folder / "sshd_config"
        settings.write_text(ANSWERS.format(address=self._address, folder=self._folder, variables=said))
        pid = self._folder / "sshd.pid"
        if pid.exists():
            self.break_connections()
            run("kill", pid.read_text().strip())
            wait_until(lambda: not pid.exists(), "the sshd has ended")
        run("/usr/sbin/sshd", "-f", str(settings), "-E", str(self._folder / "sshd.log"))
        wait_until(lambda: self.run("ssh", "login", "true", check=False).returncode == 0, "the login node answers")

    def __call__(self, *words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`orchestrator`, typed in the project."""
        if self._commands is None:
            return self.run(sys.executable, "-P", "-m", "orchestrator", *map(str, words), check=check)
        there = self._machine.inside
        said = self._commands(*words, cwd=self.project, env={**os.environ, **self._variables()}, entered=there)
        assert said.code == 0 or not check, f"{words} ended with {said.code}: {said.out}{said.err}"
        return subprocess.CompletedProcess(words, said.code, said.out, said.err)

    @contextmanager
    def started(self, *words: str) -> Iterator[subprocess.Popen[str]]:
        """The same, beside the test."""
        command = [*self._machine.entered(), *self._in_the_project(sys.executable, "-P", "-m", "orchestrator", *words)]
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            command,
            env={**os.environ, **self._variables()},
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)  # nsenter, and what it has started there
            process.communicate()

    def cut(self) -> None:
        """Unplug its network."""
        assert self._link is not None
        run("ip", "link", "set", self._link, "down")

    def heal(self) -> None:
        """Plug it in again."""
        assert self._link is not None
        run("ip", "link", "set", self._link, "up")

    def break_connections(self) -> int:
        """Kill what the sshd has started for each connection; how many there were."""
        pid = (self._folder / "sshd.pid").read_text().strip()
        connections = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in connections:
            run("kill", "-KILL", each, check=False)
        return len(connections)

    @contextmanager
    def breaking_connections(self, times: int, most_seconds: float) -> Iterator[None]:
        """Meanwhile, kill the connections so many times, each within that time after the last."""
        is_over, left = threading.Event(), [times]

        def kill() -> None:
            while left[0] and not is_over.wait(random.uniform(0.1, most_seconds)):
                left[0] -= bool(self.break_connections())

        killer = threading.Thread(target=kill)
        killer.start()
        try:
            yield
        finally:
            is_over.set()
            killer.join()

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        return self._machine.run(*self._in_the_project(*command), check=check, variables=self._variables())

    def _in_the_project(self, *command: str) -> list[str]:
        return ["sh", "-c", 'mkdir -p "$0" && cd "$0" && exec "$@"', str(self.project), *command]

    def _variables(self) -> dict[str, str]:
        """Of its person; none of the tests' own."""
        dropped = dict.fromkeys(("SLURM_CONF", "PYTHONPATH"), "")
        return {
            **dropped,
            "HOME": str(self.home),
            "XDG_CONFIG_HOME": "",
            "PATH": f"{self.home}/bin:{os.environ['PATH']}",
        }

    def _connect(self) -> str:
        """Link it to this machine; this machine's address."""
        routes = run("ip", "-4", "route", "show").stdout
        for number in random.sample(range(512), 512):
            network = f"198.{18 + number // 256}.{number % 256}"  # of 198.18.0.0/15, which is set aside for tests
            name = f"laptop-{number}"
            peer = f"name eth0 address {hardware_address(10)} netns {self._machine.pid}".split()
            link = ["ip", "link", "add", name, "type", "veth", "peer", *peer]
            if f"{network}." not in routes and run(*link, check=False).returncode == 0:
                self._link = name
                break
        else:
            raise MachineError("no network interface could be added")
        run("ip", "link", "set", self._link, "addrgenmode", "none")
        run("ip", "address", "add", f"{network}.254/24", "dev", self._link)
        run("ip", "link", "set", self._link, "up")
        self._machine.ip("address", "add", f"{network}.10/24", "dev", "eth0")
        self._machine.ip("link", "set", "eth0", "up")
        return f"{network}.254"

    def _take_away(self) -> None:
        """What a laptop does not have: SLURM's commands, torch, and other machines' disks."""
        for name in SLURM:
            if (path := shutil.which(name)) is not None:
                self._machine.run("mount", "--bind", "/dev/null", path)
        for folder in site.getsitepackages():
            for name in HIDDEN:
                if (path := Path(folder, name)).is_dir():
                    self._machine.run("mount", "-t", "tmpfs", "tmpfs", str(path))
        self._machine.run("mount", "-t", "tmpfs", "tmpfs", str(self._disk))

    def _settle(self) -> None:
        """Its person's home: a key, and an `ssh` that knows the login node."""
        settings = CALLS.format(address=self._address, home=self.home)
        known = f"{self._address} {(self._folder / 'host_key.pub').read_text()}"
        program = f'#!/bin/sh\nexec {shutil.which("ssh")} -F {self.home}/.ssh/config "$@"\n'
        files = {".ssh/config": settings, ".ssh/known_hosts": known, "bin/ssh": program}
        files[".ssh/key"] = (self._folder / "key").read_text()
        for name, text in files.items():
            path = str(self.home / name)
            self._machine.run("sh", "-c", 'mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "-", path, text)
        self._machine.run("chmod", "600", f"{self.home}/.ssh/key")
        self._machine.run("chmod", "755", f"{self.home}/bin/ssh")


def processes_with(word: str) -> dict[int, str]:
    """The command lines on this machine that hold a word, by their process."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has just ended
            line = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if word in line:
                found[int(folder.name)] = line
    return found


def agents() -> dict[int, str]:
    """The agents and keepers of commands on this machine."""
    return processes_with("compile(s.read(int(")


def wait_until_nothing_is_left(seconds: float) -> None:
    """Until no agent is on this machine."""
    deadline = time.monotonic() + seconds
    while left := agents():
        for pid in left:
            with contextlib.suppress(ProcessLookupError), open(os.pidfd_open(pid)) as ended:
                assert select.select([ended], [], [], max(0.0, deadline - time.monotonic()))[0], left
