"""`orchestrator cluster`."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.fake_slurm import FakeSlurm

from orchestrator.cluster_profiles import load_profile

CONFIG = "AccountingStorageType = accounting_storage/none\nClusterName = alps/2\nSLURM_VERSION = 22.05.8\n"
SINFO = "cpu*|up|12|128|257000|12:00:00|1-infinite|(null)\ngpu|up|16|96|1031000|infinite|1-infinite|gpu:h200:8\n"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "orchestrator" / "clusters"


@pytest.fixture
def slurm(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A cluster with a partition for CPUs and one for GPUs."""
    fake = FakeSlurm(tmp_path_factory.mktemp("slurm"))
    fake.says("scontrol", CONFIG)
    fake.says("sinfo", SINFO)
    monkeypatch.setenv("PATH", str(fake.bin))
    return fake


@pytest.mark.usefixtures("slurm")
def test_init_writes_a_profile_that_can_be_used(orchestrator: Any, home: Path, job_file: Path) -> None:
    finished = orchestrator("cluster", "init", "--yes")
    assert (finished.code, finished.err) == (0, "")
    path = home / "alps-2.yaml"
    assert f"wrote {path}: partition gpu of 2" in finished.out
    assert "orchestrator validate job.yaml --cluster alps-2" in finished.out
    assert load_profile("alps-2").cpus_per_gpu == 12
    checked = orchestrator("validate", job_file, "--cluster", "alps-2")
    assert "alps-2, partition gpu: 1 of 16 nodes, 1 of 8 GPUs on each, 1d" in checked.out
    on_cpu = orchestrator("validate", job_file, "--cluster", "alps-2", "--set", "runtime.device=cpu")
    assert "alps-2, partition gpu: 1 of 16 nodes, no GPUs, 1d" in on_cpu.out


@pytest.mark.usefixtures("slurm")
def test_init_into_a_project(orchestrator: Any, home: Path, tmp_path: Path) -> None:
    document = orchestrator("cluster", "init", "-o", "clusters/mine.yaml", "--partition", "cpu", "--json").json
    assert (document["path"], document["profile"]["name"]) == ("clusters/mine.yaml", "mine")
    assert document["profile"]["gpu_request"] == "none"
    assert (tmp_path / "clusters" / "mine.yaml").exists()
    assert not home.exists()


@pytest.mark.usefixtures("slurm")
def test_init_overwrites_nothing_unasked(orchestrator: Any, home: Path) -> None:
    home.mkdir(parents=True)
    path = home / "alps-2.yaml"
    path.write_text("name: alps-2\naccount: precious\n")
    for arguments in (("--yes",), ("alps-2", "--yes")):
        finished = orchestrator("cluster", "init", *arguments)
        assert finished.code == 2
        assert f"{path} already exists" in finished.err
        assert "precious" in path.read_text()
    assert orchestrator("cluster", "init", "--yes", "--force").code == 0
    assert "precious" not in path.read_text()


@pytest.mark.usefixtures("slurm")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--partition", "gpuu"), "alps/2 has no partition gpuu: did you mean gpu? (there are: cpu, gpu)"),
        (("a/b", "--yes"), "'a/b' is not a valid profile name"),
        (("one", "-o", "two.yaml", "--yes"), "one would have to be one.yaml"),
        (("-o", "two.yml", "--yes"), "the name of a profile file ends in .yaml"),
        (("-o", "job.yaml/two.yaml", "--yes"), "job.yaml/two.yaml cannot be written: "),
        ((), "there is no terminal for questions: add --yes"),
    ],
)
def test_init_with_what_is_wrong(
    orchestrator: Any, home: Path, job_file: Path, arguments: tuple[str, ...], said: str
) -> None:
    finished = orchestrator("cluster", "init", *arguments)
    assert finished.code == 2
    assert said in finished.err
    assert not home.exists()


