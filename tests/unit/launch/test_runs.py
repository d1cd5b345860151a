"""Creating runs and finding them again."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from support.event_log import lines_of
from support.refusals import after, before, fill_the_disk
from support.refused import refused

from orchestrator.errors import RunNotFound, UserError
from orchestrator.launch.code.code_version import code_state
from orchestrator.launch.processes.stop_request import Terminated, caught_signals, sigterm_as_ctrl_c
from orchestrator.launch.runs import (
    add_generation,
    all_runs,
    attach_or_create,
    create_run,
    find_run,
    find_same,
    next_run_dir,
    remove_new_run,
    taken_back,
)
from orchestrator.planning.checks.preflight_checks import runs_dir_of
from orchestrator.run_directory.checkpoints.commit_markers import write_commit
from orchestrator.run_directory.rundir import default_runs_dir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

MakeJob = Callable[..., JobSpec]
fork = multiprocessing.get_context("fork")


def test_new_run_is_whole(make_job: MakeJob, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GIT_CEILING_DIRECTORIES")
    job = make_job()
    run = create_run(job, "name: tiny  # mine\n", runs_dir)
    assert run.path == runs_dir / "tiny" / job.config_hash[:8]
    assert run.job_yaml.read_text() == "name: tiny  # mine\n"
    assert load_resolved(run.resolved()) == job
    [package] = json.loads((run.path / "code.json").read_text())["repositories"]
    assert (package["used_by"], package["root"]) == ("orchestrator", str(Path(__file__).resolve().parents[3]))
    assert [(event["event"], event["run_id"]) for event in lines_of(run)] == [("created", run.run_id)]
    assert (run.path.stat().st_mode & 0o777) == (0o777 & ~current_umask())
    assert os.listdir(run.path.parent) == [run.run_id]


def current_umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_run_that_is_taken_back_leaves_nothing(make_job: MakeJob, runs_dir: Path) -> None:
    refused, kept = (create_run(make_job(), "", runs_dir) for _ in range(2))
    remove_new_run(refused)
    assert os.listdir(runs_dir / "tiny") == [kept.run_id]
    remove_new_run(kept)
    assert os.listdir(runs_dir) == []


def test_a_second_signal_leaves_no_half_of_a_run_that_is_taken_back(
    make_job: MakeJob, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: Any, **named: Any) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.raise_signal(number)

    run = create_run(make_job(), "", runs_dir)
    before(monkeypatch, "shutil.rmtree", interrupted)
    with pytest.raises(Terminated), sigterm_as_ctrl_c(), taken_back(run, is_new=True, by_ctrl_c=True):
        signal.raise_signal(signal.SIGTERM)
    assert os.listdir(runs_dir) == []


def test_signals_are_left_to_the_main_thread() -> None:
    def handlers() -> list[object]:
        return [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]

    def beside() -> list[object]:
        with sigterm_as_ctrl_c(), caught_signals():
            return handlers()

    with ThreadPoolExecutor() as pool:
        assert pool.submit(beside).result() == handlers()


def test_a_folder_that_goes_while_a_run_is_made_in_it_is_made_again(
    make_job: MakeJob, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone: list[Path] = []

    def goes_at_first(*others: Any, dir: Path | None = None, **named: Any) -> None:
        if dir is not None and not gone:
            gone.append(dir)
            dir.rmdir()

    before(monkeypatch, "tempfile.mkdtemp", goes_at_first)
    assert create_run(make_job(), "", runs_dir).path.is_dir()


def test_more_runs_of_one_spec_are_numbered(make_job: MakeJob, runs_dir: Path) -> None:
    job = make_job()
    base = job.config_hash[:8]
    assert [create_run(job, "", runs_dir).run_id for _ in range(3)] == [base, f"{base}-2", f"{base}-3"]
    assert next_run_dir(job, runs_dir).run_id == f"{base}-4"


def test_same_spec_attaches(make_job: MakeJob, runs_dir: Path) -> None:
    job = make_job()
    run, is_new = attach_or_create(job, "", runs_dir)
    assert is_new
    assert attach_or_create(job, "", runs_dir) == (run, False)


def test_same_spec_finds_its_latest_run(make_job: MakeJob, runs_dir: Path) -> None:
    job = make_job()
    assert find_same(job, runs_dir) is None
    create_run(job, "", runs_dir)
    latest = create_run(job, "", runs_dir)
    create_run(make_job(optimizer__lr=1e-4), "", runs_dir)
    assert find_same(job, runs_dir) == latest


def test_changed_run_is_found_by_its_current_spec(make_job: MakeJob, runs_dir: Path) -> None:
    job, changed = make_job(), make_job(schedule__train_iters=40)
    run = create_run(job, "first", runs_dir)
    add_generation(run, changed, "second")
    assert find_same(changed, runs_dir) == run
    assert find_same(job, runs_dir) is None
    assert run.job_yaml.read_text() == "first"
    assert (run.path / "job.2.yaml").read_text() == "second"
    assert load_resolved(run.path / "resolved.json") == job
    assert load_resolved(run.resolved()) == changed


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("{")])
def test_a_spec_whose_run_has_lost_it_does_not_begin_again_unasked(
    make_job: MakeJob, runs_dir: Path, damage: Callable[[Path], object]
) -> None:
    job = make_job()
    run = create_run(job, "", runs_dir)
    damage(run.resolved())
    run.checkpoint(20).mkdir(parents=True)
    write_commit(run.checkpoint(20), iteration=20, consumed_samples=40, files={})
    with refused("unreadable_stored_spec", run.path, "iteration 20", "--new"):
        attach_or_create(job, "", runs_dir)
    assert os.listdir(runs_dir / "tiny") == [run.run_id]
    another = create_run(job, "", runs_dir)
    assert attach_or_create(job, "", runs_dir) == (another, False)


def test_a_lost_spec_of_a_run_without_checkpoints_takes_nothing_along(make_job: MakeJob, runs_dir: Path) -> None:
    job = make_job()
    create_run(job, "", runs_dir).resolved().unlink()
    assert attach_or_create(job, "", runs_dir)[1]


def test_run_is_found_by_id_prefix_name_and_path(
    make_job: MakeJob, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = create_run(make_job(), "", runs_dir)
    second = create_run(make_job(), "", runs_dir)
    other = create_run(make_job(name="other"), "", runs_dir)
    assert find_run(first.run_id, runs_dir) == first
    assert find_run(second.run_id, runs_dir) == second
    assert find_run(f"tiny/{first.run_id}", runs_dir) == first
    assert find_run(other.run_id[:3], runs_dir) == other
    assert find_run("tiny", runs_dir) == second
    assert find_run(str(first.path), Path("elsewhere")) == first
    monkeypatch.chdir(runs_dir / "tiny")
    assert find_run(first.run_id, Path("elsewhere")) == first


def test_ambiguous_prefix_lists_the_runs(make_job: MakeJob, runs_dir: Path) -> None:
    first = create_run(make_job(), "", runs_dir)
    create_run(make_job(), "", runs_dir)
    with pytest.raises(UserError) as caught:
        find_run(first.run_id[:5], runs_dir)
    assert f"is not one run but 2:\n      tiny/{first.run_id}\n      tiny/{first.run_id}-2" in str(caught.value)


def test_unknown_run_names_the_nearest(make_job: MakeJob, runs_dir: Path) -> None:
    with refused("run_not_found", "--runs-dir", "$ORCHESTRATOR_RUNS_DIR", kind=RunNotFound):
        find_run("tiny", runs_dir)
    run = create_run(make_job(), "", runs_dir)
    with refused("run_not_found", "tinny", "tiny?", kind=RunNotFound):
        find_run("tinny", runs_dir)
    with refused("run_not_found", runs_dir, "tiny?", kind=RunNotFound):
        find_run(f"{runs_dir}/tiny", runs_dir)
    with refused("run_not_found", f"tiny/{run.run_id}", kind=RunNotFound):
        find_run("zzz", runs_dir)
    with pytest.raises(RunNotFound):
        find_run("", runs_dir)


def test_a_sweep_is_no_run_and_its_cells_are(make_job: MakeJob, runs_dir: Path) -> None:
    run = create_run(make_job(), "", runs_dir)
    run.membership.write_text('{"sweep": "rates", "cell": "lr=1"}')
    with refused("run_not_found", "`orchestrator sweep status rates --runs-dir ", "/runs`", kind=RunNotFound):
        find_run("rates", runs_dir)


def test_half_written_folders_are_no_runs(make_job: MakeJob, runs_dir: Path) -> None:
    run = create_run(make_job(), "", runs_dir)
    (runs_dir / "tiny" / ".new-abc").mkdir()
    (runs_dir / "tiny" / "0123abcd").mkdir()
    (runs_dir / ".cache" / "index").mkdir(parents=True)
    assert all_runs(runs_dir) == [run]


def test_runs_dir_option_before_spec_before_environment(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    assert runs_dir_of(make_job(), None) == Path("runs")
    monkeypatch.setenv("ORCHESTRATOR_RUNS_DIR", "/from/environment")
    assert runs_dir_of(make_job(), None) == default_runs_dir() == Path("/from/environment")
    assert runs_dir_of(make_job(launch__runs_dir="mine"), None) == Path("mine")
    assert runs_dir_of(make_job(launch__runs_dir="mine"), Path("asked")) == Path("asked")


def test_folder_that_cannot_be_written(make_job: MakeJob, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused("run_cannot_be_created", "file/tiny"):
        create_run(make_job(), "", tmp_path / "file")


def test_disk_that_is_full(make_job: MakeJob, runs_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_the_disk(monkeypatch)
    with refused("run_cannot_be_created", f"{runs_dir}/tiny", os.strerror(errno.ENOSPC)):
        create_run(make_job(), "", runs_dir)
    assert not runs_dir.exists()


def _create_many(job: JobSpec, runs_dir: Path, count: int) -> None:
    for _ in range(count):
        create_run(job, "", runs_dir)


def test_racing_creations_get_runs_of_their_own(make_job: MakeJob, runs_dir: Path) -> None:
    job = make_job()
    children = [fork.Process(target=_create_many, args=(job, runs_dir, 5)) for _ in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 4
    runs = all_runs(runs_dir)
    assert len(runs) == 20
    for run in runs:
        assert [event["run_id"] for event in lines_of(run)] == [run.run_id]


def _attach(job: JobSpec, runs_dir: Path) -> None:
    attach_or_create(job, "", runs_dir)


def test_a_run_that_begins_meanwhile_is_the_one(
    make_job: MakeJob, runs_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at what is there and the creation."""
    job, meanwhile = make_job(), []

    def begin(*looked: Any) -> None:
        if not meanwhile:
            meanwhile.append(create_run(job, "", runs_dir))

    after(monkeypatch, "orchestrator.launch.runs.run_to_continue", begin)
    assert attach_or_create(job, "", runs_dir) == (meanwhile[0], False)
    assert len(all_runs(runs_dir)) == 1


