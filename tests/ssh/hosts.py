"""Machines with a real sshd each, for the tests, with the faults that they play.

The machines h1, h2, ... are those of slurm/machine.py, in one network; one link leads from there to this machine, which
reaches them by an `ssh` that has settings of its own: far1, far2, ... are the same by way of h1. They share all files
with it.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from slurm.machine import Machine, MachineError, hardware_address, run, wait_until

SSHD = """\
Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/{name}.pid
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
StrictModes no
UsePAM no
SetEnv HOME={folder}/home
"""
SSH = """\
Host far*
  ProxyJump h1
Host h* far*
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  StrictHostKeyChecking yes
  LogLevel ERROR
  # By default keys are exchanged in a way that takes a tenth of a second of the processor.
  KexAlgorithms curve25519-sha256
"""


class Hosts:
    """Machines h1, h2, ... behind a switch."""

    def __init__(self, count: int, changing: Callable[[], AbstractContextManager[None]]) -> None:
        self.names = [f"h{number}" for number in range(1, count + 1)]
        self._changing = changing
        self._folder = Path(tempfile.mkdtemp(prefix="hosts-", dir="/tmp"))
        self._switch = Machine("switch", self._folder)
        self._machines = {name: Machine(name, self._folder) for name in self.names}
        self._link: str | None = None
        self._network = ""
        self._disturbed: set[str] = set()

    @property
    def path(self) -> str:
        """PATH with the `ssh` that knows these machines."""
        return f"{self._folder / 'bin'}:{os.environ['PATH']}"

    def address(self, name: str) -> str:
        """Its address in the network."""
        return f"{self._network}.{10 + int(name[1:])}"

    def start(self) -> None:
        """Raises MachineError where namespaces are not allowed. Whoever calls it calls `stop`, also when it fails."""
        Path("/run/sshd").mkdir(exist_ok=True)  # where sshd keeps its parts apart
        (self._folder / "hosts").write_text("127.0.0.1 localhost\n")
        (self._folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        for key in ("key", "host_key"):
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self._folder / key))
        (self._folder / "home").mkdir()  # what this machine's own shells begin with is nothing of ours
        self._switch.boot()
        with self._changing():
            self._connect()
        public = (self._folder / "host_key.pub").read_text()
        with open(self._folder / "hosts", "a") as hosts, open(self._folder / "known_hosts", "a") as known:
            for name in self.names:
                hosts.write(f"{self.address(name)} {name}\n")
                known.write(f"{self.address(name)} {public}")
        settings = self._folder / "ssh_config"
        lines = "".join(f"Host {name} far{name[1:]}\n  HostName {self.address(name)}\n" for name in self.names)
        settings.write_text(SSH.format(folder=self._folder) + lines)
        program = self._folder / "bin" / "ssh"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {settings} "$@"\n')
        program.chmod(0o755)
        for name in self.names:
            self.boot(name)

    def stop(self) -> None:
        """End every process of the machines and remove their files."""
        if self._link is not None:
            with self._changing():
                run("ip", "link", "delete", self._link, check=False)
        for machine in (*self._machines.values(), self._switch):
            machine.kill()
        shutil.rmtree(self._folder)

    def boot(self, name: str) -> None:
        """The machine (again), in the network, with its sshd."""
        machine, number = self._machines[name], 10 + int(name[1:])
        if not machine.is_up:
            (self._folder / f"{name}.pid").unlink(missing_ok=True)
            machine.boot()
            eth0 = ["name", "eth0", "address", hardware_address(number), "netns", str(machine.pid)]
            self._switch.ip("link", "add", name, "master", "bridge", "type", "veth", "peer", *eth0)
            machine.ip("address", "add", f"{self.address(name)}/24", "dev", "eth0")
            machine.ip("link", "set", "eth0", "up")
            self._switch.ip("link", "set", name, "up")
        self.start_sshd(name)

    def restore(self) -> None:
        """All machines are up again, in the network, and answer."""
        for name in self._disturbed:
            self.boot(name)
        self._disturbed.clear()
        for name in self.names:
            self.heal(name)

    def start_sshd(self, name: str, more: str = "") -> None:
        """`more`: lines of its settings."""
        settings = self._folder / f"{name}.sshd_config"
        settings.write_text(SSHD.format(folder=self._folder, name=name) + more)
        pid = self._folder / f"{name}.pid"
        if pid.exists():
            self._machines[name].run("kill", "-CONT", pid.read_text().strip())
        else:
            self._machines[name].run("/usr/sbin/sshd", "-f", str(settings), "-E", str(self._folder / f"{name}.log"))
        ssh = str(self._folder / "bin" / "ssh")
        wait_until(lambda: run(ssh, name, "true", check=False).returncode == 0, f"{name} answers")

    def stop_sshd(self, name: str) -> None:
        """The machine refuses connections from now on; those that there are stay."""
        self._disturbed.add(name)
        pid = (self._folder / f"{name}.pid").read_text().strip()
        self._machines[name].run("kill", pid)
        wait_until(lambda: not (self._folder / f"{name}.pid").exists(), f"sshd of {name} has ended")

    def pause_sshd(self, name: str) -> None:
        """The machine takes connections and says nothing, until it is booted again."""
        self._disturbed.add(name)
        pid = (self._folder / f"{name}.pid").read_text().strip()
        self._machines[name].run("kill", "-STOP", pid)

    def sshd_log(self, name: str) -> str:
        """What its sshd has said."""
        return (self._folder / f"{name}.log").read_text()

    def kill(self, name: str) -> None:
        """Power failure: nothing of it goes on, and nothing is heard of it."""
        self._disturbed.add(name)
        self._switch.ip("link", "delete", name)
        self._machines[name].kill()

    def cut(self, name: str) -> None:
        """Unplug its network; all on it goes on."""
        self._switch.ip("link", "set", name, "down")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        self._switch.ip("link", "set", name, "up")

    def processes(self, name: str, word: str) -> list[str]:
        """The command lines of the machine's processes that hold a word."""
        lines = self._machines[name].run("ps", "-eo", "pid=,args=").stdout.splitlines()
        return [line for line in lines if word in line]

    def run(self, name: str, *command: str, check: bool = True) -> str:
        """What a command on the machine prints."""
        return self._machines[name].run(*command, check=check, variables={"PATH": self.path}).stdout

    def _connect(self) -> None:
        self._switch.ip("link", "add", "bridge", "address", hardware_address(1), "type", "bridge")
        routes = run("ip", "-4", "route", "show").stdout
        for number in random.sample(range(512), 512):
            network = f"198.{18 + number // 256}.{number % 256}"  # of 198.18.0.0/15, which is set aside for tests
            name = f"hosts-{number}"
            link = f"ip link add {name} type veth peer name login netns {self._switch.pid}".split()
            if f"{network}." not in routes and run(*link, check=False).returncode == 0:
                self._link, self._network = name, network
                break
        else:
            raise MachineError("no network interface could be added")
        run("ip", "link", "set", self._link, "addrgenmode", "none")
        run("ip", "address", "add", f"{self._network}.254/24", "dev", self._link)
        run("ip", "link", "set", self._link, "up")
        self._switch.ip("link", "set", "login", "up", "master", "bridge")
        self._switch.ip("address", "add", f"{self._network}.1/24", "dev", "bridge")
        self._switch.ip("link", "set", "bridge", "up")
