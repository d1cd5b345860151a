"""A training step that a user wrote: found by the path in their job spec, and by nothing else."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from orchestrator.errors import UserError
from orchestrator.runtime.steps.base import TrainStep
from orchestrator.safe_path import code_folders
from orchestrator.spec.job import JobSpec
from orchestrator.spec.messages.suggestions import closest

_METHODS = {"get_batch": ("samples",), "forward": ("model", "batch"), "loss": ("output", "batch")}
"""Of the protocol TrainStep, with their positional arguments."""


def custom_train_step(job: JobSpec) -> TrainStep:
    """An instance of the class that `runtime.train_step` names, made with `runtime.train_step_arguments`.

    Its module is looked for in the working directory, then wherever Python looks (PYTHONPATH, installed packages); what
    that imports is looked for in the working directory last.
    Raises UserError for what is not there, cannot be imported, or is not a training step.
    """
    path = job.runtime.train_step
    assert path is not None, "it is asked for only where it is written"
    where = f"runtime.train_step {path}"
    module_name, _, name = path.partition(":")
    module = _import(module_name, where)
    step: TrainStep = _instance(_class(module, name, where), job.runtime.train_step_arguments, where)
    _check(step, where)
    if len(step.parts) > 1 and job.has_per_token_loss:
        raise UserError(
            f"{where}: a loss per token, {_whose(job)}, has one part, and this one has {', '.join(step.parts)}; join "
            "its parts, or write batch.calculate_per_token_loss: false, which averages each micro-batch by itself",
            code="wrong_train_step_parts",
        )
    return step


def _whose(job: JobSpec) -> str:
    """What makes the loss of a job one per token."""
    if job.batch.calculate_per_token_loss:
        return "that batch.calculate_per_token_loss asks for"
    if job.model.family.targets_vary:
        return "of a T5"
    return f"that data.{'chat' if job.data.has_conversations else 'eod_mask_loss'} asks for"


def _import(name: str, where: str) -> ModuleType:
    folders = code_folders()
    searched = [*folders, *sys.path]
    # Last, so that a torch.py which lies there is not what anybody means by torch. The module that the spec names is
    # meant, whatever is installed by its name.
    sys.path += [folder for folder in folders if folder not in sys.path]
    sys.meta_path.insert(0, _Named(name.partition(".")[0], searched))
    try:
        with _told(where, f"module {name} cannot be imported"):
            return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name != missing and not name.startswith(missing + "."):
            raise UserError(
                f"{where}: module {name} imports {missing}, which is not installed for {sys.executable}",
                code="missing_train_step_import",
            ) from error
        places = "\n        ".join(dict.fromkeys(entry or folders[0] for entry in searched))
        raise UserError(
            f"{where}: there is no module {missing}. Searched:\n        {places}\n"
            "      Start from the folder that holds it (the working directory of the ranks is among these), or name it "
            "in launch.env: {PYTHONPATH: FOLDER}.",
            code="missing_train_step_module",
        ) from error


class _Named(MetaPathFinder):
    """Finds one module or package in folders of its own."""

    def __init__(self, name: str, places: Sequence[str]) -> None:
        self._name, self._places = name, list(places)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return PathFinder.find_spec(fullname, self._places) if fullname == self._name else None


def _class(module: ModuleType, name: str, where: str) -> type[Any]:
    found = getattr(module, name, None)
    if isinstance(found, type):
        return found
    if found is not None:
        raise UserError(
            f"{where}: {name} is of type {type(found).__name__}, not a class; define a class with {_surface()}",
            code="train_step_not_a_class",
        )
    classes = [each for each, value in vars(module).items() if isinstance(value, type) and not each.startswith("_")]
    near = closest(name, classes, most=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(classes) or 'no class'}"
    raise UserError(f"{where}: {module.__file__} has no class {name}; {hint}", code="missing_train_step_class")


def _instance(found: type[Any], arguments: Mapping[str, Any], where: str) -> Any:
    try:
        inspect.signature(found).bind(**arguments)
    except TypeError as error:
        given = ", ".join(arguments) or "none"
        raise UserError(
            f"{where}: runtime.train_step_arguments ({given}) do not match its constructor, "
            f"{found.__name__}{inspect.signature(found)}: {error}",
            code="train_step_arguments_differ",
        ) from error
    with _told(where, "its constructor failed"):
        return found(**arguments)


def _check(step: Any, where: str) -> None:
    for name, names in _METHODS.items():
        method = getattr(step, name, None)
        if not callable(method):
            raise UserError(
                f"{where}: it has no {name}; a training step has {_surface()}. Derive it from the step of the model "
                "family (orchestrator.runtime.steps.gpt.NextToken for GPT) and write only what is different",
                code="missing_train_step_method",
            )
        try:
            inspect.signature(method).bind(*names)
        except TypeError as error:
            wanted, has = f"{name}(self, {', '.join(names)})", f"{name}{inspect.signature(method)}"
            raise UserError(
                f"{where}: its {has} cannot be called as {wanted}: {error}", code="train_step_method_differs"
            ) from error
    parts = getattr(step, "parts", None)
    if not isinstance(parts, tuple) or not parts or not all(isinstance(part, str) and part for part in parts):
        raise UserError(
            f"{where}: its parts are {parts!r}; they are the names of the loss's parts, like ('lm',)",
            code="wrong_train_step_parts",
        )
    metrics = getattr(step, "metrics", ())
    if not isinstance(metrics, tuple) or not all(isinstance(metric, str) and metric for metric in metrics):
        raise UserError(
            f"{where}: its metrics are {metrics!r}; they are names of what it measures, like ('accuracy',)",
            code="wrong_train_step_metrics",
        )
    names = (*parts, *metrics)
    if len(set(names)) < len(names):
        raise UserError(f"{where}: its parts {names!r} have one name twice", code="wrong_train_step_parts")


def _surface() -> str:
    methods = [f"{name}({', '.join(names)})" for name, names in _METHODS.items()]
    return f"parts, {', '.join(methods[:-1])} and {methods[-1]}"


@contextmanager
def _told(where: str, what: str) -> Iterator[None]:
    """Whatever a user's own code raises while it is loaded is their mistake, and told as one, with its place."""
    try:
        yield
    except (ModuleNotFoundError, UserError):
        raise
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
        if isinstance(error, SyntaxError) and error.filename:
            place = f" ({error.filename}:{error.lineno})"
        said = f"{where}: {what}: {type(error).__name__}: {error}{place}"
        raise UserError(said, code="failing_train_step") from error