def test_racing_attachments_get_one_run(make_job: MakeJob, runs_dir: Path) -> None:
    job = make_job()
    children = [fork.Process(target=_attach, args=(job, runs_dir)) for _ in range(6)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
    assert [child.exitcode for child in children] == [0] * 6
    assert len(all_runs(runs_dir)) == 1
    assert len(os.listdir(runs_dir / "tiny")) == 1


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "repository"
    path.mkdir()
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "someone")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "someone@example.org")
    (path / "train.py").write_text("print(1)\n")
    for command in (["init", "-q"], ["add", "train.py"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", "-C", str(path), *command], check=True)
    return path


def test_code_state_has_commit_and_changes(repository: Path) -> None:
    (repository / "train.py").write_text("print(2)\n")
    (repository / "new.py").touch()
    head = subprocess.run(["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True)
    state = code_state(repository)
    mine = state.record["repositories"][0]
    assert (mine["used_by"], mine["commit"], mine["dirty"]) == ("working directory", head.stdout.strip(), True)
    assert mine["untracked"] == ["new.py"]
    assert b"\n-print(1)\n+print(2)\n" in state.diff


def test_a_change_within_the_second_of_the_index_is_seen(repository: Path) -> None:
    """git compares whole seconds and sizes, and reads what is no older than its index."""
    (repository / "new.py").touch()
    subprocess.run(["git", "-C", str(repository), "config", "core.trustctime", "false"], check=True)
    script, second = repository / "train.py", 1_700_000_000
    os.utime(script, (second, second))
    subprocess.run(["git", "-C", str(repository), "update-index", "--refresh"], check=True)
    os.utime(repository / ".git" / "index", (second, second))
    script.write_text("print(2)\n")
    os.utime(script, (second, second))
    assert b"\n-print(1)\n+print(2)\n" in code_state(repository).diff


def test_code_state_without_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_state(tmp_path).record["repositories"] == []
