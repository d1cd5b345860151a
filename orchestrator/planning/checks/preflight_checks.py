"""What a job asks of its surroundings that can be looked at from here, without importing anything of it."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

from orchestrator.errors import Problem
from orchestrator.fields.values import environment_references
from orchestrator.kernel_selection.layers import demands_of_engine
from orchestrator.kernel_selection.libraries import EXTRA, libraries_missing
from orchestrator.planning.estimates import machine_of
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.plan import Plan
from orchestrator.run_directory.rundir import default_runs_dir, nearest_folder
from orchestrator.safe_path import code_folders
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

_STEP = "runtime.train_step"
_SHOWN = 5


def runs_dir_of(job: JobSpec, asked: Path | None) -> Path:
    """The runs folder of a job: the requested one, else that of the spec, else the default."""
    if asked is not None:
        return asked
    return Path(job.launch.runs_dir) if "runs_dir" in job.launch.model_fields_set else default_runs_dir()


def train_step_is_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """No more than a warning: the nodes may have what this machine has not."""
    yield from missing_train_step(plan.job)


def cache_is_unwritable(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """No more than a warning: the nodes may have other disks, and let others write."""
    yield from unwritable_cache(plan.job)


def missing_train_step(job: JobSpec) -> Iterator[Problem]:
    """What keeps this machine from a step of the user's own: its module, or its class, is not found."""
    if job.runtime.train_step is None:
        return
    module, _, name = job.runtime.train_step.partition(":")
    spec = _found(module, _search_path(job))
    if spec is None:
        message = f"module {module} was not found from here: searched {os.getcwd()} and Python's path"
        hint = "start from the folder that holds it, or name that in launch.env: {PYTHONPATH: FOLDER}"
        yield Problem(message, (_STEP,), hint, code="train_step_missing")
    elif not _may_hold(spec, name):
        hint = "write MODULE:CLASS with the name of the class"
        yield Problem(f"there is no {name} in {spec.origin}", (_STEP,), hint, code="train_step_missing")


