"""`launch.copy_to`: a host that shares no folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.hosts import Hosts
from ssh.runs import STEPS, causes, started
from support.faults import CommandLine, wait_until
from support.held import wait_for_hold
from support.training import events, layout, losses

from orchestrator.launch.states.run_states import status_of
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.spec.job import JobSpec

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.slow("a lost host is seen after a quarter of a minute, and holds its run for up to one"),
]


def test_hosts_that_share_nothing(
    hosts: Hosts,
    make_job: Callable[..., JobSpec],
    here: Callable[[JobSpec], dict[int, float]],
    command: CommandLine,
    tmp_path: Path,
) -> None:
    """Code and run directory are copied to the host and back: after it was cut off, after a stop, and to another."""
    (tmp_path / "runs").mkdir()
    for name in ("h1", "h2"):
        for folder in (tmp_path / "runs", Path("/mnt")):
            hosts.run(name, "mount", "-t", "tmpfs", "tmpfs", str(folder))
    job = make_job("copied", layout(), "h1", held=True, nodes=1, copy_to="/mnt/jobs")
    with started(command, job) as end:
        run = command.run()
        wait_for_hold(run, 1)
        assert not hosts.run("h1", "ls", str(tmp_path / "runs"))
        assert status_of(run).state == "running"
        assert max(losses(run)) >= 4
        hosts.cut("h1")
        wait_until(lambda: events(run, "exited"), "the host is missed")
        hosts.heal("h1")
        wait_for_hold(run, 1, launch=1)
        assert command("cancel", run.run_id).code == 0
        assert end().startswith("1\n")
    assert [cause for cause, _ in causes(run)] == ["node_fail", "stopped"]
    assert command("status", run.run_id).code == 0
    assert "stopped at iteration" in command("logs", run.run_id).out
    started_by_torchrun = "launch.env={OMP_NUM_THREADS: '1'}"
    resumed = command("resume", run.run_id, "--set", "launch.hosts=[h2]", "--set", started_by_torchrun)
    assert resumed.code == 0, resumed.out + resumed.err
    assert losses(run) == here(job)
    assert hosts.run("h2", "ls", f"/mnt/jobs/copied/{run.run_id}/checkpoints").split()[-1] == "iter_0000012"
    assert committed(run)[-1].iteration == STEPS
