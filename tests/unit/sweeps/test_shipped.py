"""Every shipped sweep is loaded, planned and rendered."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.conversion.exportability import export_warnings
from orchestrator.executors.slurm.batch_script import render_sbatch
from orchestrator.launch.code.snapshot import place_of
from orchestrator.launch.scripts.render import render
from orchestrator.planning.plan import make_plan
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.sweeps.loading import load_sweep
from tests.unit.sweeps.conftest import Run

SWEEPS = sorted((Path(__file__).parents[3] / "jobs" / "sweeps").glob("*.yaml"))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_shipped_sweep_is_legal(path: Path, tmp_path: Path) -> None:
    loaded = load_sweep([path])
    assert loaded.name == path.stem
    assert len(loaded.cells.cells) > 1
    assert loaded.cells.pruned == []
    cluster = ClusterSpec(name="any", time=3600)
    for cell in loaded.cells.cells:
        run = RunDir(tmp_path / cell.id)
        assert list(export_warnings(cell.job)) == []
        assert make_plan(cell.job).topology.world_size == cell.job.world_size
        assert str(run.path) in render(cell.job, run_dir=run.path, python="python")
        assert str(run.path) in render_sbatch(cell.job, cluster, place_of(run, cell.job, copy=False))


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_a_dry_run_needs_neither_data_nor_a_profile(path: Path, orchestrator: Run, folder: Path) -> None:
    code, out, err = orchestrator("sweep", "run", path, "--dry-run")
    assert code == 0
    assert f"sweep {path.stem}: " in out
    assert "without a cluster profile no script can be shown" in out
    assert all(line.startswith(("warning: ", " ")) for line in err.splitlines())
    assert list(folder.iterdir()) == [folder / "job.yaml"]


def test_there_are_shipped_sweeps() -> None:
    assert len(SWEEPS) >= 2
