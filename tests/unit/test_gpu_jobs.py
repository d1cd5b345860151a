"""What the tests on GPUs train is legal and can be planned: found out here, where every change is tested."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
from support.configurations import CONFIGURATIONS

from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.plan import make_plan
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec

FILES = sorted((Path(__file__).parents[1] / "gpu").glob("test_*.py"))
BY_OTHER_MEANS = {
    "test_predicted_memory.py",
    "test_predicted_time.py",
    "test_tuner.py",
    "test_cross_entropy.py",
    "test_adam.py",
    "test_gelu.py",
    "test_gated_linear_unit.py",
    "test_norms.py",
    "test_residual.py",
    "test_rotation.py",
    "test_grouped_products.py",
    "test_scaled_dot_product.py",
}
"""They train the table of configurations, and what the tuner finds, or nothing."""
H200 = device_named("NVIDIA H200")


def imported(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{file.stem}_read", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def can_be_trained(job: JobSpec) -> None:
    layers = "torch" if job.model.lora is not None or job.runtime.layers == "torch" else "transformer_engine"
    plan = make_plan(job)
    padded = plan.vocabulary.padded_size
    assert job.world_size <= 4
    assert max(stage.device_bytes for stage in estimate_memory(job, padded, layers).stages) < H200.memory_bytes
    assert estimate_time(job, padded, layers, H200).step_seconds < 30


@pytest.mark.parametrize(
    "file", [file for file in FILES if file.name not in BY_OTHER_MEANS], ids=lambda file: file.stem
)
def test_jobs_of_a_file(file: Path) -> None:
    jobs = imported(file).jobs("text")
    assert jobs
    for job in jobs:
        can_be_trained(job)


def test_configurations() -> None:
    for configuration in CONFIGURATIONS:
        can_be_trained(configuration.job)
