"""`submit` as far as it goes without a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

JOB = """\
name: tiny
model: {num_layers: 2, hidden_size: 64, num_attention_heads: 4, seq_length: 64, vocab_size: 256}
batch: {micro_batch_size: 2, global_batch_size: 4}
data: {random_tokens: true}
optimizer: {lr: 1.0e-3}
schedule: {train_iters: 20}
precision: {dtype: fp32}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.yaml").write_text(JOB)
    return tmp_path


@pytest.fixture
def cluster(project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters" / "lab.yaml").write_text("name: lab\ntime: 1h\n")


def test_without_a_profile(orchestrator: Any, project: Path) -> None:
    finished = orchestrator("submit", "job.yaml")
    assert finished.code == 2
    assert "orchestrator cluster init" in finished.err
    assert not (project / "runs").exists()


@pytest.mark.usefixtures("cluster")
def test_the_only_profile_needs_no_name(orchestrator: Any, project: Path) -> None:
    finished = orchestrator("submit", "job.yaml", "--dry-run")
    assert finished.code == 0
    assert "#SBATCH --time=0-01:00:00\n" in finished.out
    assert not (project / "runs").exists()


@pytest.mark.usefixtures("cluster")
def test_which_of_two_profiles(orchestrator: Any, project: Path) -> None:
    (project / "clusters" / "ice.yaml").write_text("name: ice\n")
    finished = orchestrator("submit", "job.yaml", "--dry-run")
    assert finished.code == 2
    assert "which cluster? Name it with --cluster or launch.cluster: ice, lab" in finished.err
    assert orchestrator("submit", "job.yaml", "--cluster", "ice", "--dry-run").code == 0


@pytest.mark.usefixtures("cluster")
def test_after_a_run_that_will_not_complete(orchestrator: Any) -> None:
    finished = orchestrator("submit", "job.yaml", "--after", "nothing")
    assert finished.code == 2
    assert "there is no run nothing" in finished.err


@pytest.mark.usefixtures("cluster")
def test_an_array_is_a_sweep_over_its_values(orchestrator: Any, project: Path) -> None:
    arrays = ("--array", "runtime.seed=1,2,3", "--array", "optimizer.lr=1e-3,3e-4")
    finished = orchestrator("submit", "job.yaml", *arrays, "--dry-run")
    assert finished.code == 0
    assert "#SBATCH --array=0-5" in finished.out
    assert "sweep tiny: 6 cells" in finished.out + finished.err
    assert not (project / "runs").exists()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--array", "x"], "--array x: write FIELD=VALUE,VALUE,…"),
        (["--array", "runtime.seed="], "--array runtime.seed=: write FIELD=VALUE,VALUE,…"),
        (["--array", "runtime.sed=1,2"], "--array:3:5: runtime.sed: there is no such field in a job spec"),
        (["--array", "runtime.seed=1,["], "--array:3:19: not YAML"),
        (["--array", "runtime.seed=1,2", "--strict"], "--array starts a sweep, which does not support --from-scratch"),
        (["--array", "runtime.seed=1,2", "--strict"], "--after or --strict"),
    ],
)
def test_wrong_arrays(orchestrator: Any, arguments: list[str], message: str) -> None:
    finished = orchestrator("submit", "job.yaml", *arguments)
    assert finished.code == 2
    assert message in finished.err
    assert "Traceback" not in finished.err


@pytest.mark.usefixtures("cluster")
def test_an_array_of_what_is_a_sweep_already(orchestrator: Any, project: Path) -> None:
    (project / "job.yaml").write_text(JOB + "sweep: {grid: {runtime.seed: [1, 2]}}\n")
    finished = orchestrator("submit", "job.yaml", "--array", "optimizer.lr=1e-3,3e-4")
    assert finished.code == 2
    assert "this file has a `sweep:` section already" in finished.err


LARGE = ("model.num_layers=48", "model.hidden_size=8192", "model.seq_length=2048", "precision.dtype=bf16")


def test_what_does_not_fit_its_gpus_is_refused(orchestrator: Any, project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters" / "old.yaml").write_text("name: old\ntime: 1h\ngpu: V100-16GB\n")
    large = [word for value in LARGE for word in ("--set", value)]
    for dry in ((), ("--dry-run",)):
        finished = orchestrator("submit", "job.yaml", *large, *dry)
        assert (finished.code, finished.out) == (2, "")
        assert "memory does not fit" in finished.err
        assert "of one V100-16GB" in finished.err
    assert not (project / "runs").exists()
    refused = orchestrator("submit", "job.yaml", "--dry-run", "--strict", "--set", "launch.runs_dir=/proc/none")
    assert refused.code == 2
    assert "/proc has 0 kB free" in refused.err


def test_cells_that_do_not_fit_are_left_out(orchestrator: Any, project: Path) -> None:
    (project / "clusters").mkdir()
    (project / "clusters" / "old.yaml").write_text("name: old\ntime: 1h\ngpu: V100-16GB\n")
    finished = orchestrator("submit", "job.yaml", "--array", "model.num_layers=2,30000", "--dry-run", "--json")
    assert finished.code == 0, finished.err
    assert len(finished.json["cells"]) == 1
    [pruned] = finished.json["pruned"]
    assert "memory does not fit" in pruned["reason"]
