"""Megatron-LM's flags and the fields of a job spec: one table, read in both directions.

A flag whose values are the field's own is in the field's declaration (`MegatronFlag`). What several flags say together
is in `flag_groups/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic.fields import FieldInfo

from orchestrator.fields.base import Section
from orchestrator.fields.flag_values import MINUTES, NUMBER, NUMBER_OR_ZERO, TEXT, WHOLE, Kind, choice, same, switch
from orchestrator.fields.metadata import OURS, MegatronFlag
from orchestrator.models.blocks.registry import block_flags
from orchestrator.models.registry import FAMILIES
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.schema.shape import declared, field_at, leaf_paths, types_of


@dataclass(frozen=True)
class Row:
    """A flag and the field that it is."""

    flag: str
    path: str
    kind: Kind
    default: Any = OURS
    """What Megatron-LM does without the flag, where the spec's default is another; REQUIRED where it refuses."""
    only: tuple[str, Any] | None = None
    """(path, value, or several): what it is for; elsewhere it has no effect."""
    choices: tuple[str, Mapping[Any, tuple[str, ...]]] | None = None
    """(path, values by that of the path): where not every job can have every value."""

    def is_for(self, value: Any) -> bool:
        """Whether it has an effect where `only`'s path has that value."""
        wanted = self.only[1] if self.only is not None else value
        return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)

    @property
    def purpose(self) -> str:
        """What it is for, in words."""
        assert self.only is not None, "for some jobs alone"
        path, wanted = self.only
        return f"it is for {path}: {' or '.join(wanted) if isinstance(wanted, tuple) else wanted}"


# Megatron-DeepSpeed writes them small.
_NORMS = choice({"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"}, {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"})
# Other groups' flags know ALiBi, and the first two by their names of old.
_POSITIONS = choice(
    {name: name for name in ("learned_absolute", "rope", "relative", "none")},
    {"absolute": "learned_absolute", "rotary": "rope", "alibi": "alibi"},
)
_POSITIONS_OF = {name: family.positions for name, family in FAMILIES.items()}
# Megatron-LM's flash attention takes jobs that FlashAttention 4 does not, and nothing that ran is to be refused.
_ATTENTION = choice({"auto": "auto", "fused": "fused", "flash": "auto"})

_TRANSLATED = (
    Row(
        "position-embedding-type",
        "model.position_embedding_type",
        _POSITIONS,
        "learned_absolute",
        choices=("model.architecture", _POSITIONS_OF),
    ),
    Row("normalization", "model.normalization", _NORMS),
    Row("optimizer", "optimizer.name", choice({name: name for name in ("adam", "sgd", "muon")}, {"dist_muon": "muon"})),
    Row("bf16", "precision.dtype", switch("bf16"), "fp32"),
    Row("fp16", "precision.dtype", switch("fp16"), "fp32"),
    Row("loss-scale", "precision.loss_scale", NUMBER_OR_ZERO, only=("precision.dtype", "fp16")),
    Row("transformer-impl", "runtime.layers", choice({"local": "torch", "transformer_engine": "transformer_engine"})),
    Row("attention-backend", "runtime.attention_backend", _ATTENTION),
    Row("no-gradient-accumulation-fusion", "runtime.gradient_accumulation_fusion", switch(False)),
    Row("distributed-timeout-minutes", "runtime.hang_timeout", MINUTES),
)
"""Flags with values of their own."""


def rows(root: type[Section] = JobSections) -> tuple[Row, ...]:
    """Every flag that is one field, those with the field's own values by its declaration. In the order of the schema,
    where what a flag is for stands before it.
    """
    own = [_row(path, flag, field_at(path, root)) for path, flag in declared(MegatronFlag, root)]
    order = {path: number for number, path in enumerate(leaf_paths(root))}
    return tuple(sorted((*own, *_TRANSLATED), key=lambda row: order[row.path]))


def old_names(root: type[Section] = JobSections) -> dict[str, str]:
    """Flags that are declared with another name, and the name that they have now."""
    return {old: _name(path, flag) for path, flag in declared(MegatronFlag, root) for old in flag.old_names}


def _row(path: str, flag: MegatronFlag, field: FieldInfo) -> Row:
    return Row(_name(path, flag), path, _kind(flag, field), flag.default, flag.only)


def _name(path: str, flag: MegatronFlag) -> str:
    return flag.name or path.rpartition(".")[2].replace("_", "-")


def _kind(flag: MegatronFlag, field: FieldInfo) -> Kind:
    """How a flag is read and written whose values are the field's."""
    [kind] = types_of(field.annotation)
    if kind is bool:
        return switch(not (field.default if flag.default is OURS else flag.default))
    plain = {int: WHOLE, float: WHOLE if flag.is_whole else NUMBER, str: TEXT}
    return plain[kind] if kind in plain else same(*get_args(kind))


ROWS = rows()

IMPLIED: dict[str, tuple[str, str | None]] = {
    "use-rotary-position-embeddings": ("position-embedding-type", "rope"),
    "recompute-activations": ("recompute-granularity", "selective"),
    "checkpoint-activations": ("recompute-granularity", "full"),
    "activations-checkpoint-method": ("recompute-granularity", "full"),
    "fp8-e4m3": ("fp8-format", "e4m3"),
    "fp8-hybrid": ("fp8-format", "hybrid"),
    "distribute-checkpointed-activations": ("distribute-saved-activations", None),
}
"""Flags that stand for another one, and go over it where both are given."""
OLD_NAMES: dict[str, str] = {
    **old_names(),
    "hybrid-layer-pattern": "hybrid-override-pattern",
    "persistent-save-interval": "save-interval",
    "override-lr-scheduler": "override-opt-param-scheduler",
    "use-checkpoint-lr-scheduler": "use-checkpoint-opt-param-scheduler",
    "warmup": "lr-warmup-fraction",
    "tokenizer-name-or-path": "tokenizer-model",
    **{old: new for flags in block_flags() for old, new in flags.old_names.items()},
}
"""Flags that have another name, with the same values."""
