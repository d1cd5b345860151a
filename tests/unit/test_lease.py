"""Exactly one incarnation of a run writes."""

import errno
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.clock import stop_at
from support.depth import examples
from support.refusals import refuse
from support.refused import refused

from orchestrator.errors import LeaseLost, RunIsHeld
from orchestrator.process import Process
from orchestrator.run_directory.lease import Lease, read_holder, release_for_the_dead
from orchestrator.run_directory.rundir import RunDir

fork = multiprocessing.get_context("fork")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    path = tmp_path / "runs" / "job" / "abcd1234"
    path.mkdir(parents=True)
    return RunDir(path)


def make_silent(run: RunDir, token: int, seconds: float) -> None:
    """As if the holder had last been heard of `seconds` ago."""
    path = run.lease / f"{token:06d}.json"
    touched = path.stat().st_mtime - seconds
    os.utime(path, (touched, touched))


def make_foreign(run: RunDir, token: int) -> None:
    """As if the holder were on another host, where its pid means nothing to us."""
    path = run.lease / f"{token:06d}.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "host": "elsewhere", "boot": "other"}))


def test_nobody_holds_a_new_run(run: RunDir) -> None:
    assert read_holder(run) is None


def test_first_holder_gets_one_and_names_itself(run: RunDir) -> None:
    lease = Lease.acquire(run, launch_id="a")
    holder = read_holder(run)
    assert lease.token == 1
    assert holder is not None
    assert holder.live
    assert holder.launch_id == "a"
    assert holder.process == Process.current()
    lease.check()


def test_held_run_names_host_pid_since_and_way_out(run: RunDir) -> None:
    Lease.acquire(run, launch_id="a")
    with pytest.raises(RunIsHeld) as caught:
        Lease.acquire(run, launch_id="b")
    message = str(caught.value)
    assert f"pid {os.getpid()} on {os.uname().nodename} since 20" in message
    assert "orchestrator cancel abcd1234" in message
    assert caught.value.exit_code == 2


def test_released_lease_is_taken_over_and_kept(run: RunDir) -> None:
    first = Lease.acquire(run, launch_id="a")
    first.release()
    second = Lease.acquire(run, launch_id="b")
    assert second.token == 2
    assert (run.lease / "000001.json").exists()
    with refused("lease_lost", kind=LeaseLost):
        first.check()
    second.check()


def test_late_release_of_a_lost_lease_changes_nothing(run: RunDir) -> None:
    first = Lease.acquire(run, launch_id="a", time_to_live=5)
    make_silent(run, 1, 6)
    second = Lease.acquire(run, launch_id="b")
    first.release()
    second.check()
    holder = read_holder(run)
    assert holder is not None
    assert (holder.token, holder.live) == (2, True)


def test_silent_holder_is_replaced_only_after_its_own_time_to_live(run: RunDir) -> None:
    first = Lease.acquire(run, launch_id="a", time_to_live=3000)
    make_foreign(run, 1)
    make_silent(run, 1, 2500)
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="b", time_to_live=1)
    make_silent(run, 1, 501)
    Lease.acquire(run, launch_id="b", time_to_live=1)
    with pytest.raises(LeaseLost):
        first.check()


def test_dead_process_of_this_host_is_replaced_at_once(run: RunDir) -> None:
    child = fork.Process(target=Lease.acquire, args=(run,), kwargs={"launch_id": "a", "time_to_live": 1e6})
    child.start()
    child.join()
    holder = read_holder(run)
    assert holder is not None
    assert not holder.live
    assert holder.reason == "its process has ended"
    assert Lease.acquire(run, launch_id="b").token == 2


def test_the_machine_of_a_dead_holder_releases_its_lease_for_others(run: RunDir) -> None:
    """Of that launch alone, and only where the process is known to be gone."""
    child = fork.Process(target=Lease.acquire, args=(run,), kwargs={"launch_id": "a", "time_to_live": 1e6})
    child.start()
    child.join()
    ours = (run.lease / "000001.json").read_text()

    def elsewhere() -> str:
        make_foreign(run, 1)
        holder = read_holder(run)
        (run.lease / "000001.json").write_text(ours)
        assert holder is not None
        return "live" if holder.live else holder.reason

    release_for_the_dead(run, "b")
    assert elsewhere() == "live"
    release_for_the_dead(run, "a")
    assert elsewhere() == "released"


