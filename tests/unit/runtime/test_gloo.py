"""gloo's threads: one for the sockets of all groups, and none that pushes aside who computes."""

from __future__ import annotations

import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.faults import Ranks
from support.refusals import refuse

from orchestrator.runtime.processes.gloo import wait_for_a_free_core


def test_groups_share_a_device(ranks: Ranks) -> None:
    """In a process of its own, whose threads can be counted."""
    said = ranks.program(Path(__file__).parent, "gloo_program").splitlines()
    assert said == ["2 1 1 3", "1.0 1.0 1.0 1.0"], "a device has one, a group one, otherwise two"


def test_only_a_policy_that_nobody_has_chosen_is_changed() -> None:
    """In a thread of its own each, as the policy is a thread's, and inherited by those that it starts."""

    def policies(chosen: int) -> tuple[int, int]:
        os.sched_setscheduler(0, chosen, os.sched_param(0))
        wait_for_a_free_core()
        inherited: list[int] = []
        other = threading.Thread(target=lambda: inherited.append(os.sched_getscheduler(0)))
        other.start()
        other.join()
        return os.sched_getscheduler(0), inherited[0]

    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as another:
        assert one.submit(policies, os.SCHED_OTHER).result() == (os.SCHED_BATCH, os.SCHED_BATCH)
        assert another.submit(policies, os.SCHED_IDLE).result() == (os.SCHED_IDLE, os.SCHED_IDLE)


@pytest.mark.parametrize("name", ["sched_getscheduler", "sched_setscheduler"])
@pytest.mark.parametrize("number", [errno.EPERM, errno.EINVAL, errno.ENOSYS])
def test_who_may_not_choose_has_what_the_system_gives(name: str, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse(monkeypatch, f"os.{name}", number)
    wait_for_a_free_core()
