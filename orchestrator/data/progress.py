"""Progress of a data program: a bar on a terminal, plain lines elsewhere, both on standard error."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from orchestrator.data.indexed_dataset.output import Progress

_SECONDS_BETWEEN_LINES = 10.0


class Display:
    """Shows how a tokenization comes along. A context manager."""

    def __init__(self) -> None:
        self._bar: Bar | None = None
        if sys.stderr.isatty():
            columns = (TextColumn("tokenizing"), BarColumn(), TextColumn("{task.fields[rates]}"), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True))
        self._total = 0
        self._started = self._last_line = time.monotonic()
        self._text_before = self._tokens_before = 0

    def __enter__(self) -> Display:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar:
            self._bar.stop()

    def begin(self, total: int, progress: Progress) -> None:
        """Start measuring: `total` bytes are to be read in all, some of which an earlier run may have done."""
        self._total = total
        self._started = self._last_line = time.monotonic()
        self._text_before, self._tokens_before = progress.text_bytes, _tokens(progress)
        if progress.disk_bytes:
            done = f"{progress.disk_bytes / 1e6:.1f} of {total / 1e6:.1f} MB"
            print(f"continuing from the last finished shard: {done} were done before", file=sys.stderr, flush=True)
        if self._bar:
            self._bar.add_task("tokenizing", total=max(total, 1), completed=progress.disk_bytes, rates="")

    def warn(self, text: str) -> None:
        """Say what a person should know, above the bar."""
        if self._bar:
            self._bar.console.print(f"warning: {text}", markup=False, highlight=False, soft_wrap=True)
        else:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    def update(self, progress: Progress) -> None:
        """Show the state after a chunk."""
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=progress.disk_bytes, rates=self._rates(progress))
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = time.monotonic()
            done = f"{progress.disk_bytes / 1e6:.1f} of {self._total / 1e6:.1f} MB"
            print(f"tokenizing: {done}, {self._rates(progress)}", file=sys.stderr, flush=True)

    def end(self, progress: Progress) -> None:
        """Show the totals."""
        seconds = time.monotonic() - self._started
        text = f"tokenized {_tokens(progress)} tokens in {seconds:.1f} s, {self._rates(progress)}"
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=self._total, rates=self._rates(progress))
        else:
            print(text, file=sys.stderr, flush=True)

    def _rates(self, progress: Progress) -> str:
        seconds = max(time.monotonic() - self._started, 1e-9)
        text = (progress.text_bytes - self._text_before) / seconds
        tokens = (_tokens(progress) - self._tokens_before) / seconds
        return f"{text / 1e6:.1f} MB/s, {tokens / 1e3:.0f}k tokens/s"


def _tokens(progress: Progress) -> int:
    counts = progress.keys[0].counted > 0  # of conversations: what is stored beside their tokens is their mask
    return sum(key.tokens for key in (progress.keys[:1] if counts else progress.keys))
