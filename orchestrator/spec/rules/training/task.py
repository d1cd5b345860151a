"""What fine-tuning on labelled examples goes with."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.sections.data import DataSpec

TASK = "task"
_OF_TEXT = ("blend", "validation", "test", "split", "mask_prob", "short_seq_prob", "bert_order", "chat")


def task_model(job: JobSections) -> Iterator[Problem]:
    """The head stands on a BERT's pooler, and the two parts of an example are told apart by their types."""
    if not job.has_task:
        return
    model = job.model
    if not FEATURES["task_head"].goes_with(model.family):
        message = f"a task's head is for architecture: bert, but architecture is {model.architecture}"
        yield Problem(message, (TASK, "model.architecture"), "leave the task out, or write architecture: bert")
    elif not model.bert_binary_head:
        message = "a task needs the pooler and the types of tokens, which come with bert_binary_head: true"
        yield Problem(message, ("model.bert_binary_head", TASK), "leave it out")


def task_data(job: JobSections) -> Iterator[Problem]:
    """The examples are all that is read."""
    for name in _OF_TEXT if job.has_task else ():
        if getattr(job.data, name) != DataSpec.model_fields[name].default:
            message = f"{name} is for training on text, but the job trains on the examples of its task"
            yield Problem(message, (f"data.{name}", TASK), f"leave {name} out")


def task_validation(job: JobSections) -> Iterator[Problem]:
    """Evaluation needs examples that are held out."""
    evaluation = job.evaluation
    if job.has_task and not evaluation.same_samples:
        message = "an evaluation reads the examples of its files from the beginning"
        yield Problem(message, ("evaluation.same_samples", TASK), "leave it out")
    if not job.has_task or job.labelled_task.validation is not None or job.data.random_tokens:
        return
    for name in ("eval_interval", "eval_at_start"):
        if getattr(evaluation, name):
            message = f"{name} needs examples to evaluate on, but task.validation names none"
            yield Problem(message, (f"evaluation.{name}", TASK), "write task.validation, or leave evaluation out")
            return


RULES: tuple[Rule, ...] = (task_model, task_data, task_validation)
