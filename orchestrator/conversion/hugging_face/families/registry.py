"""Which family a model, or a config.json, is of."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.conversion.hugging_face.configuration import read_config, section
from orchestrator.conversion.hugging_face.families.bert import (
    BERT,
    BERT_MASKED,
    MEGATRON_BERT,
    MEGATRON_BERT_MASKED,
    ROBERTA,
)
from orchestrator.conversion.hugging_face.families.gemma import GEMMA, GEMMA2, GEMMA3
from orchestrator.conversion.hugging_face.families.gpt2 import GPT2
from orchestrator.conversion.hugging_face.families.hybrids.mamba2 import MAMBA2
from orchestrator.conversion.hugging_face.families.hybrids.nemotron_h import NEMOTRON_H
from orchestrator.conversion.hugging_face.families.image_models.gemma3 import GEMMA3_IMAGES
from orchestrator.conversion.hugging_face.families.image_models.llava import LLAVA, LLAVA_MISTRAL, LLAVA_QWEN2
from orchestrator.conversion.hugging_face.families.image_models.qwen import QWEN2_5_VL
from orchestrator.conversion.hugging_face.families.llama import LLAMA, with_attention
from orchestrator.conversion.hugging_face.families.llama_variants.glm import GLM4
from orchestrator.conversion.hugging_face.families.llama_variants.granite import GRANITE
from orchestrator.conversion.hugging_face.families.llama_variants.olmo import OLMO2
from orchestrator.conversion.hugging_face.families.llama_variants.smollm import SMOLLM3
from orchestrator.conversion.hugging_face.families.mistral import MINISTRAL, MISTRAL
from orchestrator.conversion.hugging_face.families.mixture_of_experts.deepseek import (
    DEEPSEEK_V2,
    DEEPSEEK_V2_DENSE,
    DEEPSEEK_V3,
    DEEPSEEK_V3_DENSE,
)
from orchestrator.conversion.hugging_face.families.mixture_of_experts.glm import GLM4_MOE
from orchestrator.conversion.hugging_face.families.mixture_of_experts.gpt_oss import GPT_OSS
from orchestrator.conversion.hugging_face.families.mixture_of_experts.granite import GRANITE_MOE, GRANITE_MOE_SHARED
from orchestrator.conversion.hugging_face.families.mixture_of_experts.llama4 import LLAMA4
from orchestrator.conversion.hugging_face.families.mixture_of_experts.mixtral import MIXTRAL
from orchestrator.conversion.hugging_face.families.mixture_of_experts.olmoe import OLMOE
from orchestrator.conversion.hugging_face.families.mixture_of_experts.qwen_next import QWEN3_NEXT
from orchestrator.conversion.hugging_face.families.modernbert import MODERNBERT
from orchestrator.conversion.hugging_face.families.nemotron import NEMOTRON
from orchestrator.conversion.hugging_face.families.parallel_residual.cohere import COHERE, COHERE2
from orchestrator.conversion.hugging_face.families.parallel_residual.falcon import FALCON, FALCON_TWO_NORMS
from orchestrator.conversion.hugging_face.families.parallel_residual.gpt_neox import GPT_NEOX
from orchestrator.conversion.hugging_face.families.phi import PHI3
from orchestrator.conversion.hugging_face.families.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from orchestrator.conversion.hugging_face.families.stablelm import STABLELM
from orchestrator.conversion.hugging_face.families.starcoder import STARCODER2
from orchestrator.conversion.hugging_face.families.t5 import MT5, T5
from orchestrator.conversion.tensors.names import names_in
from orchestrator.conversion.weight_mapping import Family, OneOf
from orchestrator.errors import UserError
from orchestrator.fields.base import Section
from orchestrator.models.blocks.registry import ATTENTIONS
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec

FAMILIES = (
    *(LLAMA, MISTRAL, MINISTRAL, MIXTRAL, QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE, QWEN3_NEXT, GLM4_MOE, GPT2),
    *(GEMMA, GEMMA2, GEMMA3),
    *(LLAMA4, PHI3, STARCODER2, STABLELM, NEMOTRON, OLMO2, GRANITE, SMOLLM3, GLM4),
    *(GPT_NEOX, FALCON_TWO_NORMS, FALCON, COHERE, COHERE2),
    *(OLMOE, GRANITE_MOE, GRANITE_MOE_SHARED, GPT_OSS),
    *(DEEPSEEK_V2, DEEPSEEK_V3, DEEPSEEK_V2_DENSE, DEEPSEEK_V3_DENSE),
    *(MEGATRON_BERT, MEGATRON_BERT_MASKED, BERT, BERT_MASKED, ROBERTA, MODERNBERT, T5, MT5),
    *(LLAVA, LLAVA_MISTRAL, LLAVA_QWEN2, GEMMA3_IMAGES, QWEN2_5_VL),
    *(MAMBA2, NEMOTRON_H),
    *(with_attention(block.name, each) for block in ATTENTIONS for each in block.weights.published()),
)


def family_of_folder(folder: Path) -> Family:
    """The family of a Hugging Face model, by its config.json and the names of its weights. Raises UserError."""
    names, config = names_in(folder), read_config(folder)
    family = family_of_type(config.get("model_type"), names)
    return _with_decoder(config, family) if family.images is not None and family.images.nests else family


def _with_decoder(config: Mapping[str, Any], family: Family) -> Family:
    """Of the families of one `model_type` that see images the one whose decoder a config.json describes."""
    decoders = {
        each.decoder.model_type: each
        for each in FAMILIES
        if each.model_type == family.model_type and each.decoder is not None
    }
    kind = section(config, "text_config").get("model_type", next(iter(decoders)))
    if kind not in decoders:
        known = ", ".join(decoders)
        raise UserError(
            f"config.json: text_config is a {kind}; {family.model_type} is imported with {known}",
            code="unsupported_text_model",
        )
    return decoders[kind]


def family_of_type(model_type: Any, names: Collection[str] = ()) -> Family:
    """The family of a config.json's `model_type`; of several the one that weights of these names tell. Raises UserError
    when there is none.
    """
    of_type = [family for family in FAMILIES if family.model_type == model_type]
    for family in of_type:
        told_by = family.told_by
        if told_by is None or not names or any(name.endswith(told_by) for name in names):
            return family
    kinds = {family.model_type: family.name for family in reversed(FAMILIES)}
    known = ", ".join(f"{kind} ({name})" for kind, name in reversed(kinds.items()))
    raise UserError(
        f"config.json: model_type {model_type!r} is none of those that can be imported: {known}",
        code="unsupported_model_type",
    )


def family_of_job(job: JobSpec) -> Family:
    """The family of a job's model. Raises UserError when it is of none, or has the head of a task."""
    if job.has_task:
        raise UserError(
            f"the run is of task {job.labelled_task.name}, whose head no supported model of transformers has",
            code="task_head_not_exportable",
        )
    return family_of_model(job.model)


