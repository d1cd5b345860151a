"""Which jobs can begin with the weights of another (`checkpoint.pretrained`)."""

from __future__ import annotations

from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.diff import Change, diff_jobs

_OTHERWISE_CHECKED = ("model.vocab_size", "model.make_vocab_size_divisible_by", "model.lora", "model.vision.freeze")
"""Fields that a resume may not change and this may: the vocabulary itself is compared, adapters may be new, and what is
trained may be other weights."""


def other_network(theirs: JobSpec, ours: JobSpec) -> list[Change]:
    """Fields of the model by which the weights of one job are those of another network than the other's. An encoder of
    images may be new, and so may layers that predict further tokens, which a model may leave out too.
    """
    unread = _OTHERWISE_CHECKED if theirs.model.has_vision else (*_OTHERWISE_CHECKED, "model.vision")
    if not (theirs.model.predicts_further and ours.model.predicts_further):
        unread = (*unread, "model.mtp_num_layers")
    return [
        change
        for change in diff_jobs(theirs, ours)
        if change.kind == "forbidden" and change.path.startswith("model.") and not change.path.startswith(unread)
    ]


def in_words(changes: list[Change]) -> str:
    """`model.num_layers is 5 there and 4 here; …`"""
    return "; ".join(f"{change.path} is {change.old} there and {change.new} here" for change in changes)