def test_init_on_a_terminal_asks_for_the_partition(slurm: FakeSlurm, home: Path, tmp_path: Path) -> None:
    slurm.says("sinfo", SINFO.replace("gpu|up", "gpu|drain"))
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "orchestrator", "cluster", "init", "asked"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdin=theirs, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    os.write(ours, b"gpux\ngpu\n")
    out, _ = process.communicate(timeout=120)
    os.close(ours)
    os.close(theirs)
    assert process.returncode == 0, out
    assert "  cpu: 12 nodes, no GPUs on each, 12h\n" in out
    assert "  gpu: 16 nodes, 8 GPUs (h200) on each, no limit, not up now\n" in out
    assert "there is no partition gpux" in out
    assert load_profile("asked").partition == "gpu"


def test_init_away_from_a_cluster(orchestrator: Any, home: Path, slurm: FakeSlurm) -> None:
    for name in ("scontrol", "sinfo"):
        (slurm.bin / name).unlink()
    finished = orchestrator("cluster", "init", "--yes")
    assert (finished.code, finished.out) == (2, "")
    assert "SLURM's commands are not on this machine (no scontrol in PATH): submit from a login node" in finished.err


def test_init_on_a_cluster_that_is_down(orchestrator: Any, home: Path, slurm: FakeSlurm) -> None:
    err = "slurm_load_ctl_conf error: Unable to contact slurm controller (connect failure)\n"
    slurm.says("scontrol", err=err, code=1)
    finished = orchestrator("cluster", "init", "--yes", "--json")
    assert finished.code == 1
    assert (finished.json["error"], finished.json["exit_code"]) == ("SchedulerError", 1)
    assert finished.json["message"].count("\n") == 0
    assert not home.exists()


def test_list(orchestrator: Any, home: Path, tmp_path: Path) -> None:
    assert "no cluster profiles in clusters/ or " in orchestrator("cluster", "list").out
    assert orchestrator("cluster", "list", "--json").json == []
    home.mkdir(parents=True)
    (home / "alps.yaml").write_text("name: alps\npartition: gpu\npartitions: {gpu: {}, cpu: {}}\n")
    (home / "wrong.yaml").write_text("name: wrong\ncolour: red\n")
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "near.yaml").write_text("name: near\n")
    finished = orchestrator("cluster", "list")
    assert finished.code == 0
    rows = [line.split(maxsplit=2) for line in finished.out.splitlines()]
    assert [row[0] for row in rows] == ["NAME", "alps", "near", "wrong"]
    assert rows[1][1] == "gpu"
    assert "invalid: orchestrator cluster show wrong" in finished.out
    records = {record["name"]: record for record in orchestrator("cluster", "list", "--json").json}
    assert records["alps"]["profile"]["partition"] == "gpu"
    assert (records["wrong"]["profile"], records["wrong"]["problems"]) == (None, 1)
    assert records["near"]["path"] == "clusters/near.yaml"


def test_show(orchestrator: Any, home: Path) -> None:
    home.mkdir(parents=True)
    (home / "alps.yaml").write_text(
        "name: alps\npartition: gpu\npartitions: {gpu: {nodes: 16, time_limit: 1d}}\ntime: 4h\nexclude: [n1, n2]\n"
        "container: {image: a.sqsh}\n"
    )
    shown = orchestrator("cluster", "show", "alps").out
    for said in ("gpu (default)  16", "time            4h", "exclude         n1, n2", "image=a.sqsh", "1d"):
        assert said in shown
    assert orchestrator("cluster", "show", "alps", "--json").json["profile"]["time"] == 14400
    with (home / "alps.yaml").open("a") as profile:
        profile.write("gpu: H1000\ntemplate: nowhere.j2\n")
    elsewhere = orchestrator("cluster", "show", "alps")
    assert (elsewhere.code, elsewhere.out) == (2, "")
    assert "alps.yaml: gpu: " in elsewhere.err
    assert "alps.yaml: template: nowhere.j2 does not exist; leave it out to use the shipped one" in elsewhere.err
    unknown = orchestrator("cluster", "show", "alp")
    assert (unknown.code, unknown.out) == (2, "")
    assert "did you mean alps?" in unknown.err
    (home / "alps.yaml").write_text("name: alps\ncolour: red\ntime: never\n")
    wrong = orchestrator("cluster", "show", "alps")
    assert wrong.code == 2
    assert "alps.yaml:2:1: colour" in wrong.err
    assert "alps.yaml:3:1: time" in wrong.err
