"""Where the time goes between the start of a rank and the end of its first step."""

from __future__ import annotations

import time


class StartClock:
    """Seconds by part, in the order in which they were spent: each lasts from the end of the one before."""

    def __init__(self, before: float = 0.0) -> None:
        """`before`: seconds that the first part has taken already."""
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic() - before

    def ends(self, part: str) -> None:
        """A part of the start is over."""
        now = time.monotonic()
        self.seconds[part] = now - self._last
        self._last = now
