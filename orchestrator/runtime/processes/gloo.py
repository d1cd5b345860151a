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


class _OnTheFirstDevice(_Group):
    """A group that shares the network device of the first one, and with it the thread that waits for its sockets."""

    _shared: ClassVar[list[Any]] = []

    def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        if not self._shared:
            super().__init__(store, rank, size, timeout=timeout)
            self._shared.append(self.options)
            return
        [first] = self._shared
        options = _Group._Options()
        options._devices, options._threads, options._timeout = first._devices, first._threads, timeout
        super().__init__(store, rank, size, options)


@contextlib.contextmanager
def few_threads() -> Iterator[None]:
    """Groups that are made within share one network device.

    Each would have its own, and a thread for it that looks up a hundred times a second, whatever its group does:
    megatron-core makes some twenty groups.
    """
    names = vars(distributed_c10d)
    names["ProcessGroupGloo"] = _OnTheFirstDevice
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
