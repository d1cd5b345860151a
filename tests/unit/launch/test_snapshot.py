"""A snapshot holds the code as it was, whatever happens to the working tree afterwards."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.limits import set_limits
from support.refused import refused

from orchestrator.launch.code.code_version import code_state
from orchestrator.launch.code.snapshot import Snapshot, take_snapshot
from orchestrator.run_directory.rundir import RunDir

HOSTILE = "it's $(touch x) ü\n.py"


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Tracked, changed, new, ignored and deleted files, and a script that says which version of the code it is."""
    root = tmp_path / "my repository"
    (root / "src" / "mine").mkdir(parents=True)
    (root / "jobs").mkdir()
    git(root, "init", "-q")
    for name, text in {
        "src/mine/__init__.py": "VERSION = 1\n",
        "src/mine/__main__.py": "import helper, mine; print(mine.VERSION, helper.VERSION, open('data/x.txt').read())\n",
        "helper.py": "VERSION = 1\n",
        "gone.py": "",
        ".gitignore": "data/\n*.so\n__pycache__/\n",
        "jobs/job.yaml": "name: x\n",
        HOSTILE: "hostile\n",
    }.items():
        (root / name).write_text(text)
    (root / "tool.sh").write_text("#!/bin/sh\n")
    (root / "tool.sh").chmod(0o755)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "first")
    (root / "gone.py").unlink()
    (root / "helper.py").write_text("VERSION = 2\n")
    (root / "new.py").write_text("NEW = 1\n")
    (root / "data").mkdir()
    (root / "data" / "x.txt").write_text("tokens")
    (root / "built.so").touch()
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "helper.pyc").touch()
    return root


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    path = tmp_path / "runs" / "tiny" / "0a1b2c3d"
    path.mkdir(parents=True)
    return RunDir(path)


def run_from(taken: Snapshot, *arguments: str) -> str:
    """What Python prints in the snapshot, as a job would start it."""
    environment = {**os.environ, "PYTHONPATH": taken.python_path, "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=taken.working_directory,
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file() and not path.is_symlink()}


def test_what_is_in_it(repository: Path, run: RunDir) -> None:
    taken = take_snapshot(run, repository)
    assert taken.working_directory == run.path / "code" / "1" / "repository"
    work = taken.working_directory
    tracked = {"src/mine/__init__.py", "src/mine/__main__.py", "helper.py", ".gitignore", "jobs/job.yaml", "tool.sh"}
    assert files(work) == tracked | {HOSTILE, "new.py"}
    assert os.access(work / "tool.sh", os.X_OK)
    assert {path.name: path.readlink() for path in work.iterdir() if path.is_symlink()} == {
        "data": repository / "data",
        "built.so": repository / "built.so",
    }
    assert not list((run.path / "code").glob(".new-*"))
    assert git(repository, "status", "--porcelain").splitlines() == [" D gone.py", " M helper.py", "?? new.py"]