@pytest.mark.parametrize("is_foreign", [False, True])
def test_the_lease_of_a_holder_that_may_live_is_not_released(run: RunDir, is_foreign: bool) -> None:
    Lease.acquire(run, launch_id="a")
    if is_foreign:
        make_foreign(run, 1)
    release_for_the_dead(run, "a")
    holder = read_holder(run)
    assert holder is not None
    assert holder.live


def test_nobody_is_released_where_nobody_holds(run: RunDir) -> None:
    release_for_the_dead(run, "a")
    assert read_holder(run) is None


def test_unreaped_zombie_is_dead(run: RunDir) -> None:
    code = (
        "import sys, pathlib; from orchestrator.run_directory.lease import Lease; "
        "from orchestrator.run_directory.rundir import RunDir; "
        "Lease.acquire(RunDir(pathlib.Path(sys.argv[1])), launch_id='a'); print('held', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(run.path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdin is not None
    assert child.stdout.readline() == b"held\n"
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="b")
    child.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped: a zombie
    assert Lease.acquire(run, launch_id="b").token == 2
    child.wait()
    child.stdout.close()
    child.stdin.close()


def test_reused_pid_is_not_the_holder(run: RunDir) -> None:
    Lease.acquire(run, launch_id="a")
    path = run.lease / "000001.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "started": record["started"] - 1}))
    holder = read_holder(run)
    assert holder is not None
    assert not holder.live


def test_heartbeat_keeps_the_lease(run: RunDir) -> None:
    lease = Lease.acquire(run, launch_id="a", time_to_live=1)
    make_foreign(run, 1)
    lease.start_heartbeat()
    for _ in range(3):
        make_silent(run, 1, 1000)
        deadline = time.monotonic() + 60
        while not (holder := read_holder(run)) or not holder.live:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    lease.release()
    assert Lease.acquire(run, launch_id="b").token == 2


def test_attached_ranks_check_and_do_not_release(run: RunDir) -> None:
    lease = Lease.acquire(run, launch_id="a")
    other = Lease.attach(run, lease.token)
    other.check()
    other.release()
    holder = read_holder(run)
    assert holder is not None
    assert holder.live
    with pytest.raises(ValueError, match="holder"):
        other.start_heartbeat()
    lease.release()
    Lease.acquire(run, launch_id="b")
    with pytest.raises(LeaseLost):
        other.check()


def test_lease_file_that_is_still_empty_counts_as_live_until_it_is_old(run: RunDir) -> None:
    run.lease.mkdir()
    (run.lease / "000001.json").touch()
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="b")
    make_silent(run, 1, 61)
    assert Lease.acquire(run, launch_id="b").token == 2


def test_exclusive_creation_without_hard_links(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, "os.link", errno.EPERM)
    Lease.acquire(run, launch_id="a")
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="b")


def test_own_clock_does_not_matter(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    Lease.acquire(run, launch_id="a", time_to_live=60)
    make_foreign(run, 1)
    now = time.time()
    stop_at(monkeypatch, now + 1e6)
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="b")


@pytest.mark.parametrize("name", ["999999999999999999", "9999999999", "0000000002", "0999999"])
def test_a_number_that_no_start_makes_is_no_lease(run: RunDir, name: str) -> None:
    """Its successor would not be read: the next start would look for a free number for ever."""
    first = Lease.acquire(run, launch_id="a")
    (run.lease / f"{name}.json").write_text("{}")
    first.check()
    first.release()
    second = Lease.acquire(run, launch_id="b")
    assert second.token == 2
    with pytest.raises(LeaseLost):
        first.check()
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="c")


