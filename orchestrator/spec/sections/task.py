"""Fine-tuning on labelled examples."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.spec.sections.data import TextPaths


class TaskSpec(Section):
    """Labelled examples, and the head that replaces a BERT's own to learn them."""

    name: Annotated[Literal["mnli", "race"], resume.forbidden("the checkpoint has another head")]
    """`mnli`: which of three relations a hypothesis has to a premise, from the TSV files of GLUE; `race`: which of four
    options answers a question about an article, from the folders of RACE."""
    train: Annotated[
        TextPaths,
        resume.same_or(
            lambda job: [resume.place(path) for path in job.labelled_task.train] if job.has_task else None, resume.ORDER
        ),
    ]
    """Files to train on, one path or a list: TSV files of MNLI; folders or files of RACE."""
    validation: Annotated[TextPaths | None, resume.safe("evaluation sees other examples; training does not change")] = (
        None
    )
    """Files to evaluate on, all together and, if there are several paths, each separately."""

    @property
    def classes(self) -> int:
        """Answers that there are."""
        return {"mnli": 3, "race": 4}[self.name]

    @property
    def sequences_per_example(self) -> int:
        """Sequences that the model reads for one example: one, or one for each option."""
        return self.classes if self.name == "race" else 1

    @property
    def head_size(self) -> int:
        """Scores that the head gives a sequence."""
        return self.classes // self.sequences_per_example
