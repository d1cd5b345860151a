"""MNLI and RACE: how often a BERT that was fine-tuned on the task answers rightly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestrator.data.tasks.dataset import TaskSamples
from orchestrator.data.tasks.files import read_examples
from orchestrator.errors import UserError
from orchestrator.evaluation.base import TaskContext, TaskNetwork, TaskResult
from orchestrator.evaluation.statistics import mean
from orchestrator.run_directory.results.evaluation_request import EvaluationRequest


class Classification:
    """The labelled examples of one file or folder."""

    contents = ""
    libraries: Sequence[str] = ()

    def __init__(self, asked: EvaluationRequest, setting: TaskContext) -> None:
        job = setting.job
        if not job.has_task or job.labelled_task.name != asked.kind:
            raise UserError(
                f"{asked.where}: the model was not fine-tuned on {asked.kind}", code="not_fine_tuned_on_task"
            )
        task = job.labelled_task
        examples = read_examples(task, [asked.where])
        self._samples = TaskSamples(task, examples, setting.tokenizer, job.model.seq_length, job.runtime.seed)

    def measure(self, work: TaskNetwork) -> TaskResult:
        answers = work.answers("examples", _Encoded(self._samples))
        metrics = {
            "accuracy": mean([float(answer.right) for answer in answers]),
            "loss": mean([answer.loss for answer in answers]),
        }
        return TaskResult(metrics, {"examples": len(answers), "right": sum(answer.right for answer in answers)})


class _Encoded:
    """Examples that are encoded when they are asked for, in their files' order."""

    def __init__(self, samples: TaskSamples) -> None:
        self._samples = samples
        self.tokens_each = samples.task.sequences_per_example * samples.length

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> Mapping[str, Any]:
        return self._samples.encoded(self._samples.examples[index])
