"""The trials of a search that draws them: each is written down before its run directory is made."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from orchestrator.launch.code.code_version import code_state
from orchestrator.launch.runs import create_run, next_run_dir
from orchestrator.run_directory.events.ledger import TrialDrawn
from orchestrator.run_directory.rundir import RunDir
from orchestrator.sweeps.cells import Cell, PrunedCell
from orchestrator.sweeps.ledger import SweepDir
from orchestrator.sweeps.loading import LoadedSweep
from orchestrator.sweeps.plans import join, run_of
from orchestrator.sweeps.search.bayesian import Seen, draw
from orchestrator.sweeps.search.halving import Trial
from orchestrator.sweeps.search.history import History


@dataclass
class Drawing:
    """Draws trials. `loaded`: the sweep as written."""

    sweep: SweepDir
    loaded: LoadedSweep

    def draw(self, history: History) -> None:
        """Draw one more trial. One that cannot run counts as the worst, so that others are drawn elsewhere."""
        random, number = self.loaded.spec.random, len(history.draws)
        assert random is not None
        seen = [_seen(each, history) for each in history.draws]
        draws = draw(random, history.rules.goal, seen, number)
        cell = self.loaded.cell_at(draws)
        if cell is None:
            self._refuse(number, draws, f"draw {number + 1}", {}, "it does not meet sweep.when")
        elif isinstance(cell, PrunedCell):
            self._refuse(number, draws, cell.name, cell.values, cell.reason)
        elif cell.id in history.trials:
            self._refuse(number, draws, cell.name, cell.values, "it is the same job as an earlier cell")
        else:
            found = run_of(cell.job, self.sweep.runs_dir)
            run = found or next_run_dir(cell.job, self.sweep.runs_dir)
            place = str(run.path.relative_to(self.sweep.runs_dir))
            row = {"id": cell.id, "name": cell.name, "values": cell.values, "run": place}
            self.sweep.append(TrialDrawn(number=number, draws=draws, cell=row))
            self._make(cell, run, is_new=found is None)

    def make_run(self, history: History, trial: Trial, run: RunDir) -> None:
        """Make the run directory of a trial, where the program that drew it was killed before that."""
        if run.path.exists():
            return
        for each in history.draws:
            if each.cell is not None and each.cell.get("id") == trial.cell:
                cell = self.loaded.cell_at(_draws(each))
                assert isinstance(cell, Cell), "it was one when it was drawn"
                self._make(cell, run, is_new=True)

    def _make(self, cell: Cell, run: RunDir, *, is_new: bool) -> None:
        if is_new:
            code = code_state(Path.cwd(), apart_from=self.sweep.runs_dir, scratch=self.sweep.path)
            made = create_run(cell.job, cell.loaded.text, self.sweep.runs_dir, code)
            assert made == run, "nobody else makes runs of this very job meanwhile"
        join(run, self.sweep, cell, is_new=is_new)

    def _refuse(self, number: int, draws: dict[str, float], name: str, values: dict[str, str], reason: str) -> None:
        refused = {"name": name, "values": values, "reason": reason}
        self.sweep.append(TrialDrawn(number=number, draws=draws, refused=refused))


def _draws(event: TrialDrawn) -> dict[str, float]:
    return {str(name): value for name, value in (event.draws or {}).items()}


def _seen(event: TrialDrawn, history: History) -> Seen:
    trial = history.trials.get(str((event.cell or {}).get("id")))
    if trial is None or trial.has_failed:
        return Seen(_draws(event), "worst")
    value = trial.results.get(history.rules.rungs - 1)
    return Seen(_draws(event), "open" if value is None else "done", value)
