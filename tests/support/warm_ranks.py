"""Ranks that have trained already, and wait for more: each start of processes would cost as much as a tiny job.

What goes on from a checkpoint does so in other processes than those that saved it: a state that were not restored might
still be there. Ranks end with the file whose tests have asked for them.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
import weakref
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from orchestrator.run_directory.rundir import RunDir
from support.ranks import RankStarter, free_core, free_port

_PROGRAM = Path(__file__).with_name("warm_program.py")
_MOST_PROCESSES = 10
_KINDS = 2
"""Of processes: those that a run's next start is not in."""
_ALL: weakref.WeakSet[WarmRanks] = weakref.WeakSet()


class _Processes:
    """As many ranks, which wait for jobs."""

    def __init__(self, starter: RankStarter, folder: Path, size: int, inject: Path | None) -> None:
        folder.mkdir()
        self.size = size
        self._pipes = [_pipe(folder / f"ask-{rank}") for rank in range(size)]
        self._done = _pipe(folder / "done")
        self._started = starter.start(folder, size, program=_PROGRAM, inject=inject, chooses_core=True)
        self._ended = self._started.watched()

    def train(self, run: RunDir, launch_id: str, saved: Path | None, seconds: float) -> bool:
        """Whether all ranks came to the end; the processes have ended where they did not."""
        job = {"run_dir": str(run.path), "launch_id": launch_id, "saved": str(saved or "")}
        with _core_of_its_own() as core:
            line = json.dumps({**job, "port": str(free_port()), "core": core}) + "\n"
            for pipe in self._pipes:
                os.write(pipe, line.encode())
            deadline, left = time.monotonic() + seconds, self.size
            while left:
                told = select.select([self._done, self._ended], [], [], max(0.0, deadline - time.monotonic()))[0]
                if not told:
                    self._started.signal(signal.SIGKILL)
                    raise TimeoutError(f"the ranks did not end within {seconds:.0f} s")
                if self._done not in told:
                    return False
                left -= len(os.read(self._done, left))
        return True

    def end(self) -> None:
        """Once they have read that no more is asked for."""
        for pipe in self._pipes:
            os.close(pipe)
        self._started.wait(30)
        os.close(self._done)
        os.close(self._ended)


def _pipe(path: Path) -> int:
    """For both reading and writing, so that it can be opened before another process does."""
    os.mkfifo(path)
    return os.open(path, os.O_RDWR)


class WarmRanks:
    """Processes by their number, by what they have injected, and by whether a run's last start was in them."""

    def __init__(self, starter: RankStarter) -> None:
        self._starter = starter
        self._made = 0
        self._waiting: dict[tuple[int, str | None, int], _Processes] = {}
        self._starts = Counter[RunDir]()
        _ALL.add(self)

    def train(
        self,
        run: RunDir,
        size: int,
        *,
        launch_id: str = "test",
        saved: Path | None = None,
        inject: Path | None = None,
        seconds: float = 240,
    ) -> bool:
        """Whether the training came to its end. `saved`: UNSAVED or WEIGHTS_ALONE, where it does not save all.
        `inject`: executed by each rank before the first job of all those with the same.
        """
        # What it says, for the file may be written anew.
        kind = size, None if inject is None else inject.read_text(), self._starts[run] % _KINDS
        self._starts[run] += 1
        processes = self._waiting.pop(kind, None) or self._new(size, inject)
        if not processes.train(run, launch_id, saved, seconds):
            processes.end()
            return False
        self._waiting[kind] = processes  # behind those that wait for longer
        return True

    def _new(self, size: int, inject: Path | None) -> _Processes:
        while self._waiting and sum(each.size for each in self._waiting.values()) + size > _MOST_PROCESSES:
            self._waiting.pop(next(iter(self._waiting))).end()
        self._made += 1
        return _Processes(self._starter, Path(self._starter.name).with_name(f"warm-{self._made}"), size, inject)

    def end(self) -> None:
        """End the processes; later jobs get others."""
        while self._waiting:
            self._waiting.popitem()[1].end()


def end_all() -> None:
    """End those of all that there are."""
    for each in _ALL:
        each.end()


@contextlib.contextmanager
def _core_of_its_own() -> Iterator[int | None]:
    """For the ranks of a job that is one of several on this machine."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        yield None
        return
    core, place = free_core()
    try:
        yield core
    finally:
        if place is not None:
            os.close(place)
