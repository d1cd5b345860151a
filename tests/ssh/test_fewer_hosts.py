"""`launch.min_nodes`: a run goes on without a host that is lost."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from ssh.hosts import Hosts
from ssh.runs import causes, started
from support.faults import CommandLine, Ranks
from support.held import HOLD, hold_at, wait_for_hold
from support.training import events, layout, losses, make_run

from orchestrator.launch.processes.launch_processes import ranks_of
from orchestrator.run_directory.lease import DEFAULT_TIME_TO_LIVE
from orchestrator.spec.job import JobSpec

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.slow("a lost host is seen after a quarter of a minute"),
]


def test_it_goes_on_without_a_host_and_takes_it_back(
    hosts: Hosts,
    make_job: Callable[..., JobSpec],
    ranks: Ranks,
    inject: Callable[[str], Path],
    command: CommandLine,
    tmp_path: Path,
) -> None:
    """The losses are those of one machine whose job goes on with one replica in place of two, and then with two. The
    host of rank 0 is there each time, and releases the lease: nobody waits until it has expired.
    """
    job = make_job("elastic", layout(dp=2), "h1", "h2", held=True, nodes=2, min_nodes=1)
    job = job.changed(checkpoint={"async_save": False})  # the checkpoint before a hold is in place, in each launch
    with started(command, job) as end:
        run = command.run()
        wait_for_hold(run, 2)
        hosts.kill("h2")
        wait_for_hold(run, 1, launch=1)
        said = command("status", run.run_id).out
        assert re.search(r"nodes +1 of 2", said), said
        hosts.boot("h2")
        os.kill(ranks_of(events(run, "launched")[-1]["launch_id"])[0], signal.SIGKILL)
        said = end()
    assert said.startswith("0\n"), said + run.launcher_log.read_text()
    assert [(event["world_size"], event["nodes"]) for event in events(run, "started")] == [(2, 2), (1, 1), (2, 2)]
    assert [cause for cause, _ in causes(run)] == ["node_fail", "killed", "completed"]
    again = zip(events(run, "exited"), events(run, "launched")[1:], strict=False)
    assert max(launched["time"] - exited["time"] for exited, launched in again) < DEFAULT_TIME_TO_LIVE / 2

    alone = {"nodes": 1, "min_nodes": None, "executor": None, "hosts": [], "env": {"OMP_NUM_THREADS": "1"}}
    hold = inject(HOLD)
    for replicas, step in ((2, 5), (1, 8), (2, None)):
        part = job.changed(launch=alone, parallelism={"data_parallel_size": replicas})
        here = make_run(tmp_path / "here", part)
        begun = ranks.start(here, part, inject=hold, env=hold_at(step, since=0))
        if step is not None:
            wait_for_hold(here, replicas)
            begun.signal(signal.SIGKILL)
            for mark in here.path.glob("held-*"):
                mark.unlink()
        assert begun.wait() == (0 if step is None else 1)
    assert losses(run) == losses(here)