def test_a_run_from_it_does_not_see_later_edits(repository: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = run.path.parent / "elsewhere"
    monkeypatch.setenv("PYTHONPATH", f"{repository / 'src'}{os.pathsep}{elsewhere}")
    for folder in (elsewhere, repository / "src"):
        monkeypatch.syspath_prepend(folder)
    taken = take_snapshot(run, repository)
    assert str(elsewhere) in taken.python_path.split(os.pathsep)
    assert run_from(taken, "-m", "mine") == "1 2 tokens"

    (repository / "helper.py").write_text("VERSION = 3\n")
    (repository / "src" / "mine" / "__init__.py").write_text("raise SystemExit('edited')\n")
    (repository / "src" / "mine" / "__main__.py").unlink()
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", "second")
    git(repository, "clean", "-qfd")
    assert run_from(taken, "-m", "mine") == "1 2 tokens"

    (repository / "src" / "mine" / "__init__.py").write_text("VERSION = 4\n")
    (repository / "src" / "mine" / "__main__.py").write_text("import mine; print(mine.VERSION)\n")
    second = take_snapshot(run, repository)
    assert second.working_directory.parent.name == "2"
    assert (run_from(taken, "-m", "mine"), run_from(second, "-m", "mine")) == ("1 2 tokens", "4")


def test_it_brings_this_package_along(repository: Path, run: RunDir) -> None:
    """Where the package is a checkout, as in these tests, the copy is imported, and finds its own templates."""
    taken = take_snapshot(run, repository / "jobs")
    assert taken.working_directory == run.path / "code" / "1" / "repository" / "jobs"
    program = (
        "import orchestrator; from orchestrator.resources import resource_root as r;"
        "print(orchestrator.__file__, r('templates') / 'torchrun.sh.j2', r('jobs') / 'quickstart.yaml', sep='\\n')"
    )
    for line in run_from(taken, "-c", program).splitlines():
        assert Path(line).is_relative_to(run.path / "code" / "1" / "package")
        assert Path(line).is_file()
    assert not list((run.path / "code").rglob("__pycache__"))


def test_the_package_in_the_repository_itself(run: RunDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "fork"
    (root / "orchestrator").mkdir(parents=True)
    (root / "orchestrator" / "__init__.py").write_text("")
    git(root, "init", "-q")
    monkeypatch.setattr("orchestrator.version.__file__", str(root / "orchestrator" / "version.py"))
    taken = take_snapshot(run, root)
    assert taken.python_path == str(taken.working_directory)
    assert not (run.path / "code" / "1" / "package").exists()


def test_runs_are_linked_and_never_copied(repository: Path) -> None:
    run = RunDir(repository / "runs" / "tiny" / "0a1b2c3d")
    run.path.mkdir(parents=True)
    (run.path / "metrics.jsonl").write_text("{}")
    for number in ("1", "2"):
        taken = take_snapshot(run, repository)
        assert taken.working_directory.parent.name == number
        assert (taken.working_directory / "runs").readlink() == repository / "runs"
        assert "new.py" in files(taken.working_directory)


def test_runs_beside_the_repository_or_at_its_top(repository: Path) -> None:
    for runs_dir in (repository, repository.parent):
        run = RunDir(runs_dir / "tiny" / "0a1b2c3d")
        run.path.mkdir(parents=True)
        taken = take_snapshot(run, repository)
        assert (taken.working_directory / "helper.py").is_file()
        assert not (taken.working_directory / "tiny" / "0a1b2c3d" / "code" / "1" / "repository").is_symlink()


def test_links_lead_where_they_led(repository: Path, run: RunDir, tmp_path: Path) -> None:
    (tmp_path / "outside").write_text("outside")
    (repository / "inner").symlink_to("src/mine")
    (repository / "whole").symlink_to(repository / "helper.py")
    (repository / "jobs" / "out").symlink_to("../../outside")
    (repository / "broken").symlink_to("nothing")
    work = take_snapshot(run, repository).working_directory
    assert (work / "inner").resolve() == (work / "src" / "mine").resolve()
    assert (work / "whole").resolve() == (work / "helper.py").resolve()
    assert (work / "jobs" / "out").read_text() == "outside"
    assert str((work / "broken").readlink()) == "nothing"


def test_repositories_inside_are_copied_too(repository: Path, run: RunDir, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    git(library, "init", "-q")
    (library / "lib.py").write_text("")
    git(library, "add", ".")
    git(library, "commit", "-q", "-m", "first")
    git(repository, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(library), "third_party/library")
    git(tmp_path, "clone", "-q", str(library), str(repository / "cloned"))
    (repository / "third_party" / "library" / "untracked.py").write_text("")
    found = files(take_snapshot(run, repository).working_directory)
    assert {"third_party/library/lib.py", "third_party/library/untracked.py", "cloned/lib.py"} <= found


def test_outside_a_repository(run: RunDir, tmp_path: Path) -> None:
    with refused("no_repository", "launch.snapshot"):
        take_snapshot(run, tmp_path)
    assert not (run.path / "code").exists()


@pytest.mark.parametrize(("limit", "most"), [("bytes_of_code", 100_000), ("files_of_code", 10)])
def test_what_is_too_large_to_be_code(
    repository: Path, run: RunDir, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    (repository / "corpus").mkdir()
    for number in range(10):
        (repository / "corpus" / f"{number}.bin").write_bytes(b"x" * 20_000)
    set_limits(monkeypatch, **{limit: most})
    with refused("repository_too_large", "corpus (200 kB, 10 files)", ".gitignore"):
        take_snapshot(run, repository)
    assert list((run.path / "code").iterdir()) == []


def test_a_disk_that_refuses(repository: Path, run: RunDir) -> None:
    (run.path / "code").write_text("in the way")
    with refused("failed_snapshot", "launch.snapshot", "code"):
        take_snapshot(run, repository)


def test_untracked_modules_are_recorded_with_the_changes(repository: Path, make_tree: Callable[[str], str]) -> None:
    """The recorded diff makes the code again from the recorded commit."""
    runs = repository / "runs"
    (runs / "tiny").mkdir(parents=True)
    (runs / "tiny" / "copied.py").touch()
    (repository / "secret.txt").write_text("password")
    (repository / "huge.py").write_text("#" * 2_000_000)
    (repository / "deep" / "er").mkdir(parents=True)
    (repository / "deep" / "er" / "new.py").write_text("DEEP = 1\n")
    before = git(repository, "status", "--porcelain")
    state = code_state(repository, apart_from=runs)
    [mine, *_] = state.record["repositories"]
    assert mine["untracked"] == ["deep/", "huge.py", "new.py", "secret.txt"]
    assert (mine["dirty"], mine["diff_complete"]) == (True, False)
    assert git(repository, "status", "--porcelain") == before
    (repository / "huge.py").unlink()
    [mine, *_] = code_state(repository, apart_from=runs).record["repositories"]
    assert mine["diff_complete"]
    own = state.diff.split(b"\n# ")[0].partition(b"\n")[2]
    assert b"password" not in own
    rebuilt = make_tree(mine["commit"])
    subprocess.run(["git", "-C", rebuilt, "apply", "--whitespace=nowarn", "-"], input=own + b"\n", check=True)
    for name in ("new.py", "helper.py", "deep/er/new.py", HOSTILE):
        assert Path(rebuilt, name).read_text() == (repository / name).read_text()
    assert not Path(rebuilt, "gone.py").exists()


@pytest.fixture
def make_tree(repository: Path, tmp_path: Path) -> Callable[[str], str]:
    """make_tree(commit): the repository as it was then, somewhere else."""

    def make(commit: str) -> str:
        target = tmp_path / "rebuilt"
        git(repository, "worktree", "add", "-q", "--detach", str(target), commit)
        return str(target)

    return make
