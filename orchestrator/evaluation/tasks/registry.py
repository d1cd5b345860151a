"""The module of each kind of task."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Final

from orchestrator.errors import MissingDependency
from orchestrator.evaluation.base import Task, TaskContext
from orchestrator.evaluation.tasks.classification import Classification
from orchestrator.evaluation.tasks.lambada import Lambada
from orchestrator.evaluation.tasks.perplexity import Perplexity
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest

_TASKS: Final[dict[str, Callable[[EvaluationRequest, TaskContext], Task]]] = {
    "wikitext": Perplexity,
    "text": Perplexity,
    "lambada": Lambada,
    "mnli": Classification,
    "race": Classification,
}


def make_task(asked: EvaluationRequest, setting: TaskContext) -> Task:
    """The task, with its files read. Raises UserError for everything that is wrong with these."""
    if asked.kind == "lm-eval":
        try:
            # Only here: lm-eval is an extra, and takes a second to import.
            harness = importlib.import_module("orchestrator.evaluation.harness")
        except ModuleNotFoundError as error:
            if error.name != "lm_eval":
                raise
            raise MissingDependency(
                "--lm-eval needs the library lm-eval, which this Python lacks: "
                "pip install 'megatron-orchestrator[lm-eval]'"
            ) from error
        task: Task = harness.Harness(asked, setting)
        return task
    return _TASKS[asked.kind](asked, setting)
