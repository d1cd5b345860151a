"""Requests wait in a queue; what has come by the time a batch is done is worked on together."""

from __future__ import annotations

import asyncio
import queue
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch

from orchestrator.inference.model import Model
from orchestrator.inference.requests import Request
from orchestrator.inference.serving.protocol import RequestError
from orchestrator.inference.texts import TextDelta
from orchestrator.runtime.processes.process_groups import end_waiting

_GATHERING_SECONDS = 0.005
"""Once a request is there, others that come with it are waited for so long."""
_LOOK_SECONDS = 0.2
_NO_MEMORY = "can't allocate memory"
"""torch's message when CPU memory runs out; it has an exception class for GPUs only."""
FAILED = "the server failed on this request; its log says why"


@dataclass(eq=False)
class Ticket:
    """The requests of one HTTP call, and where their pieces go. A piece's number is that of the choice in the call."""

    requests: Sequence[Request]
    loop: asyncio.AbstractEventLoop
    pieces: asyncio.Queue[TextDelta | RequestError] = field(default_factory=asyncio.Queue)

    @property
    def size(self) -> int:
        """Rows of a batch that it takes."""
        return sum(request.options.num_beams for request in self.requests)

    def put(self, piece: TextDelta | RequestError) -> None:
        """From the engine's thread. Whoever asked may have gone, with the loop."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.pieces.put_nowait, piece)


class Engine:
    """Works on requests in the thread that holds the model, on every process; HTTP is answered in another of rank 0."""

    def __init__(self, model: Model, max_batch: int, max_waiting: int) -> None:
        self._model, self._max_batch, self._max_waiting = model, max_batch, max_waiting
        self._waiting: queue.Queue[Ticket] = queue.Queue()
        self._left: Ticket | None = None
        self._stopping = threading.Event()
        self._count = 0
        self._lock = threading.Lock()

    @contextmanager
    def place(self, count: int) -> Iterator[None]:
        """A place among those who wait, of so many rows, for a call that is being made ready. Raises RequestError as
        `submit` does."""
        self._take(count)
        try:
            yield
        finally:
            self._give_back(count)

    def submit(self, ticket: Ticket) -> None:
        """Let a call wait for its turn. Raises RequestError when there are too many, or it is too large."""
        self._take(ticket.size)
        self._waiting.put(ticket)

    def _take(self, count: int) -> None:
        if count > self._max_batch:
            raise RequestError(
                400, f"{count} texts or beams are requested at once; at most {self._max_batch} are allowed"
            )
        with self._lock:
            if self._count + count > self._max_waiting:
                raise RequestError(429, f"{self._count} texts are already waiting; try again later")
            self._count += count

    def _give_back(self, count: int) -> None:
        with self._lock:
            self._count -= count

    def stop(self) -> None:
        """End `run` after the batch under way."""
        self._stopping.set()

    def run(self) -> None:
        """Until `stop` is called on rank 0. Every rank must call this.

        Whoever asked is told of an error in their batch, and the next batch is written. Several processes load the
        model again first: an error of one of them leaves the others waiting for it.
        """
        is_alone = self._model.network.ranks.world_size == 1
        while True:
            if not is_alone:
                end_waiting(self._model.network.device, self._model.network.groups)
            if not self._fails():
                return
            if not is_alone:
                self._model.reload()

    def _fails(self) -> bool:
        """Work until an error, or until it is time to stop. Raises errors that cannot be recovered from."""
        tickets: list[Ticket] = []
        try:
            while True:
                tickets = self._next() if self._model.is_first else []
                if not self._write(tickets):
                    return False
                self._give_back(sum(ticket.size for ticket in tickets))
        except Exception as error:
            traceback.print_exc()
            refusal = _refusal(error)
            for ticket in tickets:
                ticket.put(refusal)
            self._give_back(sum(ticket.size for ticket in tickets))
            # After an error of the GPU, which has a class of its own in newer torch only, nothing works any more.
            if "CUDA error" in str(error):
                raise
        return True

    def _write(self, tickets: Sequence[Ticket]) -> bool:
        """Generate a batch, on every rank; False if there are no more."""
        batch = [
            replace(request, number=number)
            for number, request in enumerate(request for ticket in tickets for request in ticket.requests)
        ]
        batch = self._model.from_first(batch if tickets else None)
        if batch is None:
            return False
        owners = [(ticket, request.number) for ticket in tickets for request in ticket.requests]
        for piece in self._model.write(batch):
            if self._model.network.groups.aborted.is_set():
                raise RuntimeError("another process has failed on this batch")
            if owners:
                ticket, number = owners[piece.number]
                ticket.put(replace(piece, number=number))
        return True

    def _next(self) -> list[Ticket]:
        """Calls that fit into a batch together, in the order in which they came; empty when it is time to stop."""
        tickets: list[Ticket] = []
        room = self._max_batch
        while not self._stopping.is_set():
            try:
                ticket = self._left or self._waiting.get(timeout=_GATHERING_SECONDS if tickets else _LOOK_SECONDS)
            except queue.Empty:
                if tickets:
                    return tickets
                continue
            self._left = None
            if ticket.size > room:
                self._left = ticket
                return tickets
            tickets.append(ticket)
            room -= ticket.size
        return []


def _refusal(error: Exception) -> RequestError:
    """The response to the callers whose batch failed."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or _NO_MEMORY in str(error):
        return RequestError(503, f"there is not enough memory for these texts together: {error}")
    return RequestError(500, FAILED)