def test_the_number_after_any_that_is_read_is_read_or_refused(run: RunDir) -> None:
    run.lease.mkdir()
    (run.lease / "999999998.json").write_text("{}")
    make_silent(run, 999999998, 61)
    Lease.acquire(run, launch_id="a").release()
    with refused("numbers_used_up"):
        Lease.acquire(run, launch_id="b")
    holder = read_holder(run)
    assert holder is not None
    assert holder.token == 999999999


def test_a_next_lease_that_is_there_and_is_not_listed_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where 000001.JSON is the same name."""
    refuse(monkeypatch, "os.link", errno.EEXIST)
    with refused("damaged_lease", "000001.json"):
        Lease.acquire(run, launch_id="a")


def _race(run: RunDir, rounds: int, barrier: threading.Barrier, wins: Any, release: str) -> None:
    for number in range(rounds):
        barrier.wait()
        try:
            lease = Lease.acquire(run, launch_id=f"{os.getpid()}-{number}", time_to_live=1e6)
        except RunIsHeld:
            lease = None
        else:
            with wins.get_lock():
                wins[number] += 1
        barrier.wait()
        if lease is not None:
            lease.check()
            if release == "released":
                lease.release()
            else:
                make_silent(run, lease.token, 2e6)


@pytest.mark.parametrize("release", ["released", "silent"])
def test_race_has_exactly_one_winner_in_every_round(run: RunDir, release: str) -> None:
    processes, rounds = 8, 60
    barrier = fork.Barrier(processes)
    wins = fork.Array("i", rounds)
    children = [fork.Process(target=_race, args=(run, rounds, barrier, wins, release)) for _ in range(processes)]
    for child in children:
        child.start()
    for child in children:
        child.join(240)
    assert [child.exitcode for child in children] == [0] * processes
    assert wins[:] == [1] * rounds
    newest = read_holder(run)
    assert newest is not None
    assert newest.token == rounds


@given(steps=st.lists(st.sampled_from(["acquire", "release", "silent", "dead"]), max_size=25))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=examples(60))
def test_any_history_has_at_most_one_valid_lease(tmp_path_factory: pytest.TempPathFactory, steps: list[str]) -> None:
    """Whatever happens, only the newest lease passes its check, and numbers grow by one per takeover."""
    run = RunDir(tmp_path_factory.mktemp("run"))
    leases: list[Lease] = []
    free = True
    for step in steps:
        if step == "acquire":
            if free:
                leases.append(Lease.acquire(run, launch_id=str(len(leases)), time_to_live=100))
                free = False
            else:
                with pytest.raises(RunIsHeld):
                    Lease.acquire(run, launch_id="refused")
        elif leases:
            if step == "release":
                leases[-1].release()
            elif step == "silent":
                make_silent(run, leases[-1].token, 101)
            else:
                path = run.lease / f"{leases[-1].token:06d}.json"
                record = json.loads(path.read_text())
                touched = path.stat().st_mtime
                path.write_text(json.dumps({**record, "started": 1}))
                os.utime(path, (touched, touched))
            free = True
        assert [lease.token for lease in leases] == list(range(1, len(leases) + 1))
        for stale in leases[:-1]:
            with pytest.raises(LeaseLost):
                stale.check()
        if leases:
            leases[-1].check()


def test_a_later_incarnation_of_the_same_job_takes_over_from_a_live_one(run: RunDir) -> None:
    """SLURM starts a job again when it can no longer reach a node; what runs there does not know."""
    stale = Lease.acquire(run, launch_id="lab-12.0")
    make_foreign(run, 1)
    fresh = Lease.acquire(run, launch_id="lab-12.1")
    assert fresh.token == 2
    fresh.check()
    with pytest.raises(LeaseLost):
        stale.check()
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id="lab-12.0")


@pytest.mark.parametrize(
    "other", ["lab-12.0", "lab-12.1", "lab-13.2", "ice-12.2", "20260131-120000-abcdef", "lab-12.x"]
)
def test_nothing_else_takes_over_from_a_live_holder(run: RunDir, other: str) -> None:
    Lease.acquire(run, launch_id="lab-12.1")
    with pytest.raises(RunIsHeld):
        Lease.acquire(run, launch_id=other)
