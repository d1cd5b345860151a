"""Commands on a login node, through an `ssh` that starts a shell on this machine: what is printed, asked, typed and
ended is what it would be there, however often the connection dies.
"""

from __future__ import annotations

import contextlib
import os
import pty
import random
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from support.commands import Commands, Said
from support.light_forks import LightForks
from support.training import four_layer_job

from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved

SSH = """\
#!/bin/sh
[ "$1" = -G ] && exit
for command; do :; done
exec env {variables} sh -c "$command"
"""
COMMAND = [sys.executable, "-P", "-m", "orchestrator"]


class Laptop:
    """A folder with a profile, from which commands go to another folder. `of_logins`: variables of who is there."""

    def __init__(self, folder: Path, commands: Commands, of_logins: Mapping[str, str]) -> None:
        self._commands = commands
        self.project, self.there = folder / "project", folder / "there"
        (self.project / "clusters").mkdir(parents=True)
        (folder / "bin").mkdir()
        self._ssh = folder / "bin" / "ssh"
        self.log_in_with(of_logins)
        self._ssh.chmod(0o755)
        profile = f"name: far\nlogin: login\nlogin_folder: {self.there}\npython: {sys.executable}\n"
        (self.project / "clusters" / "far.yaml").write_text(profile)
        # `ssh` leaves no variables of here to who is there.
        kept = {name: value for name, value in os.environ.items() if name in ("LANG", "TMPDIR")}
        self.env = {**kept, "HOME": str(folder / "home"), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        (folder / "home").mkdir()

    def __call__(self, *words: str | Path) -> Said:
        """One that starts as any other: it is forked."""
        return self._commands(*words, cwd=self.project, env=self.env, timeout=120)

    def log_in_with(self, variables: Mapping[str, str]) -> None:
        """Who is there from now on has these variables."""
        said = shlex.join(f"{name}={value}" for name, value in variables.items())
        self._ssh.write_text(SSH.format(variables=said))

    def start(self, *words: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [*COMMAND, *words], cwd=self.project, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def agents(self) -> list[int]:
        """The agents, without keepers: their standard input is a connection."""
        found = []
        for process in Path("/proc").iterdir():
            try:
                if b"'agent','exec'" in (process / "cmdline").read_bytes():
                    is_keeper = os.readlink(process / "fd" / "0") == os.devnull
                    home = f"HOME={self.env['HOME']}".encode()
                    if not is_keeper and home in (process / "environ").read_bytes().split(b"\0"):
                        found.append(int(process.name))
            except OSError:
                continue
        return found


@pytest.fixture
def laptop(tmp_path: Path, commands: Commands, light_forks: LightForks) -> Laptop:
    """One whose commands are forked there."""
    return Laptop(tmp_path, commands, {**light_forks.variables(), "FORKED_TOO": "orchestrator"})


@pytest.fixture
def run(laptop: Laptop) -> RunDir:
    """A run that is there, which stopped, with a long log."""
    job = four_layer_job("far", launch={"cluster": "far"})
    made = create_run(job, dump_resolved(job), laptop.there / "runs", CodeState({}, b""))
    made.logs.mkdir(exist_ok=True)
    made.rank_log(0).write_text("".join(f"line {number}: {'ü' * (number % 50)}\n" for number in range(30_000)))
    return made


def test_output_is_whole_however_often_the_connection_dies(laptop: Laptop, run: RunDir) -> None:
    """The command is a program of its own: a forked one may end before the first kill."""
    laptop.log_in_with({})
    over = threading.Event()
    killed = []

    def kill() -> None:
        while not over.wait(random.uniform(0.05, 0.5)):
            has_asked = any((laptop.there / ".orchestrator").glob("requests/*/started"))
            for pid in laptop.agents() if has_asked and len(killed) < 10 else ():
                with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        said = laptop("logs", "far", "--rank", "0")
    finally:
        over.set()
        killer.join()
    assert said.code == 0, said.err
    assert killed
    assert said.out == run.rank_log(0).read_text()
    left = (laptop.there / ".orchestrator" / "requests").iterdir()  # the last kill may have come before the thanks
    assert [each for each in left if not (each / "ended").exists()] == []


def test_ctrl_c_reaches_the_command(laptop: Laptop, run: RunDir) -> None:
    with laptop.start("logs", "far", "--follow", "-n", "1") as following:
        assert following.stdout is not None
        assert "line 29999" in following.stdout.readline()
        following.send_signal(signal.SIGINT)
        following.communicate(timeout=60)
    assert following.returncode == 130
    assert list((laptop.there / ".orchestrator" / "requests").iterdir()) == []


def test_a_question_is_answered_at_the_terminal_here(laptop: Laptop, run: RunDir) -> None:
    """What asks there is a program of its own, at a terminal."""
    laptop.log_in_with({})
    saved = run.checkpoint(2)
    saved.mkdir(parents=True)
    (saved / "weights").write_text("weights")
    write_commit(saved, iteration=2, consumed_samples=8, files={"weights": file_record(saved / "weights")})
    (laptop.project / "far.yaml").write_text(
        dump_resolved(four_layer_job("far", launch={"cluster": "far"}, optimizer={"lr": 0.5}))
    )
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            [*COMMAND, "submit", "far.yaml"],
            cwd=laptop.project,
            env={**laptop.env, "TERM": "dumb"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # its controlling terminal
        )
        shown = _read_until(ours, "choose")
        assert "optimizer.lr" in shown
        os.write(ours, b"nothing\n")
        assert "nothing was started" in _read_until(ours, "started")
        assert process.wait(60) == 2
    finally:
        os.close(ours)
        os.close(theirs)
    said = laptop("submit", "far.yaml")
    assert said.code == 2, "nobody is asked where nobody sits"
    assert "--allow-changes" in said.err


def _read_until(terminal: int, word: str) -> str:
    shown = ""
    while word not in shown:
        assert select.select([terminal], [], [], 60)[0], f"{shown!r} and not {word}"
        shown += os.read(terminal, 1 << 12).decode()
    return shown


def test_code_is_sent_once_as_long_as_it_is_the_same(laptop: Laptop, run: RunDir) -> None:
    """What is not used for two weeks goes."""
    packages = laptop.there / ".orchestrator" / "package"
    assert laptop("list").code == 0
    [sent] = packages.iterdir()
    before = sent.stat().st_ino
    assert laptop("list").code == 0
    assert [path.stat().st_ino for path in packages.iterdir()] == [before]
    old = packages / "old"
    old.mkdir()
    os.utime(old, (0, 0))
    assert laptop("list").code == 0
    assert list(packages.iterdir()) == [sent]


def test_a_command_that_has_vanished_is_said_and_not_waited_for(laptop: Laptop) -> None:
    says = """echo '{"ready": {"needs": []}}'; echo '{"gone": null}'; exec cat >/dev/null"""
    (laptop.project.parent / "bin" / "ssh").write_text(f"#!/bin/sh\n[ $1 = -G ] && exit\n{says}\n")
    said = laptop("list")
    assert said.code == 1
    assert said.err.startswith("error: login: ")
