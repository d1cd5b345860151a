"""What training on conversations goes with."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.sections.data import BlendEntry

CHAT, PACKING = "data.chat", "data.chat.packing"
_ONE_EACH = "write packing: false in data.chat: one conversation per sequence"


def conversations(job: JobSections) -> Iterator[Problem]:
    """Conversations are for decoders, and have positions and a mask of their own."""
    data = job.data
    if not data.has_conversations:
        return
    if not FEATURES["conversations"].goes_with(job.model.family):
        names = " or ".join(each.name for each in FEATURES["conversations"].families)
        message = f"conversations are for models of architecture {names}, and this one is {job.model.family.name}"
        yield Problem(message, (CHAT, "model.architecture"), "leave chat out")
    unread = {
        "random_tokens": "random tokens are not conversations",
        "reset_position_ids": "positions restart in each conversation anyway",
        "eod_mask_loss": "the counted tokens are stored with the conversations",
    }
    for name, reason in unread.items():
        if getattr(data, name):
            yield Problem(f"does not go with data.chat: {reason}", (f"data.{name}", CHAT), "leave it out")
    for part in ("blend", "validation", "test"):
        for number, entry in enumerate(getattr(data, part) or ()):
            if entry.json_key != BlendEntry.model_fields["json_key"].default:
                message = "does not go with data.chat: conversations are found by their own fields"
                yield Problem(message, (f"data.{part}[{number}].json_key", CHAT), "leave it out")


def packed_conversations(job: JobSections) -> Iterator[Problem]:
    """Conversations of one sequence are kept apart by a mask over the whole sequence."""
    if not job.data.packs:
        return
    model, cp = job.model, job.parallelism.context_parallel_size
    paths = (PACKING, CHAT)
    if cp > 1:
        message = (
            f"packed conversations need the whole sequence on each rank, and context parallelism cuts it: CP = {cp}"
        )
        yield Problem(message, ("parallelism.context_parallel_size", *paths), f"write 1, or {_ONE_EACH}")
    if model.position_embedding_type == "alibi":
        message = "packed conversations under ALiBi would need a mask for each head"
        yield Problem(message, ("model.position_embedding_type", *paths), _ONE_EACH)
    if model.sliding_window is not None and model.sliding_window < model.seq_length:
        message = (
            "packed conversations under a sliding window would need a mask for each layer: "
            f"sliding_window {model.sliding_window} < seq_length {model.seq_length}"
        )
        hint = f"{_ONE_EACH}; or a seq_length of at most {model.sliding_window}"
        yield Problem(message, ("model.sliding_window", "model.seq_length", *paths), hint)


RULES: tuple[Rule, ...] = (conversations, packed_conversations)
