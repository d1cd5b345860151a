"""Whether a job can begin with the weights that its `checkpoint.pretrained` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from orchestrator.errors import Problem, UserError
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.self_contained_checkpoints import open_weights
from orchestrator.spec.job import JobSpec
from orchestrator.spec.pretrained import in_words, other_network, wrong_experts

NO_WEIGHTS = "no_weights"
"""The code of what ends a run at its start that has no checkpoint of its own."""


def weights_to_start_from(job: JobSpec, text: str, runs_dir: Path) -> Iterator[Problem]:
    """What is wrong with the weights of that name. No more than a warning: a run with checkpoints of its own does not
    need them, and the nodes may see others.
    """
    paths, ends = ("checkpoint.pretrained",), "without them the run fails at its start"
    try:
        theirs = open_weights(find_weights(text, runs_dir)).job
    except UserError as error:
        yield Problem(str(error).removeprefix("checkpoint.pretrained "), paths, ends, code=NO_WEIGHTS)
        return
    if why := wrong_experts(theirs, job):
        hint = f"the run fails at its start: {why.way_out}"
        yield Problem(f"{text} {why.message}", (*paths, "checkpoint.upcycle"), hint, code=NO_WEIGHTS)
    elif other := other_network(theirs, job):
        message = f"{text} contains the weights of another network: {in_words(other)}"
        hint = "the run fails at its start: write the model that they belong to, or name other weights"
        yield Problem(message, paths, hint, code=NO_WEIGHTS)
    elif job.model.has_vision and not theirs.model.has_vision:
        message = f"{text} takes no images, so the encoder starts at random"
        if job.model.has_frozen_encoder:
            frozen = (*paths, "model.vision.freeze")
            yield Problem(f"{message} and stays so", frozen, "the run fails at its start", code=NO_WEIGHTS)
        else:
            hint = "start from a vision-language model, or train longer than for fine-tuning"
            yield Problem(message, paths, hint, code="weights_without_vision")
