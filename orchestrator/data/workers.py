"""Worker processes that map a function over chunks, in order.

Each worker has a pipe of its own and ends when the pipe closes, so none outlives a parent that was killed. A thread of
the parent waits for each worker; the next chunk goes to whichever is free.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from queue import SimpleQueue
from typing import Generic, TypeVar

from orchestrator.errors import JobError, OrchestratorError

Item = TypeVar("Item")
Result = TypeVar("Result")
_KEPT = "Finished shards are kept: run the same command again, with fewer --workers if memory ran out"


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered_map(
    build: Callable[[], Callable[[Item], Result]], items: Iterable[Item], workers: int, place: Callable[[Item], str]
) -> Generator[tuple[Item, Result]]:
    """Yield (item, function(item)) in the order of the items, where function = build() in each worker. `place`: what an
    item is, for people.

    One worker means this process. Raises what the function raised, and JobError when a worker died or lacked memory.
    """
    if workers == 1:
        function = build()
        for item in items:
            try:
                yield item, function(item)
            except MemoryError as error:
                raise JobError(_no_memory(place(item)), code="record_out_of_memory") from error
        return
    pool = [_start(build) for _ in range(workers)]
    free: SimpleQueue[_Worker[Item, Result]] = SimpleQueue()
    for worker in pool:
        free.put(worker)

    def call(item: Item) -> Result:
        worker = free.get()
        try:
            return worker.call(item, place)
        finally:
            free.put(worker)

    waiting: deque[tuple[Item, Future[Result]]] = deque()
    threads = ThreadPoolExecutor(workers)
    try:
        for item in items:
            waiting.append((item, threads.submit(call, item)))
            if len(waiting) >= 2 * workers:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        for _, future in waiting:
            future.cancel()
        for worker in pool:
            worker.process.terminate()
        threads.shutdown()
        for worker in pool:
            worker.process.join()
            worker.connection.close()


@dataclass
class _Worker(Generic[Item, Result]):
    process: BaseProcess
    connection: Connection

    def call(self, item: Item, place: Callable[[Item], str]) -> Result:
        try:
            self.connection.send(item)
            answer: Result | OrchestratorError | MemoryError = self.connection.recv()
        except (EOFError, OSError) as error:
            self.process.join()
            raise JobError(
                f"a worker process died (exit code {self.process.exitcode}; -9 is often a lack of memory) in the "
                f"record that "
                f"begins at {place(item)}. {_KEPT}",
                code="worker_died",
            ) from error
        if isinstance(answer, MemoryError):
            raise JobError(_no_memory(place(item)), code="record_out_of_memory")
        if isinstance(answer, OrchestratorError):
            raise answer
        return answer


def _no_memory(place: str) -> str:
    return f"the record that begins at {place} needs more memory than is available. {_KEPT}"


def _start(build: Callable[[], Callable[[Item], Result]]) -> _Worker[Item, Result]:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, build), daemon=True)
    # Ctrl-C reaches the whole group, also a worker that is just being started; the parent decides what happens.
    resource_tracker.ensure_running()  # or it would be started with the worker, which lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    theirs.close()
    return _Worker(process, ours)


def _serve(connection: Connection, build: Callable[[], Callable[[Item], Result]]) -> None:
    """A worker's life: items in, results out, until the parent is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    function = build()
    while True:
        try:
            item: Item = connection.recv()
        except (EOFError, ConnectionError):
            return
        try:
            answer: Result | OrchestratorError | MemoryError = function(item)
        except OrchestratorError as error:
            answer = error
        except MemoryError:
            answer = MemoryError()
        try:
            connection.send(answer)
        except ConnectionError:
            return
