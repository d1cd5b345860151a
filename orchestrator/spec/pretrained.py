"""Which jobs can begin with the weights of another (`checkpoint.pretrained`)."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.models.blocks.experts.fields import ExpertsSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.schema.diff import Change, diff_fields

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
    if ours.checkpoint.upcycle:
        unread = (*unread, *(f"model.{name}" for name in ExpertsSpec.model_fields))
    return [
        change
        for change in diff_fields(theirs, ours, experts_change_format=False)  # which changes no weights
        if change.kind == "forbidden" and change.path.startswith("model.") and not change.path.startswith(unread)
    ]


def in_words(changes: list[Change]) -> str:
    """`model.num_layers is 5 there and 4 here; …`"""
    return "; ".join(f"{change.path} is {change.old} there and {change.new} here" for change in changes)


class WrongExperts(NamedTuple):
    """Why the experts of a job cannot begin with the weights of another."""

    code: str
    message: str
    """Follows on the name of these weights."""
    way_out: str


def wrong_experts(theirs: JobSpec, ours: JobSpec) -> WrongExperts | None:
    """Dense weights are for experts where that is asked for, and experts for nothing else then."""
    if ours.checkpoint.upcycle and theirs.model.has_experts:
        message = f"has {theirs.model.expert_count} experts already, but checkpoint.upcycle starts them from dense MLPs"
        return WrongExperts("upcycled_experts", message, "leave checkpoint.upcycle out, or name a dense model")
    if ours.model.has_experts and not theirs.model.has_experts and not ours.checkpoint.upcycle:
        way_out = "write checkpoint.upcycle: true to start every expert as a copy of its MLP"
        return WrongExperts("dense_weights", f"is dense, and this job has {ours.model.expert_count} experts", way_out)
    return None
