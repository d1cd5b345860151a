"""What is sent to a host that shares no folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.problems import problems_of
from support.training import tiny_job

from orchestrator.executors.ssh.copies import code_copy
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text


def copied_job(**sections: Any) -> JobSpec:
    return tiny_job("copied", launch={"executor": "ssh", "hosts": ["me@h1"], "copy_to": "/mnt/jobs"}, **sections)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work" / "data").mkdir(parents=True)
    for name in ("a.bin", "a.idx", "ab.bin"):
        (tmp_path / "work" / "data" / name).touch()
    (tmp_path / "work" / "mine.py").write_text("VERSION = 1\n")
    (tmp_path / "work" / ".gitignore").write_text("data/\n")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


@pytest.mark.parametrize("is_repository", [True, False])
def test_the_repository_and_what_the_job_names(work: Path, is_repository: bool) -> None:
    """Ignored data, too; this package where it is a checkout. Nothing is left here."""
    if is_repository:
        subprocess.run(["git", "init", "-q"], check=True)
    job = copied_job(
        model={"vocab_size": 300}, data={"random_tokens": False, "blend": [{"path": "data/a"}, {"path": "/shared/b"}]}
    )
    run = RunDir(work / "runs" / "copied" / "1")
    with code_copy(run, job, sys.executable) as code:
        assert code.place.run.path == Path("/mnt/jobs/copied/1")
        assert code.place.working_directory == Path("/mnt/jobs/copied/1/code/repository")
        assert "/mnt/jobs/copied/1/code/package" in code.place.python_path.split(":")
        assert (code.source / "package" / "orchestrator" / "__init__.py").exists()
        assert (code.source / "repository" / "mine.py").exists() == is_repository
        assert code.data == ("data/a.bin", "data/a.idx")
        sends_code, sends_data = code.command("me@fe80::1")
        assert sends_code[-1] == "me@[fe80::1]:/mnt/jobs/copied/1/code/"
        assert sends_data[-3:-1] == ["data/a.bin", "data/a.idx"]
    assert not code.source.exists()


@pytest.mark.parametrize(
    ("launch", "code"),
    [
        ({"copy_to": "/mnt"}, "hosts_of_ssh"),
        ({"executor": "ssh", "hosts": ["h1"], "copy_to": "jobs"}, "copied_to_a_host"),
        ({"executor": "ssh", "hosts": ["h1"], "copy_to": "/mnt/$HOME"}, "copied_to_a_host"),
        (
            {"executor": "ssh", "hosts": ["h[1-2]"], "nodes": 2, "gpus_per_node": 1, "copy_to": "/mnt"},
            "copied_to_a_host",
        ),
    ],
)
def test_a_copy_is_for_one_host_and_an_absolute_path(launch: dict[str, Any], code: str) -> None:
    job = json.loads(tiny_job("copied").model_dump_json(exclude_unset=True))
    found = problems_of(lambda: load_text(json.dumps({**job, "launch": launch})))
    assert [problem.code for problem in found] == [code]
