"""A real SLURM cluster on this machine, for the tests, with the faults that they play.

    PYTHONPATH=tests python -m slurm.cluster [COMMAND ...]    a command (or a shell) beside a cluster that ends with it

The controller and the nodes n1, n2, ... are machines (machine.py). A bridge in the controller's network joins them, and
one link leads from there to this machine, the login node. Clusters do not see each other: names and ports are the
machines' own, and the network's address is one that is free.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from slurm.machine import Machine, MachineError, hardware_address, run, wait_until

GPU_TYPE = "h200"
SLURMD_PORT = 6818
ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "PREEMPTED",
    "TIMEOUT",
}

MESSAGE_TIMEOUT = 10
# Waiting times are short, so that faults are soon seen; but a daemon or a command that stands still for eight seconds
# on a busy machine loses no node, no job and no answer by it.
SLURM_CONF = """\
ClusterName=test
SlurmctldHost=controller({network}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# The credentials' lifetime is what a requeued job waits for: 120 s by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=10
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=5
MessageTimeout={message_timeout}
TCPTimeout=1
BatchStartTimeout=10
InactiveLimit=0
KillWait=20
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
PriorityType=priority/basic
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1,sched_min_interval=20000
GresTypes=gpu
NodeName=n[1-{nodes}] NodeAddr={network}.[11-{last}] CPUs=16 RealMemory=64000 Gres=gpu:{gpu_type}:{gpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=1-0 DefaultTime=60 PriorityTier=10
PartitionName=low Nodes=ALL MaxTime=1-0 DefaultTime=60 PriorityTier=1 GraceTime=5
"""
WITH_ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost={network}.1
AccountingStoragePass={folder}/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations,limits,qos
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=5
"""
WITHOUT_ACCOUNTING = """\
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
"""
SLURMDBD_CONF = """\
DbdHost=controller
DbdAddr={network}.1
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
LogFile={folder}/log/slurmdbd.log
PidFile={folder}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm
"""


class Cluster:
    """A controller and `nodes` nodes, n1 first, of 16 pretended cores, 64 GB and `gpus` pretended GPUs each.

    Partitions: `main`, the default, and `low`, whose jobs are requeued when `main` needs their nodes. With accounting
    there are the account `research` and the QoS `normal` and `debug` (30 minutes at most). `settings` are further lines
    of slurm.conf. `changing` is entered while the link to this machine is made, and while it is removed.
    """

    def __init__(
        self,
        nodes: int = 4,
        *,
        gpus: int = 2,
        accounting: bool = True,
        settings: Iterable[str] = (),
        changing: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.nodes = [f"n{number}" for number in range(1, nodes + 1)]
        self.accounting = accounting
        self._gpus = gpus
        self._settings = list(settings)
        self._changing = changing
        self._link: str | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))  # short: it holds sockets
        self._controller = Machine("controller", self._folder)
        self._machines = {name: Machine(name, self._folder) for name in self.nodes}
        self._disturbed: set[str] = set()

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables by which SLURM's commands find this cluster."""
        return {"SLURM_CONF": str(self._folder / "slurm.conf")}

    def start(self) -> None:
        """Raises MachineError where namespaces are not allowed. Whoever calls it calls `stop`, also when it fails."""
        for name in ("database", "dev", "log", "run", "spool", "state"):
            (self._folder / name).mkdir()
        (self._folder / "hosts").write_text("127.0.0.1 localhost\n")
        (self._folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        self._controller.boot()
        with self._changing():
            self._network = self._connect_controller()
        addresses = {"controller": 1, **{name: 10 + number for number, name in enumerate(self.nodes, start=1)}}
        with open(self._folder / "hosts", "a") as hosts:
            hosts.writelines(f"{self._network}.{number} {name}\n" for name, number in addresses.items())
        self._write_settings()
        self.start_munge()
        if self.accounting:
            self._start_database()
            self.start_accounting()
            self._add_accounts()
        self.start_controller()
        for name in self.nodes:
            self.start_node(name)
        wait_until(self._is_idle, "all nodes are idle")

    def stop(self) -> None:
        """End every process of the cluster and remove its files."""
        if self._link is not None:
            # With the controller it would go as well, but at some time after that.
            with self._changing():
                run("ip", "link", "delete", self._link, check=False)
        for machine in (*self._machines.values(), self._controller):
            machine.kill()
        shutil.rmtree(self._folder)

    def restore(self) -> None:
        """Back to all nodes idle: daemons and nodes started again, networks healed, jobs ended."""
        if not self._lives(self._controller, "munged"):
            self.start_munge()
        if self.accounting and not self._lives(self._controller, "slurmdbd"):
            self.start_accounting()
        if not self._lives(self._controller, "slurmctld"):
            self.start_controller()
        # What SLURM has lost sight of goes on for a while on a node that is back, but not on one that was booted.
        for name in self._disturbed:
            if self._machines[name].is_up:
                self.kill_node(name)
        self._disturbed.clear()
        for name in self.nodes:
            self.start_node(name)
        # A job that waits, to be started again for example, is seen on no node yet.
        if self._is_idle() and not self.call("squeue", "--noheader"):
            return
        wait_until(self._has_no_jobs, "all jobs have ended")
        wait_until(self._is_idle_again, "all nodes are idle")

    def _has_no_jobs(self) -> bool:
        # Again and again: a job may requeue itself when it is cancelled.
        self.call("scancel", "--user=root", check=False)
        return not self.call("squeue", "--noheader")

    def _is_idle_again(self) -> bool:
        # Again and again: SLURM may take a node out of service late, when it misses a job there.
        for name in self.call("sinfo", "--noheader", "--Node", "--states=down,drain", "--format=%N").split():
            self.call("scontrol", "update", f"NodeName={name}", "State=resume", check=False)
        return self._is_idle()

    def _is_idle(self) -> bool:
        return set(self.node_states().values()) == {"idle"}

    def _connect_controller(self) -> str:
        """Make the bridge and link this machine to it. Returns the first three numbers of a network that is free."""
        # By itself a bridge has the least address of what is plugged in: another one whenever that node goes.
        self._controller.ip("link", "add", "bridge", "address", hardware_address(1), "type", "bridge")
        routes = run("ip", "-4", "route", "show").stdout
        for number in random.sample(range(512), 512):
            network = f"198.{18 + number // 256}.{number % 256}"  # of 198.18.0.0/15, which is set aside for tests
            name = f"slurm-{number}"  # two clusters that choose the same number at once: the kernel lets one have it
            link = f"ip link add {name} type veth peer name login netns {self._controller.pid}".split()
            if f"{network}." not in routes and run(*link, check=False).returncode == 0:
                self._link = name
                break
        else:
            raise MachineError("no network interface could be added")
        # By itself the kernel adds an IPv6 address, two seconds later.
        run("ip", "link", "set", name, "addrgenmode", "none")
        run("ip", "address", "add", f"{network}.254/24", "dev", name)
        run("ip", "link", "set", name, "up")
        self._controller.ip("link", "set", "login", "up", "master", "bridge")
        self._controller.ip("address", "add", f"{network}.1/24", "dev", "bridge")
        self._controller.ip("link", "set", "bridge", "up")
        return network

    def _write_settings(self) -> None:
        self._write_slurm_conf(MESSAGE_TIMEOUT)
        settings = SLURMDBD_CONF.format(folder=self._folder, network=self._network)
        (self._folder / "slurmdbd.conf").write_text(settings)
        (self._folder / "slurmdbd.conf").chmod(0o600)
        # Of a plain file a job would see no CUDA_VISIBLE_DEVICES; a link to a device will do.
        devices = [self._folder / "dev" / f"nvidia{number}" for number in range(self._gpus)]
        for device in devices:
            device.symlink_to("/dev/null")
        gpus = "".join(f"Name=gpu Type={GPU_TYPE} File={device}\n" for device in devices)
        (self._folder / "gres.conf").write_text(f"AutoDetect=off\n{gpus}")
        # slurmd loads a cgroup plugin even when nothing uses it; this one does without a cgroup file system.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self._folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))

    def _write_slurm_conf(self, message_timeout: int) -> None:
        values = {
            "folder": self._folder,
            "network": self._network,
            "nodes": len(self.nodes),
            "last": 10 + len(self.nodes),
            "gpu_type": GPU_TYPE,
            "gpus": self._gpus,
            "message_timeout": message_timeout,
        }
        accounting = WITH_ACCOUNTING if self.accounting else WITHOUT_ACCOUNTING
        settings = (SLURM_CONF + accounting).format(**values) + "".join(f"{line}\n" for line in self._settings)
        draft = self._folder / "slurm.conf.draft"  # a command may read it at any moment
        draft.write_text(settings)
        draft.rename(self._folder / "slurm.conf")

    def _start_database(self) -> None:
        socket, log = self._folder / "database.socket", self._folder / "log" / "mariadbd"
        data, temporary = self._folder / "database" / "data", self._folder / "database" / "temporary"
        options = ["--no-defaults", "--user=root", f"--datadir={data}", "--innodb-log-file-size=16M"]
        # Its files there have the process's id in their names, which is another cluster's database's as well.
        options += [f"--tmpdir={temporary}"]
        # In memory that goes with the controller: quick on any disk, and gone when the test run is killed.
        self._controller.run("mount", "-t", "tmpfs", "tmpfs", f"{self._folder}/database")
        self._controller.run("mkdir", str(data), str(temporary))
        access = ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root"]
        self._controller.run("mariadb-install-db", *options, *access)
        options += [f"--socket={socket}", "--skip-networking", "--innodb-buffer-pool-size=64M"]
        options += ["--innodb-flush-log-at-trx-commit=0", "--innodb-lock-wait-timeout=900"]
        self._controller.run("sh", "-c", '"$@" >"$0" 2>&1 &', str(log), "mariadbd", *options)
        create = ["mariadb", "--no-defaults", f"--socket={socket}", "--execute=create database slurm"]
        wait_until(lambda: run(*create, check=False).returncode == 0, f"the database is up ({log})")

    def _add_accounts(self) -> None:
        self._account("cluster", "test")
        self._account("qos", "debug", "MaxWall=00:30:00", "Flags=DenyOnLimit")
        self._account("account", "research", "QOS=normal,debug", "DefaultQOS=normal")
        self._account("user", "root", "account=research", "DefaultAccount=research")

    def _account(self, *entry: str) -> None:
        self.call("sacctmgr", "--immediate", "add", *entry)

    # What runs on the controller

    def start_munge(self) -> None:
        socket, seed = self._folder / "munge.socket", self._folder / "run" / "munged.seed"
        files = {"key-file": self._folder / "munge.key", "socket": socket, "pid-file": self._pid_file("munged")}
        files |= {"log-file": self._folder / "log" / "munged", "seed-file": seed}
        self._controller.run("munged", "--force", *(f"--{name}={path}" for name, path in files.items()))
        self._wait_until_up(self._controller, "munged", "munge", "--no-input", f"--socket={socket}")

    def stop_munge(self) -> None:
        """No SLURM command and no daemon can authenticate itself any more."""
        self._end(self._controller, "munged", "TERM")

    def start_accounting(self) -> None:
        """slurmdbd, behind sacct."""
        socket = {"MYSQL_UNIX_PORT": str(self._folder / "database.socket")}
        self._controller.run("slurmdbd", variables=self.variables | socket)
        self._wait_until_up(self._controller, "slurmdbd", "sacctmgr", "--noheader", "list", "cluster")

    def stop_accounting(self) -> None:
        self._end(self._controller, "slurmdbd", "TERM")

    def start_controller(self) -> None:
        """slurmctld."""
        self._write_slurm_conf(MESSAGE_TIMEOUT)
        self._controller.run("slurmctld", variables=self.variables)
        self._wait_until_up(self._controller, "slurmctld", "sh", "-c", "scontrol ping | grep 'is UP'")

    def stop_controller(self) -> None:
        """Jobs go on; no command that asks slurmctld is answered. One that begins now tries for a second, not nine."""
        self._end(self._controller, "slurmctld", "TERM")
        self._write_slurm_conf(2)

    # What happens to nodes

    def start_node(self, name: str) -> None:
        """The node (again), booted if it was killed, with its slurmd, which can be reached from here."""
        node, number = self._machines[name], 10 + int(name[1:])
        if not node.is_up:
            self._pid_file(name).unlink(missing_ok=True)  # its number may be in use after the boot
            node.boot()
            # The same address after each boot, as of real machines: the others remember it for up to ten seconds.
            eth0 = ["name", "eth0", "address", hardware_address(number), "netns", str(node.pid)]
            self._controller.ip("link", "add", name, "master", "bridge", "type", "veth", "peer", *eth0)
            node.ip("address", "add", f"{self._network}.{number}/24", "dev", "eth0")
            node.ip("link", "set", "eth0", "up")
        self.heal(name)
        if not self._lives(node, name):
            node.run("slurmd", "-N", name, variables=self.variables)
            connect = f"exec 3<>/dev/tcp/{self._network}.{number}/{SLURMD_PORT}"
            self._wait_until_up(node, name, "timeout", "5", "bash", "-c", connect)

    def kill_node(self, name: str) -> None:
        """Power failure: nothing of it goes on, and nothing is heard of it."""
        self._controller.ip("link", "delete", name)
        self._machines[name].kill()

    def kill_slurmd(self, name: str) -> None:
        """Kill -9 of the daemon alone: its jobs' processes go on."""
        self._disturbed.add(name)
        self._end(self._machines[name], name, "KILL")

    def cut(self, name: str) -> None:
        """Unplug the node's network; all on it goes on, and the shared files stay."""
        self._disturbed.add(name)
        self._controller.ip("link", "set", name, "down")

    def heal(self, name: str) -> None:
        """Plug it in again."""
        self._controller.ip("link", "set", name, "up")

    def _pid_file(self, daemon: str) -> Path:
        return self._folder / "run" / f"{daemon}.pid"

    def _wait_until_up(self, machine: Machine, daemon: str, *question: str) -> None:
        """Until a question to a daemon, asked from here, is answered: it may end after it said that it started."""

        def is_up() -> bool:
            return (
                self._lives(machine, daemon) and run(*question, check=False, variables=self.variables).returncode == 0
            )

        wait_until(is_up, f"{daemon} is up")

    def _lives(self, machine: Machine, daemon: str) -> bool:
        file = self._pid_file(daemon)
        pid = file.read_text().strip() if file.exists() else ""
        return pid != "" and machine.is_up and machine.run("kill", "-0", pid, check=False).returncode == 0

    def _end(self, machine: Machine, daemon: str, signal: str) -> None:
        pid = self._pid_file(daemon).read_text().strip()
        machine.run("kill", f"-{signal}", pid)
        wait_until(lambda: machine.run("kill", "-0", pid, check=False).returncode != 0, f"{daemon} has ended")
        self._pid_file(daemon).unlink(missing_ok=True)

    # Asking

    def call(self, *command: str, check: bool = True) -> str:
        """What a command, such as squeue, prints on this machine. AssertionError when it fails, unless told not to."""
        return run(*command, check=check, variables=self.variables).stdout.strip()

    def submit(self, script: str, *options: str, folder: Path) -> int:
        """The id of a batch job. The script's first line is added. Its output goes to `folder`/slurm-ID.out."""
        file = folder / "job.sh"
        file.write_text(f"#!/bin/bash\n{script}\n")
        return int(self.call("sbatch", "--parsable", f"--chdir={folder}", *options, str(file)))

    def job(self, job_id: int) -> dict[str, str]:
        """What `scontrol show job` says: JobState, Reason, ExitCode, Restarts, NodeList, ..."""
        return dict(re.findall(r"(\S+?)=(\S*)", self.call("scontrol", "--oneliner", "show", "job", str(job_id))))

    def job_state(self, job_id: int) -> str:
        return self.job(job_id)["JobState"]

    def wait_for(self, job_id: int, *states: str, restarts: int = 0) -> dict[str, str]:
        """The job, as soon as it is in one of the states and has been requeued at least `restarts` times."""
        job: dict[str, str] = {}

        def is_there() -> bool:
            job.update(self.job(job_id))
            return job["JobState"] in states and int(job["Restarts"]) >= restarts

        def what() -> str:
            now = ", ".join(f"{key}={job[key]}" for key in ("JobState", "Reason", "Restarts", "ExitCode", "NodeList"))
            return f"job {job_id} {' or '.join(states)} after {restarts} restarts, but {now}"

        wait_until(is_there, what, pause=0.3)
        return job

    def node_states(self) -> dict[str, str]:
        """idle, mixed, allocated, down*, ... by node."""
        shown = self.call("sinfo", "--noheader", "--Node", "--partition=main", "--format=%N %T")
        return dict(line.split() for line in shown.splitlines())


def main() -> int:
    """A command beside a cluster."""
    command = sys.argv[1:] or [os.environ.get("SHELL", "/bin/sh")]
    cluster = Cluster()
    try:
        cluster.start()
        print(f"SLURM_CONF={cluster.variables['SLURM_CONF']}: {', '.join(cluster.nodes)}", file=sys.stderr)
        return subprocess.run(command, env=os.environ | cluster.variables, check=False).returncode
    finally:
        cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
