"""gloo, the CPU's collectives: its threads kept few, and out of the way of those that compute."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, ClassVar

from torch.distributed import distributed_c10d

_Group: Any = distributed_c10d.ProcessGroupGloo


class _OneThread(_Group):
    """A group with one thread for its collectives, on the network devices of the first group, which have one each that
    waits for sockets.
    """

    _devices: ClassVar[list[Any]] = []

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        if not self._devices:
            self._devices.extend(_network_devices())
        options = _Group._Options()
        options._devices, options._threads, options._timeout = self._devices, 1, timeout
        super().__init__(store, rank, size, options)


def _network_devices() -> list[Any]:
    """Those that torch would take: of the interfaces in GLOO_SOCKET_IFNAME, else of the host's name."""
    named = os.environ.get("GLOO_SOCKET_IFNAME", "")
    interfaces = [_Group.create_device(interface=name) for name in named.split(",") if name]
    return interfaces or [_Group.create_default_device()]


@contextlib.contextmanager
def few_threads() -> Iterator[None]:
    """Groups that are made within share the network devices, and have one thread each.

    Each would have devices of its own, and for each of them a thread that looks up a hundred times a second, whatever
    its group does: megatron-core makes some twenty groups. Each would also have two threads for collectives, which
    write a group's state (the name of what it did last) without a lock: torch 2.13, `ProcessGroupGloo::runLoop`.
    """
    names = vars(distributed_c10d)
    names["ProcessGroupGloo"] = _OneThread
    try:
        yield
    finally:
        names["ProcessGroupGloo"] = _Group


def wait_for_a_free_core() -> None:
    """Let threads that this one starts from now on, when there is work for them, push nobody aside who computes.

    gloo's thread for its sockets passes over a connection that is locked and asks again at once. Where it is woken on
    the core of the thread that sends, it would push that one aside with the lock held, and ask until its time is up: a
    quarter of the CPU time of a tensor-parallel training on two cores.
    """
    if sys.platform != "linux":
        return
    with contextlib.suppress(OSError):  # a machine that does not let it happen trains all the same
        if os.sched_getscheduler(0) == os.SCHED_OTHER:  # not where a person has chosen another
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
