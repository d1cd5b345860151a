"""What a person sees on a terminal while a run goes on. Only commands import this: rich takes as long to import as all
that a run is started with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from orchestrator.launch.local.launcher import Severity, Watcher
from orchestrator.launch.watch import Follower, LineWatcher
from orchestrator.quantities import clock_time
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.measurements.metrics import Metric

_BAR, _WIDE = 20, 100
"""Columns of the progress bar, and of a terminal that has room for it; in others it has half of them."""
_COLOURS: dict[Severity, str] = {"warning": "yellow", "error": "red"}


class _Remaining(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(_left(task.fields.get("eta")), style="cyan")


def _left(eta: float | None) -> str:
    return "" if eta is None else f"{clock_time(eta)} left"


def _fitting(parts: Sequence[str], room: int) -> str:
    """As many of the parts, the most important first, as have room beside each other."""
    shown = ""
    for part in parts:
        longer = f"{shown}  {part}" if shown else part
        if len(longer) > room:
            break
        shown = longer
    return shown


class TerminalWatcher(Follower):
    """One live progress line on a terminal; what happened scrolls by above it."""

    def __init__(self, run: RunDir, total: int, console: Console) -> None:
        super().__init__(run, total)
        self._console = console
        bar = _BAR if console.width >= _WIDE else _BAR // 2
        self._beside = len(f"training   {total}/{total}  ") + bar
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=bar),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn("{task.fields[shown]}"),
            _Remaining(),
            console=console,
            refresh_per_second=4,
        )
        self._task = self._progress.add_task("starting", total=total, shown="", eta=None)

    def poll(self) -> None:
        self._progress.start()  # no sooner: a start that is refused leaves the terminal as it was
        super().poll()

    def say(self, message: str, severity: Severity | None = None) -> None:
        style = "" if severity is None else _COLOURS[severity]
        # The terminal wraps what is too wide for it, so that a command can be copied from there as the one line it is.
        self._progress.console.print(Text(message, style=style), soft_wrap=True)

    def start(self) -> None:
        self._progress.update(self._task, description="training", completed=self.snapshot.iteration)

    def show(self, metric: Metric) -> None:
        snapshot = self.snapshot
        room = self._console.width - self._beside - len(_left(snapshot.eta))
        self._progress.update(
            self._task,
            completed=snapshot.iteration,
            # What does not fit would be cut everywhere, the iteration and the time left too.
            shown=_fitting(snapshot.parts(with_validation=True), room),
            eta=snapshot.eta,
        )

    def close(self) -> None:
        self._progress.stop()


def watcher_for(run: RunDir, total: int, out: TextIO) -> Watcher:
    """The display that suits where the output goes.

    rich takes a pipe for a terminal under FORCE_COLOR, and ends the process when it breaks: a pipe gets lines.
    """
    console = Console(file=out)
    is_terminal = console.is_terminal and out.isatty()
    return TerminalWatcher(run, total, console) if is_terminal else LineWatcher(run, total, out)
