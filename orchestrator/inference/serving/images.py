"""Images that are sent: decoded a few at a time, however many are waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from orchestrator.data.input.images import Pixels, pixels
from orchestrator.spec.vision import VisionSpec

_MOST_PIXELS = 40_000_000
"""Of an image; decoded it takes 0.1 to 0.3 GB for a moment, however little is sent."""
_THREADS = ThreadPoolExecutor(2, "images")
"""Not asyncio's own, which are more, and have other work."""


async def decoded(images: Sequence[bytes], vision: VisionSpec) -> list[Pixels]:
    """The pixels of the images of a call, as `pixels` makes them of what is in a file. Raises UserError."""
    decode = asyncio.get_running_loop().run_in_executor
    return await decode(_THREADS, lambda: [pixels(image, vision, _MOST_PIXELS) for image in images])
