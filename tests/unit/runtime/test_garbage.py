"""Garbage is collected at one place of a step, and nowhere else in it."""

from __future__ import annotations

import gc
import weakref

import pytest

from orchestrator.runtime.processes.garbage import collect, collected_by_hand


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def cycle() -> weakref.ref[Node]:
    return weakref.ref(Node())


def test_a_cycle_lives_until_it_is_collected() -> None:
    with collected_by_hand():
        found = cycle()
        _ = [[index] for index in range(10_000)]  # so many that the collector would look by itself
        assert found() is not None
        collect(1)
        assert found() is None
    assert gc.isenabled()


@pytest.mark.parametrize(("iteration", "is_gone"), [(99, False), (100, True)])
def test_old_objects_every_hundredth_time(iteration: int, is_gone: bool) -> None:
    with collected_by_hand():
        node = Node()
        found = weakref.ref(node)
        gc.collect(1)  # it is old from here on
        del node
        collect(iteration)
        assert (found() is None) is is_gone
    gc.collect()


def test_it_stays_off_where_it_was() -> None:
    gc.disable()
    try:
        with collected_by_hand():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
