"""Hosts that do not answer at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from ssh.hosts import Hosts
from ssh.runs import causes, started
from support.faults import CommandLine, wait_until
from support.training import events, layout

from orchestrator.launch.states.run_states import status_of
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600)]


@pytest.fixture
def short_job(make_job: Callable[..., JobSpec]) -> Callable[..., JobSpec]:
    def make(name: str, *hosts: str, **launch: Any) -> JobSpec:
        return make_job(name, layout(dp=2), *hosts, nodes=2, **launch).changed(schedule={"train_iters": 2})

    return make


def test_a_jump_host_that_drops_connections(
    hosts: Hosts, short_job: Callable[..., JobSpec], command: CommandLine
) -> None:
    """It lets one log in at a time; the others are connected a little later. `submit` starts the run."""
    hosts.stop_sshd("h1")
    hosts.start_sshd("h1", "MaxStartups 1\n")
    try:
        said = command("submit", command.write(short_job("dropped", "far[2-4]")))
        assert said.code == 0, said.err
        run = command.run()
        wait_until(lambda: causes(run), "the run to end")
    finally:
        hosts.stop_sshd("h1")
    assert causes(run) == [("completed", None)]
    assert len(events(run, "launched")) == 1
    assert "MaxStartups" in hosts.sshd_log("h1")
    assert status_of(run).job is None


def test_cancel_while_a_host_is_waited_for(
    hosts: Hosts, short_job: Callable[..., JobSpec], command: CommandLine
) -> None:
    hosts.pause_sshd("h2")
    with started(command, short_job("paused", "h1", "h2")) as end:
        run = wait_until(lambda: [each for each in [command.run()] if events(each, "launched")], "a launch")[0]
        time.sleep(3)  # h1 is ready, and h2 may take ten seconds to answer
        begun = time.monotonic()
        assert command("cancel", run.run_id).code == 0
        end()
    assert time.monotonic() - begun < 8
    assert causes(run) == [("cancelled", None)]