def modules_are_hidden(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """Modules next to the user's train step that it cannot import, because an installed one has the same name."""
    if plan.job.runtime.train_step is None or plan.job.launch.python is not None:
        return
    named = plan.job.runtime.train_step.partition(":")[0].partition(".")[0]
    for folder in code_folders():
        installed = [entry for entry in sys.path if entry and entry != folder]
        hidden = [name for name in _modules_in(folder) if name != named and _is_elsewhere(name, installed, folder)]
        if hidden:
            shown = ", ".join(hidden[:_SHOWN]) + (", …" if len(hidden) > _SHOWN else "")
            message = f"installed modules hide those of the same name in {folder}: {shown}"
            yield Problem(message, (_STEP,), "rename those that the step imports, or move them into its package")


def _modules_in(folder: str) -> list[str]:
    try:
        paths = sorted(Path(folder).iterdir())
    except OSError:
        return []
    return [
        path.stem
        for path in paths
        if path.stem.isidentifier() and (path.suffix == ".py" or (path / "__init__.py").is_file())
    ]


def _is_elsewhere(name: str, path: Sequence[str], folder: str) -> bool:
    found = PathFinder.find_spec(name, path)
    is_other = found is not None and found.origin is not None and not Path(found.origin).is_relative_to(folder)
    return name in sys.stdlib_module_names or is_other


def unwritable_cache(job: JobSpec) -> Iterator[Problem]:
    """Why the indices of the samples cannot be kept where they are asked to be: each start locks that folder."""
    if job.data.cache_dir is None or job.data.blend is None:
        return
    folder = Path(job.data.cache_dir).absolute()
    nearest = nearest_folder(folder)
    if not nearest.is_dir():
        trouble = f"{nearest} is no folder"
    elif not os.access(nearest, os.W_OK | os.X_OK):
        trouble = "it is not writable" if nearest == folder else f"it does not exist, and {nearest} is not writable"
    else:
        return
    hint = "name a folder that every rank can write to, or leave it out to keep them next to the runs"
    message = f"{job.data.cache_dir} cannot be written from here: {trouble}"
    yield Problem(message, ("data.cache_dir",), hint, code="cache_unwritable")


def transformer_engine_is_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """What only Transformer Engine's layers can do ends a run at its start where `auto` finds none."""
    there = forecast.layers == "transformer_engine"
    if plan.job.precision.quantization is not None:  # planned with these layers, wherever that is done
        there = machine_of(forecast.device).has_engine
    if plan.job.runtime.layers != "auto" or there:
        return
    why = (
        "it is not installed here"
        if forecast.device.layers is None
        else "the profile says that it is not installed there"
    )
    why = "the device is a CPU" if forecast.device.is_cpu else why
    for path in demands_of_engine(plan.job):
        message = f"needs Transformer Engine's layers, and {why}: with runtime.layers auto a run may have none"
        hint = "write runtime.layers: transformer_engine where the nodes have it; else leave it out"
        yield Problem(message, (path, "runtime.layers"), hint)


def kernels_are_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """No more than a warning: the job may run with another Python, on other machines."""
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


def python_is_missing(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """A start here is refused; on the nodes it may be there."""
    launch = plan.job.launch
    searched = launch.env.get("PATH")
    if launch.python is None or environment_references(searched or ""):
        return
    if shutil.which(launch.python, path=searched) is None:
        message = f"{launch.python} is not a program that this machine can run"
        yield Problem(message, ("launch.python",), "name a Python that has this package, or leave it out for this one")


def variables_are_unset(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """Those of an environment end a run at its start; a template of the user's own may set them."""
    job = plan.job
    referring = {f"launch.env.{key}": (value, "no rank starts") for key, value in job.launch.env.items()}
    referring["tracking.uri"] = (job.tracking.uri or "", "nothing is sent")
    for path, (value, lost) in referring.items():
        for name in environment_references(value):
            if name not in os.environ:
                message = f"{name} is not set here: without it where the job runs, {lost}"
                yield Problem(message, (path,), f"export {name}=…")


def nobody_can_be_told(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> Iterator[Problem]:
    """A run that ends unheard is noticed late; what is missing here may be there where the job runs."""
    asked = plan.job.notifications
    if asked.command is not None and shutil.which(asked.command[0]) is None:
        message = f"{asked.command[0]} is not a program that this machine can run"
        yield Problem(message, ("notifications.command",), "write its full path, and make it executable (chmod +x)")
    references = environment_references(asked.webhook or "")
    if asked.webhook is not None and not references:
        message = "is written in the spec: the run directory and every tracker will contain it"
        yield Problem(message, ("notifications.webhook",), "put it into a variable, and write ${env:NAME}")
    for name in references:
        if name not in os.environ:
            message = f"{name} is not set here: without it where the job runs, no notification is sent"
            yield Problem(message, ("notifications.webhook",), f"export {name}=https://…")


def _search_path(job: JobSpec) -> list[str]:
    """Where the ranks will look, as far as it is known here."""
    asked = os.path.expandvars(job.launch.env.get("PYTHONPATH", "").replace("${env:", "${"))
    entries = [*asked.split(os.pathsep), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return [*code_folders(), *(entry for entry in entries if entry), *sys.path]


def _found(module: str, path: Sequence[str]) -> ModuleSpec | None:
    """Where a module is; None where it is not there. Finders read folders; no code of a package runs."""
    found: ModuleSpec | None = None
    places: Sequence[str] | None = path
    name = ""
    for part in module.split("."):
        if places is None:
            return None  # what is above it is no package
        name = f"{name}.{part}" if name else part
        spec = PathFinder.find_spec(name, list(places))
        if spec is None and name == part and name != "__main__":
            spec = importlib.util.find_spec(name)  # installed in another way: built in, or editable
        if spec is None:
            return None
        found, places = spec, spec.submodule_search_locations
    return found


def _may_hold(spec: ModuleSpec, name: str) -> bool:
    """Whether a module may have something of that name: not where its source never says it."""
    if spec.origin is None or not spec.origin.endswith(".py"):
        return True
    try:
        source = Path(spec.origin).read_text(errors="replace")
    except OSError:
        return True
    return re.search(rf"\b{re.escape(name)}\b|import\s*\*|__getattr__|globals\(|setattr", source) is not None
