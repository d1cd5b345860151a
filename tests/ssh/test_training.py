"""Runs on several machines through `ssh`: whatever happens to a host, losses are bitwise those of one machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.hosts import Hosts
from ssh.runs import STEPS, causes, started
from support.faults import CommandLine, wait_until
from support.held import let_go, wait_for_hold
from support.training import events, layout, losses

from orchestrator.launch.runs import all_runs
from orchestrator.launch.states.run_states import status_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.slow("a lost host is seen after a quarter of a minute, and holds its run for up to one"),
]


def test_a_host_that_is_cut_off_and_one_that_is_killed(
    hosts: Hosts,
    make_job: Callable[..., JobSpec],
    here: Callable[[JobSpec], dict[int, float]],
    command: CommandLine,
) -> None:
    """Two of three: the third takes the place of the one that is cut off, which takes that of the one that is killed.
    What was left on the host that was cut off has ended by itself, a minute later; the lease of rank 0, which was on
    the one that is killed, expires after a minute, too.
    """
    job = make_job("faults", layout(dp=2), "h[1-3]", held=True, nodes=2)
    with started(command, job) as end:
        run = command.run()
        wait_for_hold(run, 2)
        assert hosts.processes("h2", "orchestrator")
        hosts.cut("h2")
        wait_until(lambda: len(events(run, "launched")) == 2, "another host takes its place")
        wait_for_hold(run, 2, launch=1)
        [(cause, node)] = causes(run)
        assert (cause, node) == ("node_fail", "h2")
        wait_until(lambda: status_of(run).state == "running", "it runs")
        hosts.kill("h1")
        wait_until(lambda: not hosts.processes("h2", "orchestrator"), "what was cut off ends by itself", every=0.5)
        hosts.heal("h2")
        said = end()
    assert said.startswith("0\n"), said + run.launcher_log.read_text()
    assert causes(run) == [("node_fail", "h2"), ("node_fail", "h1"), ("completed", None)]
    assert losses(run) == here(job)
    assert len(losses(run)) == STEPS
    assert not any(hosts.processes(name, "orchestrator") for name in ("h2", "h3"))


def test_four_hosts_train_as_one_machine(
    hosts: Hosts,
    make_job: Callable[..., JobSpec],
    here: Callable[[JobSpec], dict[int, float]],
    command: CommandLine,
    tmp_path: Path,
) -> None:
    file = tmp_path / "machines"
    file.write_text("# name slots\nh1 slots=1\nh2\n\nh3  # the third\nh4\n")
    job = make_job("four", layout(tp=2, dp=2), nodes=4, hosts_file=str(file))
    stopped = command("run", command.write(job.changed(schedule={"train_iters": 6})))
    assert stopped.code == 0, stopped.out + stopped.err
    run = command.run()
    assert {event["world_size"] for event in events(run, "started")} == {4}
    longer = ["--set", f"schedule.train_iters={STEPS}", "--allow-changes"]
    resumed = command("resume", run.run_id, *longer)
    assert resumed.code == 0, resumed.out + resumed.err
    assert losses(run) == here(job)


def test_a_person_stops_it(hosts: Hosts, make_job: Callable[..., JobSpec], command: CommandLine) -> None:
    """`cancel` lets it save; `cancel --now` ends all processes of the hosts at once."""
    job = make_job("stopped", layout(dp=2), "h1", "h2", held=True, nodes=2)
    with started(command, job) as end:
        run = command.run()
        wait_for_hold(run, 2)
        assert command("cancel", run.run_id).code == 0
        assert end().startswith("1\n")
    assert causes(run) == [("stopped", None)]
    with started(command, job) as end:
        wait_until(lambda: len(events(run, "started")) == 2, "it goes on")
        assert command("cancel", "--now", run.run_id).code == 0
        end()
    assert causes(run)[1:] == [("cancelled", None)]
    wait_until(lambda: not any(hosts.processes(name, "orchestrator") for name in ("h1", "h2")), "nothing is left")


def test_a_launcher_on_one_of_its_hosts(
    hosts: Hosts, make_job: Callable[..., JobSpec], inject: Callable[[str], Path], tmp_path: Path
) -> None:
    """A rank that fails is not taken for one that was killed."""
    folder = inject("if RANK == 1: raise RuntimeError('a bug')").parent
    job = make_job("inside", layout(dp=2), "h1", "h2", nodes=2)
    job = job.changed(launch={"env": {**job.launch.env, "PYTHONPATH": f"{job.launch.env['PYTHONPATH']}:{folder}"}})
    command = [sys.executable, "-m", "orchestrator", "run", str(tmp_path / "job.yaml"), "--runs-dir", str(tmp_path)]
    (tmp_path / "job.yaml").write_text(dump_resolved(job))
    hosts.run("h1", *command, check=False)
    [run] = all_runs(tmp_path)
    assert [cause for cause, _ in causes(run)] == ["bug"]
    assert "a bug" in events(run, "exited")[0]["message"]


def test_hosts_that_refuse(
    hosts: Hosts, make_job: Callable[..., JobSpec], command: CommandLine, tmp_path: Path
) -> None:
    """Before anything has been trained it is a mistake of the person, who hears which host says what."""
    hosts.stop_sshd("h2")
    hosts.run("h1", "mkdir", "-p", str(tmp_path / "runs"))
    hosts.run("h1", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path / "runs"))  # not the folder that others see there
    job = make_job("refused", layout(dp=2), "h1", "h2", nodes=2)
    begun = time.monotonic()
    said = command("run", command.write(job))
    assert time.monotonic() - begun < 60
    assert said.code == 2
    assert "Connection refused" in said.err
    assert "h1: " in said.err
    assert "share" in said.err
    assert causes(command.run()) == [("user_error", None)]


def test_a_full_disk_and_a_process_of_an_earlier_launch(
    hosts: Hosts,
    make_job: Callable[..., JobSpec],
    here: Callable[[JobSpec], dict[int, float]],
    command: CommandLine,
) -> None:
    job = make_job("full", layout(dp=1), "h1", held=True)
    with started(command, job) as end:
        run = command.run()
        wait_for_hold(run, 1)
        launch_id = events(run, "launched")[0]["launch_id"]
        hosts.run("h1", "mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(run.checkpoints))
        let_go(run)
        said = end()
    assert [cause for cause, _ in causes(run)] == ["disk_full"], said
    hosts.run("h1", "umount", str(run.checkpoints))
    hosts.run("h1", "sh", "-c", f"ORCHESTRATOR_LAUNCH_ID={launch_id} setsid sleep 987654 >/dev/null 2>&1 &")
    assert hosts.processes("h1", "sleep 987654")
    resumed = command("resume", run.run_id)
    assert resumed.code == 0, resumed.out + resumed.err
    assert not hosts.processes("h1", "sleep 987654")
    assert losses(run) == here(job)
