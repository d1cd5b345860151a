"""BERT and T5 in checkpoints of Megatron-LM: what differs from a GPT's in keys and arguments. Needs no torch.

Its T5 holds the output layer and the table of positions as parts of two modules, so that both are stored twice, under
two keys; the optimizer's state of each is stored once. Its bias by distance has another name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.errors import UserError
from orchestrator.models.registry import BERT, GPT, T5, FamilyTable, ModelFamily
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec

_KINDS = FamilyTable[frozenset[str]](
    gpt=frozenset(("embedding", "decoder", "output_layer", "mtp")),
    bert=frozenset(("embedding", "encoder", "lm_head", "output_layer", "pooler", "binary_head")),
    t5=frozenset(
        (
            *("embedding", "position_embeddings", "encoder", "decoder", "lm_head", "output_layer"),
            *("encoder_relative_pos_emb", "decoder_relative_pos_emb"),
        )
    ),
    mamba=frozenset(),
)
"""What the keys of a checkpoint begin with; nothing where it is neither imported nor exported."""
_TWICE = {
    "embedding.position_embeddings.": "position_embeddings.",
    "output_layer.": "lm_head.output_layer.",
}
"""Beginnings of keys that a T5 has twice there: the one that is ours as well, and the other."""
_RENAMED = {
    f"{half}_relative_attention_bias.": f"{half}_relative_pos_emb.relative_attention_bias."
    for half in ("encoder", "decoder")
}
_STATE = re.compile(r"((?:chained_\d+\.)?optimizer\.state\.\w+\.)?(.*)")


def has_layout(family: ModelFamily) -> bool:
    """Whether checkpoints of a family are imported and exported."""
    return bool(_KINDS.of(family))


def family_of(kinds: Iterable[str]) -> ModelFamily | None:
    """Of a checkpoint whose keys begin with `kinds`; None where it is of none that is imported."""
    found = set(kinds)
    family = GPT
    if "encoder" in found:
        family = T5 if "decoder" in found else BERT
    return family if found <= _KINDS.of(family) else None


def names_there(key: str, family: ModelFamily) -> tuple[str, ...]:
    """The keys that Megatron-LM has for one of ours."""
    if not family.is_encoder_decoder:
        return (key,)
    state, name = _parts(key)
    for ours, theirs in _RENAMED.items():
        if name.startswith(ours):
            return (state + theirs + name.removeprefix(ours),)
    copies = [theirs + name.removeprefix(ours) for ours, theirs in _TWICE.items() if name.startswith(ours)]
    return (key, *(state + copy for copy in copies))


def other_names(key: str) -> tuple[str, ...]:
    """Under what a weight of ours, or the optimizer's state of it, may be stored there beside its own key."""
    return tuple(name for name in names_there(key, T5) if name != key)


def is_copy(key: str) -> bool:
    """Whether it is the second key there of what is stored under ours too. Of the optimizer's state there is one."""
    return key.startswith(tuple(_TWICE.values()))


def _parts(key: str) -> tuple[str, str]:
    """(what stands before the weight's key in that of the optimizer's state, the weight's key)."""
    found = _STATE.fullmatch(key)
    assert found is not None, "it matches everything"
    return found[1] or "", found[2]


def with_known_layers(arguments: Mapping[str, Any], family: ModelFamily) -> Mapping[str, Any]:
    """The arguments without a BERT's --spec local, whose layers have the keys and the meaning of those without it."""
    is_local = family.is_masked_lm and arguments.get("spec") == ["local"]
    return {**arguments, "spec": None} if is_local else arguments


def to_fields(arguments: Mapping[str, Any], family: ModelFamily) -> dict[str, Any]:
    """What arguments say of a BERT or a T5 alone, as fields of the model section."""
    if family.is_masked_lm:
        return {"architecture": family.name, "bert_binary_head": arguments.get("bert_binary_head", True)}
    if not family.is_encoder_decoder:
        return {}
    length = arguments.get("decoder_seq_length")
    fields = {"architecture": family.name, "add_output_bias": not arguments.get("untie_embeddings_and_output_weights")}
    fields |= {} if length is None else {"decoder_seq_length": length}
    if arguments.get("position_embedding_type") == "relative":
        names = ("relative_attention_num_buckets", "relative_attention_max_distance")
        fields |= {name: arguments[name] for name in names if arguments.get(name) is not None}
    return fields


def to_arguments(model: ModelSpec) -> dict[str, Any]:
    """The arguments of Megatron-LM's that it has for a BERT or a T5 alone."""
    if model.family.is_masked_lm:
        return {"bert_binary_head": model.bert_binary_head}
    if not model.family.is_encoder_decoder:
        return {}
    return {
        "num_layers": model.encoder_layers,
        "encoder_num_layers": model.encoder_layers,
        "encoder_seq_length": model.seq_length,
        "decoder_seq_length": model.decoder_seq_length,
        "relative_attention_num_buckets": model.relative_attention_num_buckets,
        "relative_attention_max_distance": model.relative_attention_max_distance,
    }


def network(model: ModelSpec) -> dict[str, Any]:
    """What of a model decides a BERT's or a T5's network, where it may be written in several ways."""
    found: dict[str, Any] = {"num_tokentypes": model.tokentypes, "decoder_seq_length": None}
    if not model.family.is_masked_lm:
        found |= {"bert_binary_head": None}
    if model.family.is_encoder_decoder:
        found |= {
            "num_layers": None,
            "encoder_num_layers": model.encoder_layers,
            "decoder_num_layers": model.decoder_layers,
        }
    return found


def require_halves_alike(job: JobSpec) -> None:
    """Raises UserError for a T5 whose halves have different numbers of layers, which Megatron-LM's have not."""
    model = job.model
    if model.family.is_encoder_decoder and model.encoder_layers != model.decoder_layers:
        raise UserError(
            f"Megatron-LM has no such network: the decoder of its T5 has as many layers as the encoder, despite "
            f"--decoder-num-layers, but {job.name} has {model.encoder_layers} and {model.decoder_layers}",
            code="network_not_in_megatron",
        )
