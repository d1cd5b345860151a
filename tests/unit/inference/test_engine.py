"""The queue of a server: what is worked on together, and what is refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from orchestrator.inference.requests import Request
from orchestrator.inference.serving.engine import Engine, Ticket
from orchestrator.inference.serving.protocol import RequestError
from orchestrator.inference.texts import Continuation, TextDelta
from orchestrator.spec.generation import Generation


class Model:
    """Writes one token for each request of a batch, and keeps the sizes of batches. It fails at prompts of 13."""

    is_first = True

    def __init__(self, world_size: int = 1) -> None:
        self.batches: list[int] = []
        self.reloads = 0
        self.error: Exception = IndexError("tuple index out of range")
        self.network = SimpleNamespace(
            ranks=SimpleNamespace(world_size=world_size),
            device=SimpleNamespace(is_cuda=False),
            groups=SimpleNamespace(store=None, aborted=threading.Event()),
        )

    def from_first(self, value: Any) -> Any:
        return value

    def reload(self) -> None:
        self.reloads += 1

    def write(self, requests: Sequence[Request]) -> Iterator[TextDelta]:
        self.batches.append(len(requests))
        for request in requests:
            if request.tokens == [13]:
                raise self.error
            whole = Continuation(request.tokens, request.tokens, "", "end")
            yield TextDelta(request.number, "", None, 0.0, whole)


def requests(*prompts: int, beams: int = 1) -> list[Request]:
    return [Request(number, [prompt], Generation(num_beams=beams)) for number, prompt in enumerate(prompts)]


def refusal(model: Any, prompt: int) -> RequestError:
    """What the only request to an engine is refused with."""
    engine, loop = Engine(model, max_batch=1, max_waiting=1), asyncio.new_event_loop()
    ticket = Ticket(requests(prompt), loop)
    engine.submit(ticket)
    thread = threading.Thread(target=engine.run)
    thread.start()
    found = loop.run_until_complete(asyncio.wait_for(ticket.pieces.get(), 60))
    engine.stop()
    thread.join()
    loop.close()
    assert isinstance(found, RequestError)
    return found


def test_calls_are_put_together_up_to_the_size_of_a_batch() -> None:
    model: Any = Model()
    engine = Engine(model, max_batch=4, max_waiting=20)

    async def all_of() -> list[list[TextDelta | RequestError]]:
        loop = asyncio.get_running_loop()
        tickets = [Ticket(asked, loop) for asked in (requests(1, 2), requests(3), requests(4, 5), requests(6, beams=4))]
        for ticket in tickets:
            engine.submit(ticket)
        thread = threading.Thread(target=engine.run)
        thread.start()
        found = [[await ticket.pieces.get() for _ in ticket.requests] for ticket in tickets]
        engine.stop()
        thread.join()
        return found

    found = asyncio.run(all_of())
    assert model.batches == [3, 2, 1]
    written = [[(piece.number, piece.done.tokens) for piece in pieces] for pieces in found]  # type: ignore[union-attr]  # all are whole
    assert written == [[(0, [1]), (1, [2])], [(0, [3])], [(0, [4]), (1, [5])], [(0, [6])]]


def test_a_batch_that_fails_is_answered_and_the_next_one_is_written(capsys: pytest.CaptureFixture[str]) -> None:
    model: Any = Model()
    engine = Engine(model, max_batch=1, max_waiting=2)

    async def both() -> list[TextDelta | RequestError]:
        tickets = [Ticket(requests(prompt), asyncio.get_running_loop()) for prompt in (13, 5)]
        for ticket in tickets:
            engine.submit(ticket)
        thread = threading.Thread(target=engine.run)
        thread.start()
        found = [await asyncio.wait_for(ticket.pieces.get(), 60) for ticket in tickets]
        engine.stop()
        thread.join()
        return found

    failed, written = asyncio.run(both())
    assert isinstance(failed, RequestError)
    assert (failed.status, isinstance(written, TextDelta)) == (500, True)
    assert "IndexError: tuple index out of range" in capsys.readouterr().err


def test_ranks_load_the_model_again_after_an_error_of_one_and_go_on() -> None:
    model: Any = Model(world_size=2)
    engine, loop = Engine(model, max_batch=1, max_waiting=2), asyncio.new_event_loop()
    failed, written = Ticket(requests(13), loop), Ticket(requests(5), loop)
    engine.submit(failed)
    engine.submit(written)
    thread = threading.Thread(target=engine.run)
    thread.start()
    refusal = loop.run_until_complete(asyncio.wait_for(failed.pieces.get(), 60))
    piece = loop.run_until_complete(asyncio.wait_for(written.pieces.get(), 60))
    engine.stop()
    thread.join()
    loop.close()
    assert isinstance(refusal, RequestError)
    assert (refusal.status, isinstance(piece, TextDelta), model.reloads) == (500, True, 1)


def test_nothing_is_written_of_a_batch_that_another_rank_has_left() -> None:
    """What waits for it over NCCL gets numbers that mean nothing, and no error."""
    model: Any = Model(world_size=2)
    model.network.groups.aborted.set()
    found = refusal(model, 5)
    assert (found.status, model.reloads) == (500, 1)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), 503),
        (MemoryError(), 503),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"), 503),
        (KeyError("x" * 100_000), 500),
    ],
)
def test_what_an_error_is_answered_with(error: Exception, status: int) -> None:
    """Too little memory may be enough for fewer texts, or later."""
    model: Any = Model()
    model.error = error
    found = refusal(model, 13)
    assert found.status == status
    assert len(found.message) < 3000


def test_too_much_is_refused() -> None:
    model: Any = Model()
    engine, loop = Engine(model, max_batch=4, max_waiting=5), asyncio.new_event_loop()
    engine.submit(Ticket(requests(1, 2, 3), loop))
    with pytest.raises(RequestError, match="3 texts are already waiting") as caught:
        engine.submit(Ticket(requests(1, 2, 3), loop))
    assert caught.value.status == 429
    with engine.place(2), pytest.raises(RequestError, match="5 texts are already waiting"):
        engine.submit(Ticket(requests(1), loop))
    with pytest.raises(ZeroDivisionError), engine.place(2):
        _ = 1 / 0
    engine.submit(Ticket(requests(1, 2), loop))
    with pytest.raises(RequestError, match="5 texts are already waiting"), engine.place(1):
        pass
    with pytest.raises(RequestError, match="5 texts or beams") as caught:
        engine.submit(Ticket(requests(1, beams=5), loop))
    assert caught.value.status == 400
    loop.close()
