"""Images that are sent to a server: how many are decoded at a time, and who has to come again."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.refused import refused

from orchestrator.errors import UserError
from orchestrator.inference.images import Images
from orchestrator.inference.requests import Request
from orchestrator.inference.serving import images
from orchestrator.inference.serving.app import requests_of
from orchestrator.inference.serving.engine import Engine
from orchestrator.inference.serving.protocol import RequestError
from orchestrator.spec.generation import Generation
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.vision import VisionSpec

EYES = VisionSpec(image_size=8, patch_size=4)


class Decoder:
    """In place of Pillow: it takes as long as it is held, and counts those that it works on at a time."""

    def __init__(self) -> None:
        self.goes_on, self.at_work, self.most, self.calls = threading.Event(), 0, 0, 0
        self._lock = threading.Lock()

    def __call__(self, source: bytes, vision: VisionSpec, most: float) -> Any:
        with self._lock:
            self.at_work += 1
            self.calls += 1
            self.most = max(self.most, self.at_work)
        self.goes_on.wait(60)
        with self._lock:
            self.at_work -= 1
        if source == b"bad":
            raise UserError("the image cannot be read", code="unreadable_image")
        return np.full((3, vision.image_size, vision.image_size), source[0], dtype=np.uint8)


@pytest.fixture
def decoder(monkeypatch: pytest.MonkeyPatch) -> Decoder:
    found = Decoder()
    monkeypatch.setattr(images, "pixels", found)
    return found


class Model:
    """One that sees, and makes of an image a request with its pixels."""

    is_first = True
    job = SimpleNamespace(
        model=ModelSpec(num_layers=1, hidden_size=8, num_attention_heads=1, seq_length=32, vision=EYES)
    )

    def requests(self, prompts: Any, options: Generation, given: Any) -> list[Request]:
        return [Request(0, [1], options, Images(tuple(given[0]), (0,), 4))]


def served(max_waiting: int, longest: int = 32) -> Any:
    model: Any = Model()
    return SimpleNamespace(model=model, engine=Engine(model, max_batch=4, max_waiting=max_waiting), longest=longest)


async def call(server: Any, *sent: bytes, choices: int = 1) -> list[Request]:
    return await requests_of(server, 1, lambda: ["<image>"], [Generation()] * choices, [sent])


async def until(decoder: Decoder, at_work: int) -> None:
    deadline = time.monotonic() + 60
    while decoder.at_work < at_work and time.monotonic() < deadline:
        await asyncio.sleep(0.01)
    assert decoder.at_work == at_work


def test_two_are_decoded_at_a_time(decoder: Decoder) -> None:
    async def all_of() -> list[list[Request]]:
        server = served(max_waiting=20)
        calls = [asyncio.create_task(call(server, bytes([number]), bytes([9]))) for number in range(8)]
        await until(decoder, 2)
        await asyncio.sleep(0.2)
        decoder.goes_on.set()
        return await asyncio.gather(*calls)

    found = asyncio.run(all_of())
    assert decoder.most == 2
    seen = [request.images.pixels for [request] in found if request.images is not None]
    assert [[image.max() for image in own] for own in seen] == [[number, 9] for number in range(8)]


def test_who_has_images_decoded_waits_like_others(decoder: Decoder) -> None:
    async def all_of() -> None:
        server = served(max_waiting=3)
        calls = [asyncio.create_task(call(server, sent, choices=choices)) for sent, choices in ((b"1", 2), (b"bad", 1))]
        await until(decoder, 2)
        with pytest.raises(RequestError, match="3 texts are already waiting; try again later") as caught:
            await call(server, b"2")
        assert caught.value.status == 429
        decoder.goes_on.set()
        await calls[0]
        with refused("unreadable_image"):
            await calls[1]
        assert len(await call(server, b"2", choices=3)) == 3, "whatever became of the others"

    asyncio.run(all_of())
    assert decoder.most == 2


def test_no_image_is_decoded_behind_the_end_of_a_prompt(decoder: Decoder) -> None:
    decoder.goes_on.set()
    with refused("images_do_not_fit_prompt", "3 images take 12 tokens", "at most 8"):
        asyncio.run(call(served(max_waiting=20, longest=8), *[b"1"] * 5))
    assert decoder.calls == 3


def test_a_call_that_is_too_large_is_not_decoded(decoder: Decoder) -> None:
    with pytest.raises(RequestError, match="5 texts or beams"):
        asyncio.run(call(served(max_waiting=20), b"1", choices=5))
    assert decoder.most == 0
