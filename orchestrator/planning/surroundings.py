"""What a job asks of its surroundings that can be looked at from here, without importing anything of it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import PathFinder

from orchestrator.errors import Problem
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.kernels_needed import EXTRA, libraries_missing
from orchestrator.planning.plan import Plan
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.values import environment_references

_STEP = "runtime.train_step"


def train_step_is_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """No more than a doubt: the nodes may have what this machine has not."""
    if plan.job.runtime.train_step is None:
        return
    module = plan.job.runtime.train_step.partition(":")[0]
    if not _is_found(module, _search_path(plan.job)):
        message = f"there is no module {module}, looked for from here: in {os.getcwd()} and where Python looks"
        hint = "start from the folder that holds it, or name that in launch.env: {PYTHONPATH: FOLDER}"
        yield Problem(message, (_STEP,), hint)


def transformer_engine_is_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """What only Transformer Engine's layers can do ends a run at its start where `auto` finds none."""
    there = forecast.layers == "transformer_engine"
    if plan.job.precision.fp8 is not None:  # planned with these layers, wherever that is done
        there = importlib.util.find_spec("transformer_engine") is not None
    if plan.job.runtime.layers != "auto" or there:
        return
    why = "the device is a CPU" if forecast.device.is_cpu else "it is not installed here"
    asked = {
        "precision.fp8": plan.job.precision.fp8,
        "runtime.cpu_offloading_num_layers": plan.job.runtime.cpu_offloading_num_layers,
        "model.moe_grouped_gemm": plan.job.model.moe_grouped_gemm,
    }
    for path, value in asked.items():
        if value:
            message = f"needs Transformer Engine's layers, and {why}: with runtime.layers auto a run may have none"
            hint = "write runtime.layers: transformer_engine where the nodes have it; else leave it out"
            yield Problem(message, (path, "runtime.layers"), hint)


def kernels_are_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """No more than a doubt: the job may run with another Python, on other machines."""
    if missing := libraries_missing(plan.job):
        message = f"state space layers need {' and '.join(missing)}, which this Python lacks"
        hint = f"where the job runs: pip install --no-build-isolation '{EXTRA}' (it needs CUDA's compiler)"
        yield Problem(message, ("model.hybrid_override_pattern", "model.architecture"), hint)


def trackers_are_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """The training goes on without those that were asked for by name; where the job runs they may be there."""
    asked = plan.job.tracking.trackers
    for name in ("tensorboard", "wandb"):
        if name in asked and plan.job.launch.python is None and importlib.util.find_spec(name) is None:
            message = f"{name} is not installed here: without it where the job runs, nothing is sent to it"
            yield Problem(message, (f"tracking.{name}",), f"pip install 'megatron-orchestrator[{name}]'")


def nobody_can_be_told(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """A run that ends unheard is noticed late; what is missing here may be there where the job runs."""
    asked = plan.job.notifications
    if asked.command is not None and shutil.which(asked.command[0]) is None:
        message = f"{asked.command[0]} is no program that can be run from here"
        yield Problem(message, ("notifications.command",), "give its whole path, and make it executable (chmod +x)")
    references = environment_references(asked.webhook or "")
    if asked.webhook is not None and not references:
        message = "is written out: the run directory and every tracker will hold it"
        yield Problem(message, ("notifications.webhook",), "put it into a variable, and write ${env:NAME}")
    for name in references:
        if name not in os.environ:
            message = f"{name} is not set here: without it where the job runs, nobody is told"
            yield Problem(message, ("notifications.webhook",), f"export {name}=https://…")


def _search_path(job: JobSpec) -> list[str]:
    """Where the ranks will look, as far as it is known here."""
    asked = os.path.expandvars(job.launch.env.get("PYTHONPATH", "").replace("${env:", "${"))
    return [os.getcwd(), *(entry for entry in asked.split(os.pathsep) if entry), *sys.path]


def _is_found(module: str, path: Sequence[str]) -> bool:
    """Whether a module is there. Finders read folders; no code of a package runs."""
    places: Sequence[str] | None = path
    name = ""
    for part in module.split("."):
        if places is None:
            return False  # what is above it is no package
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, list(places))
        if spec is None and name == part and name != "__main__":
            spec = importlib.util.find_spec(name)  # installed in another way: built in, or editable
        if spec is None:
            return False
        places = spec.submodule_search_locations
    return True
