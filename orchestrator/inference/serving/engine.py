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
from orchestrator.inference.texts import Piece

_GATHERING_SECONDS = 0.005
"""Once a request is there, others that come with it are waited for so long."""
_LOOK_SECONDS = 0.2


@dataclass(eq=False)
class Ticket:
    """The requests of one HTTP call, and where their pieces go. A piece's number is that of the choice in the call."""

    requests: Sequence[Request]
    loop: asyncio.AbstractEventLoop
    pieces: asyncio.Queue[Piece | RequestError] = field(default_factory=asyncio.Queue)

    @property
    def size(self) -> int:
        """Rows of a batch that it takes."""
        return sum(request.options.num_beams for request in self.requests)

    def put(self, piece: Piece | RequestError) -> None:
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
            raise RequestError(400, f"{count} texts or beams are asked for at once; at most {self._max_batch} are made")
        with self._lock:
            if self._count + count > self._max_waiting:
                raise RequestError(429, f"{self._count} texts wait already; try again later")
            self._count += count

    def _give_back(self, count: int) -> None:
        with self._lock:
            self._count -= count

    def stop(self) -> None:
        """End `run` after the batch under way."""
        self._stopping.set()

    def run(self) -> None:
        """Until `stop` is called on rank 0. Every rank must call this."""
        while True:
            tickets = self._next() if self._model.is_first else []
            batch = [
                replace(request, number=number)
                for number, request in enumerate(request for ticket in tickets for request in ticket.requests)
            ]
            batch = self._model.from_first(batch if tickets else None)
            if batch is None:
                return
            owners = [(ticket, request.number) for ticket in tickets for request in ticket.requests]
            try:
                for piece in self._model.write(batch):
                    if owners:
                        ticket, number = owners[piece.number]
                        ticket.put(replace(piece, number=number))
            except torch.OutOfMemoryError as error:
                if self._model.network.ranks.world_size > 1:
                    raise  # the others wait for this one: they all end
                for ticket in tickets:
                    ticket.put(RequestError(503, f"the GPU's memory is too small for these texts together: {error}"))
            except Exception as error:
                # The others may not have raised, and wait for this one: they all end. After an error of the GPU, which
                # has a class of its own in newer torch only, nothing works any more.
                if self._model.network.ranks.world_size > 1 or "CUDA error" in str(error):
                    raise
                traceback.print_exc()
                for ticket in tickets:
                    ticket.put(RequestError(500, "the server made a mistake with this request; its log says which"))
            self._give_back(sum(ticket.size for ticket in tickets))

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
