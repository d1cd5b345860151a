"""Which commands are sent to a login node, and with what."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from support.training import four_layer_job

from orchestrator.cli.login_node import parsed
from orchestrator.cli.main import build_app, main
from orchestrator.errors import UserError
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import create_run
from orchestrator.login.command import Command
from orchestrator.login.routing import command_there
from orchestrator.spec.loading import dump_resolved

Send = Callable[..., Command | None]


@pytest.fixture
def send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Send:
    """send(words) -> what would be sent, from a folder with the profile of a cluster with a login node."""
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "far.yaml").write_text("name: far\nlogin: me@far\n")
    monkeypatch.chdir(tmp_path)

    def command(*words: str) -> Command | None:
        name, values = parsed(build_app(words[0]), words)
        return command_there(name, words, values)

    return command


def runs_of(command: Command | None) -> str | None:
    return None if command is None else command.runs_dir


def test_where_runs_are(send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the only cluster with a login node, but for a run that is here; or where --runs-dir or its variable says."""
    near = four_layer_job("near")
    create_run(near, dump_resolved(near), tmp_path / "runs", CodeState({}, b""))
    assert runs_of(send("status", "far")) == "runs"
    assert runs_of(send("status", "near")) is None
    assert runs_of(send("compare", "near", "far")) == "runs"
    assert runs_of(send("list")) == "runs"
    assert runs_of(send("list", "--runs-dir", "runs")) is None
    assert runs_of(send("list", "--runs-dir=far:")) == "runs"
    assert runs_of(send("status", "near", "--runs-dir", "far:more/runs")) == "more/runs"
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", "far:more")
    assert runs_of(send("list")) == "more"
    with pytest.raises(UserError):
        send("run", "job.yaml")
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", "more")
    assert runs_of(send("list")) is None
    monkeypatch.delenv("ORCHESTRATOR_RUNS_DIR")
    (tmp_path / "clusters" / "other.yaml").write_text("name: other\nlogin: elsewhere\n")
    assert runs_of(send("list")) is None, "on which of two?"
    assert runs_of(send("list", "--runs-dir", "other:")) == "runs"
    (tmp_path / "clusters" / "plain.yaml").write_text("name: plain\n")
    with pytest.raises(UserError):
        send("list", "--runs-dir", "plain:")
    for words in (["generate", "far"], ["dashboard", "--host", "0.0.0.0"], ["dashboard", "--allow-host", "name"]):
        with pytest.raises(UserError):
            send(*words, "--runs-dir", "far:")


def test_what_runs_here(send: Send, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(dump_resolved(four_layer_job("job", launch={"cluster": "far"})))
    assert send("submit", "job.yaml") is not None
    for words in (["run", "job.yaml"], ["generate", "far"], ["sweep", "run", "job.yaml", "--local"]):
        assert send(*words) is None
    (tmp_path / "clusters" / "near.yaml").write_text("name: near\n")
    assert send("submit", "job.yaml", "--cluster", "near") is None
    (tmp_path / "hosts.yaml").write_text("launch: {executor: ssh, hosts: [h1], cluster: null}\n")
    assert send("submit", "job.yaml", "hosts.yaml") is None
    assert send("submit", "absent.yaml") is None, "the command itself says what is wrong"


def test_a_job_brings_its_project(send: Send, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What git does not ignore, the job wherever it lies, and the profile of the cluster."""
    root, outside = tmp_path / "clone", tmp_path / "job.yaml"
    (root / "deep").mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / ".gitignore").write_text("data\nown.yaml\n")
    for name in ("code.py", "data", "own.yaml", "deep/more.yaml"):
        (root / name).write_text(dump_resolved(four_layer_job("job")))
    (root / "link").symlink_to("code.py")
    (root / "clusters").symlink_to(tmp_path / "clusters")
    outside.write_text("batch: {micro_batch_size: 1}\n")
    monkeypatch.chdir(root)
    own = str(root / "own.yaml")
    command = send("submit", own, "deep/more.yaml", str(outside), "--runs-dir", "here", "--strict")
    assert command is not None
    assert command.project is not None
    project = command.project.archive
    moved = ("project", "outside/3-job.yaml")
    assert command.arguments == (
        "submit",
        ("project", "tree/own.yaml"),
        "deep/more.yaml",
        moved,
        "--strict",
    )
    assert (command.runs_dir, command.folder, command.project.working_directory) == (
        "here",
        "~/orchestrator/clone",
        ".",
    )
    with open(tmp_path / "packed", "w+b") as packed:
        project.pack(packed)
        packed.seek(0)
        with tarfile.open(fileobj=packed) as archive:
            names = set(archive.getnames())
    code = {"tree/.gitignore", "tree/code.py", "tree/link", "tree/own.yaml", "tree/deep/more.yaml", "tree/clusters"}
    assert names >= code | {"outside/3-job.yaml", "names", "code.json", "code.diff"}
    assert "tree/data" not in names
    before = project.key()
    (root / "code.py").write_text("changed")
    changed = send("submit", "own.yaml")
    assert changed is not None
    assert changed.project is not None
    assert changed.project.archive.key() != before


def test_too_much_is_not_sent(send: Send, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(dump_resolved(four_layer_job("job")))
    with open(tmp_path / "data.bin", "wb") as data:
        data.truncate(200_000_000)
    with pytest.raises(UserError) as error:
        send("submit", "job.yaml")
    assert "data.bin" in str(error.value)


@pytest.mark.parametrize("login", ["-oProxyCommand=true", "a b", "me@host:22", "ssh://host", ""])
def test_a_login_is_a_name(login: str, send: Send, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "clusters" / "far.yaml").write_text(f"name: far\nlogin: '{login}'\n")
    assert main(["list"]) == 2
    assert "login" in capsys.readouterr().err