def family_of_model(model: ModelSpec) -> Family:
    """The first family that a model is of. Raises UserError with what stands against the nearest one."""
    nearest, against = nearest_family(model)
    if not against:
        return nearest
    names = ", ".join(family.name for family in FAMILIES)
    raise UserError(
        f"no supported model of transformers ({names}) is this network; the nearest is {nearest.name}, but "
        + "; ".join(each.text for each in against),
        code="network_not_exportable",
    )


class Mismatch(NamedTuple):
    """A field of a model that a family has otherwise."""

    field: str
    text: str
    """What both have, in words."""


_KINDS = ("architecture", "num_experts", "vision")
"""Fields that tell one kind of network from another."""


def nearest_family(model: ModelSpec) -> tuple[Family, list[Mismatch]]:
    """The first family that a model is of, or comes nearest to, and what stands against it."""
    against = {family.name: mismatches(model, family) for family in FAMILIES}
    nearest = min(FAMILIES, key=lambda family: _distance(against[family.name]))
    return nearest, against[nearest.name]


def _distance(against: list[Mismatch]) -> tuple[bool, int]:
    """Another kind of network is further than any number of other values."""
    return any(each.field in _KINDS for each in against), len(against)


def mismatches(model: ModelSpec, family: Family) -> list[Mismatch]:
    """What of a model a family does not have."""
    found: dict[str, str] = {}
    for field, wanted in family.fixed.items():
        value = getattr(model, field)
        if field == "num_query_groups" and model.query_groups == model.num_attention_heads:
            continue
        if field == "kv_channels" and model.head_dim * model.num_attention_heads == model.hidden_size:
            continue
        if field == "moe_layer_freq" and all(model.moe_layers):
            continue
        if field == "moe_router_load_balancing_type" and isinstance(value, list):
            continue  # several losses
        if value not in wanted.values if isinstance(wanted, OneOf) else value != wanted:
            found[field] = f"is {_text(value)}, and {family.name} has {_text(wanted)}"
    if model.attention.name != family.attention:
        found[model.attention.field] = f"is {model.attention.name}, and {family.name} has {family.attention}"
    for each in family.derived if model.has_experts or "num_experts" not in family.sizes else ():
        if each.to_keys(model) is None:
            field = each.fields[0]
            found[field] = f"is {_text(getattr(model, field))}, which {family.name} cannot say ({', '.join(each.keys)})"
    if "num_experts" in family.sizes and not model.has_experts:
        found["num_experts"] = f"is none, and {family.name} has some"
    if "num_tokentypes" in family.sizes and not model.tokentypes:
        found["num_tokentypes"] = f"is none, and {family.name} has some"
    if model.predicts_further and not family.further:
        found["mtp_num_layers"] = f"is {model.mtp_num_layers}, and {family.name} has none"
    if family.images is not None and not model.has_vision:
        found["vision"] = f"is none, and {family.name} has one"
    elif family.images is not None and model.image_encoder.type != family.images.type:
        found["vision"] = f"is of type {model.image_encoder.type}, and {family.name} has {family.images.type}"
    if model.activation not in family.activations:
        found["activation"] = f"is {model.activation}, and {family.name} has {' or '.join(family.activations)}"
    return [Mismatch(field, f"model.{field} {text}") for field, text in found.items()]


def _text(value: Any) -> str:
    if isinstance(value, OneOf):
        return " or ".join(map(_text, value.values))
    if value is None:
        return "none"
    if isinstance(value, Section):
        return "set"
    return str(value).lower() if isinstance(value, bool) else str(value)
