"""What the tuner shows: the best layouts, those that nothing beats, and why the rest lost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import typer
from rich.console import Console, ConsoleDimensions
from rich.table import Table

from orchestrator.api.plan_rows import WAITING
from orchestrator.fields.formatting import shorten
from orchestrator.planning.hardware import DeviceChoice, computing_unit
from orchestrator.planning.memory import capacity
from orchestrator.quantities import amount, memory_size
from orchestrator.spec.job import JobSpec
from orchestrator.tuning.candidate_trials import RankedCandidate
from orchestrator.tuning.estimates import Candidate, PlanEstimates
from orchestrator.tuning.layout import Layout, settings_of
from orchestrator.tuning.layout_words import layout_words, out_of_the_ordinary
from orchestrator.tuning.search import SearchResult
from orchestrator.tuning.trial import Trial

_OWN = "this job"
_LEANER = 0.1


@dataclass(frozen=True)
class Report:
    """What came of tuning a job."""

    job: JobSpec
    """On its machines, with the layout that it has."""
    choice: DeviceChoice
    layers_from: str
    """Why these layers are planned for."""
    estimates: PlanEstimates
    found: SearchResult
    ranking: tuple[RankedCandidate, ...]
    front: tuple[RankedCandidate, ...]
    """What nothing beats in both speed and memory, forms with more recomputation among them; the fastest first."""
    trials: dict[Layout, Trial]
    enough: int | None
    """The number of GPUs on which a layout fits with room to spare, where none does on these; None where one does, or
    no such number was found."""

    @property
    def best(self) -> RankedCandidate:
        """The winner: the fastest, and where something was measured, the fastest of that."""
        return next((each for each in self.ranking if each.is_measured), self.ranking[0])

    def told(self) -> list[str]:
        """The winner in words, for the head of the overlay."""
        lines = [self._where(), f"Best: {layout_words(self.best.candidate.layout)}: {self._numbers(self.best)}."]
        own = next((each for each in self.ranking if each.candidate is self.found.own), None)
        if own is not None and own is not self.best:
            lines.append(f"The job's own layout: {layout_words(own.candidate.layout)}: {self._numbers(own)}.")
        elif own is None:
            lines.append(f"The job's own layout: {self._why_not_own()}.")
        else:
            lines.append("It is the job's own layout.")
        return lines

    def tried(self) -> str:
        """Each trial in a line."""
        return "\n".join(f"      {layout_words(layout)}: {trial.message}" for layout, trial in self.trials.items())

    def show(self, top: int) -> None:
        """Print everything."""
        # In a file there is no terminal width to keep to; names may hold brackets, so nothing is markup.
        console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
        tables = [self._table(title, rows) for title, rows in self._tables(top)]
        unbounded = console.options.update(width=1000)
        # A narrow terminal wraps lines; a figure that was cut off would be a wrong one.
        needed = max(console.measure(table, options=unbounded).maximum for table in tables)
        console.size = ConsoleDimensions(max(console.width, needed), console.height)
        typer.echo(self._where())
        typer.echo()
        for table in tables:
            console.print(table)
            console.print()
        if self.found.own not in [each.candidate for each in self.ranking]:
            typer.echo(f"{_OWN}: {self._why_not_own()}")
        if self.found.lost:
            typer.echo("why the rest lost")
            for reason, lost in self.found.lost.items():
                example = f"  e.g. {shorten(f'{layout_words(lost.example)}: {lost.why}', 110)}" if lost.example else ""
                typer.echo(f"  {lost.count:>6,}  {reason:<34}{example}".rstrip())
        tight = capacity(self.best.candidate.memory, self.choice.device) == "tight"
        if tight and not self.best.is_measured:
            typer.echo("note: the best layout needs nearly all of the GPU's memory; --measure shows whether it fits")
        if self.enough is not None:
            typer.echo(f"note: on {self.enough} GPUs a layout fits with room to spare: --gpus {self.enough}")
        if self.found.tight is not None:
            typer.echo(self._tight_words(self.found.tight))
        if not self.trials:
            self._show_slow_host(top)

    def _tight_words(self, candidate: Candidate) -> str:
        """What is left out as long as nobody measures it."""
        saved = 1 - candidate.step_seconds / self.best.step_seconds
        total = self.estimates.memory_bytes
        assert total is not None, "nothing is tight where nothing limits"
        return (
            f"note: {layout_words(candidate.layout)} would take {amount(candidate.step_seconds, 4)} s, {saved:.0%} "
            f"less, with {memory_size(candidate.device_bytes)} of {memory_size(total)}: --measure shows whether it fits"
        )

    def _show_slow_host(self, top: int) -> None:
        """What of the fastest a slow host makes, where it would hold up the best."""
        slow = [self.estimates.slow_host_seconds(each.candidate.job) for each in self.ranking[:top]]
        known = [seconds for seconds in slow if seconds is not None]
        if not known or known[0] < (1 + WAITING) * self.best.step_seconds:
            return
        fastest = known.index(min(known))
        instead = f", and of layout {fastest + 1} {amount(known[fastest], 4)} s" if fastest else ""
        typer.echo(
            "note: on a host half as fast as planned, which is common, a step of the best layout takes "
            f"{amount(known[0], 4)} s{instead}; orchestrator calibrate measures yours, and --measure tries layouts"
        )

    def to_json(self, top: int) -> dict[str, Any]:
        """For programs."""
        own = self.found.own
        return {
            "name": self.job.name,
            "gpus": self.job.world_size,
            "nodes": self.job.launch.nodes,
            "gpu": self.choice.device.name,
            "gpu_chosen_by": self.choice.how,
            "layers": {"name": self.estimates.layers, "from": self.layers_from},
            "memory_bytes": self.estimates.memory_bytes,
            "global_batch_size": self.job.global_batch_size,
            "best": self._ranked_json(self.best),
            "own": None if own is None else self._candidate_json(own),
            "tight": None if self.found.tight is None else self._candidate_json(self.found.tight),
            "own_problem": self.found.own_problem.message if self.found.own_problem else None,
            "top": [self._ranked_json(each) for each in self.ranking[:top]],
            "front": [self._ranked_json(each) for each in self.front],
            "lost": {
                reason: {
                    "count": lost.count,
                    "example": settings_of(lost.example) if lost.example else None,
                    "why": lost.why,
                }
                for reason, lost in self.found.lost.items()
            },
            "trials": [{"layout": settings_of(layout), **vars(trial)} for layout, trial in self.trials.items()],
            "fitting": len(self.found.fitting),
            "enough_gpus": self.enough,
        }

    def _tables(self, top: int) -> list[tuple[str, list[RankedCandidate]]]:
        shown = list(self.ranking[:top])
        shown += [each for each in self.ranking[top:] if each.candidate is self.found.own or each.trial is not None]
        count = len(self.found.fitting)
        tables = [(f"The fastest of {count:,} layouts that fit" if count > 1 else "The only layout that fits", shown)]
        if len(self.front) > 1:
            tables.append(("Speed against memory: no layout beats these in both", _thinned(self.front)))
        return tables

    def _table(self, title: str, rows: Sequence[RankedCandidate]) -> Table:
        table = Table(
            title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim"
        )
        columns = ["", "TP", "PP", "VP", "CP", "EP", "DP", "micro", "recompute", "also"]
        columns += ["predicted s", "corrected s", "measured s"] if self.trials else ["s/step"]
        columns += [
            f"tokens/s/{computing_unit(self.choice.device.name)}",
            "MFU" if self.job.precision.quantization is None else "of bf16 peak",
            "GiB",
            "",
        ]
        unused = {
            name for name in ("vp", "cp", "ep") if all(getattr(each.candidate.layout, name) == 1 for each in rows)
        }
        left_out = {name.upper() for name in unused}
        if not any(out_of_the_ordinary(each.candidate.layout) for each in rows):
            left_out.add("also")
        places = [number for number, name in enumerate(columns) if name not in left_out]
        for number in places:
            table.add_column(
                columns[number], justify="left" if columns[number] in ("recompute", "also", "") else "right"
            )
        rank = {each.candidate.layout: f"{number}." for number, each in enumerate(self.ranking, 1)}
        for each in rows:
            cells = self._cells(each, rank.get(each.candidate.layout, ""))
            table.add_row(*(cells[number] for number in places))
        return table

    def _cells(self, each: RankedCandidate, rank: str) -> list[str]:
        layout, candidate = each.candidate.layout, each.candidate
        dp = self.job.world_size // layout.model_parallel_size
        speed = candidate.step_seconds / each.step_seconds
        mfu = candidate.time.mfu
        mark = [_OWN] if candidate is self.found.own else []
        mark += ["tight"] if capacity(candidate.memory, self.choice.device) == "tight" else []
        return [
            rank,
            *(str(size) for size in (layout.tp, layout.pp, layout.vp, layout.cp, layout.ep, dp)),
            str(layout.micro_batch_size),
            layout.recompute.describe(),
            out_of_the_ordinary(layout),
            *self._times(each),
            f"{candidate.time.tokens_per_second_per_gpu * speed:,.0f}",
            f"{mfu * speed:.1%}" if mfu is not None else "-",
            f"{each.device_bytes / 2**30:.1f}",
            ", ".join(mark),
        ]

    def _times(self, each: RankedCandidate) -> list[str]:
        if not self.trials:
            return [amount(each.step_seconds, 4)]
        now = amount(each.step_seconds, 4)
        return [amount(each.candidate.step_seconds, 4), *(["", now] if each.is_measured else [now, ""])]

    def _where(self) -> str:
        machines = f" on {self.job.launch.nodes} machines" if self.job.launch.nodes > 1 else ""
        total = self.estimates.memory_bytes
        memory = f" of {memory_size(total)}" if total else ""
        return (
            f"{self.job.name} on {self.job.world_size} x {self.choice.device.name}{memory}{machines} "
            f"({self.choice.how}), layers {self.estimates.layers} ({self.layers_from}), "
            f"global batch {self.job.global_batch_size}, sequence {self.job.model.seq_length}"
        )

    def _numbers(self, each: RankedCandidate) -> str:
        candidate = each.candidate
        how = "measured" if each.is_measured else "predicted" if not self.trials else "predicted, corrected by trials"
        speed = candidate.step_seconds / each.step_seconds
        of_which = "" if self.job.precision.quantization is None else " of the bf16 peak"
        mfu = f", MFU {candidate.time.mfu * speed:.1%}{of_which}" if candidate.time.mfu is not None else ""
        tokens = candidate.time.tokens_per_second_per_gpu * speed
        return (
            f"{amount(each.step_seconds, 4)} s per step {how}, "
            f"{tokens:,.0f} tokens/s per {computing_unit(self.choice.device.name)}{mfu}, "
            f"{memory_size(each.device_bytes)}"
        )

    def _why_not_own(self) -> str:
        own, problem = self.found.own, self.found.own_problem
        if own is None:
            return f"not legal here: {problem.message}" if problem else "not legal here"
        trial = self.trials.get(own.layout)
        if trial is not None and trial.outcome != "measured":
            return f"{layout_words(own.layout)}: {trial.message}"
        needed = memory_size(own.device_bytes)
        if capacity(own.memory, self.choice.device) == "tight":
            return (
                f"{layout_words(own.layout)}: needs nearly all of the memory, {needed}; --measure shows whether it fits"
            )
        return f"{layout_words(own.layout)}: does not fit, needs {needed}"

    def _ranked_json(self, each: RankedCandidate) -> dict[str, Any]:
        return {
            **self._candidate_json(each.candidate),
            "measured": each.is_measured,
            "step_seconds": each.step_seconds,
            "predicted_step_seconds": each.candidate.step_seconds,
            "device_bytes": each.device_bytes,
        }

    def _candidate_json(self, candidate: Candidate) -> dict[str, Any]:
        step = candidate.time
        return {
            "layout": settings_of(candidate.layout),
            "data_parallel_size": self.job.world_size // candidate.layout.model_parallel_size,
            "fit": capacity(candidate.memory, self.choice.device),
            "step_seconds": step.step_seconds,
            "parts": dict(step.parts),
            "tokens_per_second_per_gpu": step.tokens_per_second_per_gpu,
            "tflops_per_gpu": step.tflops_per_gpu,
            "mfu": step.mfu,
            "peak_bytes": candidate.memory.peak_bytes,
            "device_bytes": candidate.device_bytes,
        }


def _thinned(front: Sequence[RankedCandidate]) -> list[RankedCandidate]:
    """The fastest, then each time the next that needs at least a tenth less; and the leanest."""
    kept = [front[0]]
    for each in front[1:]:
        if each.device_bytes <= (1 - _LEANER) * kept[-1].device_bytes or each is front[-1]:
            kept.append(each)
    return kept


def trial_line(trial: Trial, candidate: Candidate) -> str:
    """What came of a trial beside what was predicted."""
    if trial.outcome != "measured" or trial.step_seconds is None:
        return trial.message
    line = f"{amount(trial.step_seconds, 4)} s per step (predicted {amount(candidate.step_seconds, 4)})"
    if trial.peak_bytes:
        predicted = memory_size(candidate.memory.stages[0].peak_bytes)
        line += f", {memory_size(trial.peak_bytes)} on the first rank (predicted {predicted})"
    return line
