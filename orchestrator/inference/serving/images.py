"""Images that are sent: decoded a few at a time, however many are waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from orchestrator.data.input.images import Pixels, pixels
from orchestrator.errors import UserError
from orchestrator.spec.vision import VisionSpec

_MOST_PIXELS = 40_000_000
"""Of an image; decoded it takes 0.1 to 0.3 GB for a moment, however little is sent."""
_THREADS = ThreadPoolExecutor(2, "images")
"""Not asyncio's own, which are more, and have other work."""


async def decoded(images: Sequence[bytes], vision: VisionSpec, longest: int) -> list[Pixels]:
    """The pixels of the images of a prompt, as `pixels` makes them of what is in a file. Raises UserError, also
    where they take more than `longest` tokens: then no further image is decoded.
    """
    return await asyncio.get_running_loop().run_in_executor(_THREADS, _decode, images, vision, longest)


def _decode(images: Sequence[bytes], vision: VisionSpec, longest: int) -> list[Pixels]:
    found: list[Pixels] = []
    tokens = 0
    for image in images:
        found.append(pixels(image, vision, _MOST_PIXELS))
        tokens += vision.tokens_of(*found[-1].shape[1:])
        if tokens > longest:
            raise UserError(
                f"{len(found)} images take {tokens} tokens; a prompt has at most {longest}",
                code="images_do_not_fit_prompt",
            )
    return found
