"""What is recorded of a job: its plan for the CPU and for a named GPU, the scripts that start it, what ten steps on the
CPU measure, and what they save. What differs from one machine to the next is replaced or left out.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from support.faults import Ranks
from support.mamba_stub import INSTALL
from support.training import make_run

from baseline.jobs import RecordedJob
from orchestrator.cli.main import main
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir, read_lines
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job

RECORDED = Path(__file__).parent / "recorded"
GPU = "h100"
NEAR = {"fp32": 1e-6, "bf16": 1e-3}
"""How far losses may be from those of another machine, relatively, and gradient norms ten times as far. With AVX2
in place of AVX-512, losses in fp32 were up to 1.1e-7 away and those in bf16 5e-5, norms 1.8e-7 and 2e-3.
(Not so RACE's: rounding decides what becomes of a bias without a gradient.)
"""
_DISK = SimpleNamespace(total=1000 * 10**9, used=900 * 10**9, free=100 * 10**9)
"""What every plan finds: checkpoints of some jobs do not fit."""
_OF_THE_MACHINE = ("seconds", "tokens_per_second", "tflops", "mfu", "memory")
"""Parts of the names of metrics."""
_WIDTH = 120


def plans_and_scripts(job: RecordedJob, folder: Path) -> dict[str, Any]:
    """What the commands answer, by name; `folder` has its spec and data (`write_folder`)."""
    cpu = [word for override in job.overrides for word in ("--set", override)]
    cluster = ["--cluster", job.cluster, *(word for values in job.array for word in ("--array", values))]
    asked = {
        "plan-cpu": ["plan", job.file, *cpu, "--json"],
        f"plan-{GPU}": ["plan", job.file, "--gpu", GPU, "--json"],
        "torchrun": ["render", job.file],
        "slurm": ["submit", job.file, *cluster, "--dry-run"],
        "megatron-lm": ["render", job.file, "--as", "megatron-lm"],
    }
    if not job.trains or "runtime.device" not in job.on_cpu:
        del asked["plan-cpu"]
    with contextlib.chdir(folder), patch.object(shutil, "disk_usage", return_value=_DISK):
        return {name: answer(words, folder) for name, words in asked.items()}


def answer(words: Sequence[str], folder: Path) -> dict[str, Any]:
    """What a command says and returns."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found: dict[str, Any] = {"code": main(words)}
    for name, stream in (("out", out), ("err", err)):
        text = stream.getvalue().replace(str(folder), "FOLDER").replace(sys.executable, "PYTHON")
        if text:
            found[name] = json.loads(text) if name == "out" and "--json" in words else text.splitlines()
    return found


def training(job: RecordedJob, ranks: Ranks, folder: Path) -> dict[str, Any]:
    """What its ten steps measured and saved."""
    spec = spec_of(job, folder)
    run = ranks.must_train(make_run(folder / "trained", spec), spec, inject=before(job, folder))
    return found_in(run)


def spec_of(job: RecordedJob, folder: Path) -> JobSpec:
    """As it is trained on the CPU."""
    return load_job([folder / job.file], job.overrides).job


def before(job: RecordedJob, folder: Path) -> Path:
    """A file of what its ranks execute first."""
    stub = INSTALL if job.family == "hybrid" else ""
    path = folder / ("before-hybrid.py" if stub else "before.py")
    path.write_text(f"import os\nos.chdir({str(folder)!r})\n{stub}")
    return path


def found_in(run: RunDir) -> dict[str, Any]:
    """What is recorded of a training."""
    return {"steps": measured(run), "saved": saved(run)}


def measured(run: RunDir, after: int = 0) -> dict[str, dict[str, float]]:
    """The metrics of a run that are not about speed and memory, by name and iteration: those after an iteration."""
    found: dict[str, dict[str, float]] = {}
    for record in read_lines(run.metrics_file):
        if record["iteration"] > after:
            for key, value in record["values"].items():
                if not any(word in key for word in _OF_THE_MACHINE):
                    found.setdefault(key, {})[str(record["iteration"])] = value
    return dict(sorted(found.items()))


def saved(run: RunDir) -> dict[str, Any]:
    """Shapes by name of the tensors in the last checkpoint of a run."""
    from orchestrator.conversion.tensors.stored_weights import (
        StoredWeights,  # torch, which plans and scripts need not wait for
    )

    stored = StoredWeights(committed(run)[-1].path)
    return {key: [*stored.shape(key)] for key in sorted(stored.keys())}


def to_text(document: Any, indent: str = "") -> str:
    """JSON in which what fits stands in one line: short, and good to read as a difference."""
    line = json.dumps(document, ensure_ascii=False)
    if len(indent) + len(line) <= _WIDTH or isinstance(document, str) or not isinstance(document, Mapping | Sequence):
        return line
    deeper = indent + " "
    if isinstance(document, Mapping):
        rows = [f"{deeper}{json.dumps(key)}: {to_text(each, deeper)}" for key, each in document.items()]
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    return "[\n" + ",\n".join(f"{deeper}{to_text(each, deeper)}" for each in document) + f"\n{indent}]"


def recorded(path: Path) -> dict[str, Any]:
    """What a file says that was recorded of a job."""
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def assert_near(
    found: Mapping[str, Mapping[str, float]], before: Mapping[str, Mapping[str, float]], dtype: str = "fp32"
) -> None:
    """The same metrics at the same iterations, but for what another machine's products of matrices round."""
    assert found.keys() == before.keys()
    for key, values in before.items():
        assert found[key] == pytest.approx(values, rel=NEAR[dtype] * (10 if "norm" in key else 1), abs=1e-9), key
