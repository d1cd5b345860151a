"""Ctrl-C while something is started that would go on by itself: it is heard when there is something to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Between `hold` and `let_through` the first Ctrl-C is kept, and raised by `let_through`; a second one is raised at
    once. `said`: what tells the person that it was heard.
    """

    def __init__(self, said: Callable[[], None]) -> None:
        self._said = said
        self._previous: Any = None
        self._is_holding = False
        self._came = False

    def __enter__(self) -> Interrupts:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._restore()

    def hold(self) -> None:
        """From now on a Ctrl-C waits. Where it is ignored, as for what a script has started with `&`, it stays so."""
        if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
            return
        self._previous = signal.signal(signal.SIGINT, self._note)
        self._is_holding = True

    def let_through(self) -> None:
        """From now on it comes at once. Raises KeyboardInterrupt when one has waited."""
        self._restore()
        if self._came:
            self._came = False
            raise KeyboardInterrupt

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._came:
            raise KeyboardInterrupt
        self._came = True
        self._said()

    def _restore(self) -> None:
        if self._is_holding:
            self._is_holding = False
            signal.signal(signal.SIGINT, self._previous)
