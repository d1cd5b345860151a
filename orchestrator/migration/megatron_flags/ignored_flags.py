"""Flags that Megatron-LM's own trainers take and do not hand to the model, so that they change nothing there.

By the trainers of core_v0.16.1. The job has what the flag says; that the script trained something else is told, both
when it is migrated and when it is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from orchestrator.fields.formatting import as_yaml
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.registry import FamilyTable

RELEASE = "core_v0.16.1"


@dataclass(frozen=True)
class IgnoredFlag:
    """A flag that a trainer does not read."""

    flag: str
    path: str
    """The field that the flag is."""
    trained: str
    """What the trainer has in its place."""
    value: Any
    """The same as a value of the field."""
    like: str | None = None
    """A field that says the same where its value is this one's."""

    def differs(self, given: GivenFlags) -> bool:
        """Whether a migrated job has something else than the trainer."""
        section = given.get(self.path.rpartition(".")[0]) if self.path.count(".") > 1 else None
        value = section.get(self.path.rpartition(".")[2]) if isinstance(section, dict) else given.get(self.path)
        return value != self.value and (self.like is None or value != given.get(self.like))

    def about(self, shown: str) -> str:
        """What a person has to know of it, and the way to what the trainer really does."""
        return (
            f"{shown}: the trainer of {RELEASE} takes no notice of it and has {self.trained}; for the network that it "
            f"trains, {self.path}={as_yaml(self.value)}"
        )


_BASE = IgnoredFlag("rotary-base", "model.rotary_base", "the base 10000", 10000)
_INTERPOLATION = IgnoredFlag("rotary-seq-len-interpolation-factor", "model.rope_scaling", "no scaling", None)
UNREAD = FamilyTable[tuple[IgnoredFlag, ...]](
    gpt=(IgnoredFlag("rope-scaling-factor", "model.rope_scaling.factor", "the factor 8", 8.0), _INTERPOLATION),
    mamba=(_INTERPOLATION,),
    bert=(
        IgnoredFlag(
            "position-embedding-type", "model.position_embedding_type", "learned positions", "learned_absolute"
        ),
        _BASE,
    ),
    t5=(
        _BASE,
        IgnoredFlag(
            "decoder-num-layers",
            "model.decoder_num_layers",
            "a decoder as deep as the encoder",
            None,
            like="model.num_layers",
        ),
    ),
)


def unread_notes(given: GivenFlags) -> list[str]:
    """What to say about the flags of a script that became fields of the job."""
    fields = {account.flag for account in given.migration.accounts if account.outcome in ("carried", "default")}
    return [
        f"{each.about(given.flags[each.flag].shown)} (--set)"
        for each in (UNREAD.of(given.family.model) if given.family.model is not None else ())
        if given.has(each.flag) and given.flags[each.flag].shown in fields and each.differs(given)
    ]
