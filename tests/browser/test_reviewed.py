"""The runs that the other tests show are what they are said to be."""

from __future__ import annotations

from browser.reviewed import FAILED_CELL, Reviewed
from support.training import events, losses

from orchestrator.launch.states.run_states import statuses_of
from orchestrator.sweeps.states import cell_statuses


def test_what_became_of_the_runs(reviewed: Reviewed) -> None:
    names = ("completed", "resumed", "diverged", "broken", "changed")
    runs = [reviewed.completed, reviewed.resumed, reviewed.diverged, reviewed.broken, reviewed.changed]
    found = {name: (status.state, status.cause) for name, status in zip(names, statuses_of(runs), strict=True)}
    assert found == {
        "completed": ("completed", "completed"),
        "resumed": ("completed", "completed"),
        "diverged": ("failed", "nan"),
        "broken": ("failed", "bug"),
        "changed": ("completed", "completed"),
    }
    assert [event["iteration"] for event in events(reviewed.resumed, "resumed")] == [20]
    assert events(reviewed.resumed, "exited")[0].get("iteration") != 20
    assert list(losses(reviewed.resumed)) == list(range(1, 41))
    assert len(reviewed.changed.resolved_generations()) == 2
    lines = sum(path.read_text().count("\n") for path in reviewed.broken.logs.iterdir())
    assert lines > 10_000


def test_what_became_of_the_sweep(reviewed: Reviewed) -> None:
    planned = reviewed.sweep.planned()
    states = {cell.entry.name: (cell.state, cell.status.cause) for cell in cell_statuses(reviewed.sweep, planned)}
    assert len(states) == 12
    assert states.pop(FAILED_CELL) == ("failed", "host_out_of_memory")
    assert set(states.values()) == {("completed", "completed")}
    assert len(planned.pruned) == 4
