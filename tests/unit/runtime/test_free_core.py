"""Threads of ranks that compute on the CPU wait for a core that is free."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from orchestrator.runtime.process_groups import wait_for_a_free_core


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


def test_who_may_not_choose_has_what_the_system_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    wait_for_a_free_core()
