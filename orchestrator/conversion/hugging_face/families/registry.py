"""Which family a model, or a config.json, is of."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.conversion.weight_mapping import Family, OneOf
from orchestrator.errors import UserError
from orchestrator.fields.base import Section
from orchestrator.run_directory.checkpoints.commit_markers import Commit, read_commit
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec

_FOLDER = "orchestrator.conversion.hugging_face.families"


class Kind(NamedTuple):
    """What tells one kind of network from another: no family is of two."""

    architecture: str = "gpt"
    has_experts: bool = False
    images: str | None = None
    """The type of their encoder."""


_GPT, _EXPERTS, _BERT, _T5, _MAMBA = Kind(), Kind(has_experts=True), Kind("bert"), Kind("t5"), Kind("mamba")
_MAMBA_WITH_EXPERTS = Kind("mamba", has_experts=True)
_MODULES = (
    ("llama", _GPT, "LLAMA"),
    ("mistral", _GPT, "MISTRAL MINISTRAL"),
    ("mixture_of_experts.mixtral", _EXPERTS, "MIXTRAL"),
    ("qwen", _GPT, "QWEN2"),
    ("qwen", _EXPERTS, "QWEN2_MOE"),
    ("qwen", _GPT, "QWEN3"),
    ("qwen", _EXPERTS, "QWEN3_MOE"),
    ("mixture_of_experts.qwen_next", _EXPERTS, "QWEN3_NEXT"),
    ("mixture_of_experts.glm", _EXPERTS, "GLM4_MOE"),
    ("gpt2", _GPT, "GPT2"),
    ("gemma", _GPT, "GEMMA GEMMA2 GEMMA3"),
    ("mixture_of_experts.llama4", _EXPERTS, "LLAMA4 LLAMA4_PUBLISHED"),
    ("phi", _GPT, "PHI3"),
    ("starcoder", _GPT, "STARCODER2"),
    ("stablelm", _GPT, "STABLELM STABLELM_ONE_NORM"),
    ("nemotron", _GPT, "NEMOTRON"),
    ("llama_variants.olmo", _GPT, "OLMO2 OLMO3"),
    ("llama_variants.granite", _GPT, "GRANITE"),
    ("llama_variants.smollm", _GPT, "SMOLLM3"),
    ("llama_variants.glm", _GPT, "GLM4 GLM"),
    ("parallel_residual.gpt_neox", _GPT, "GPT_NEOX"),
    ("parallel_residual.falcon", _GPT, "FALCON_TWO_NORMS FALCON"),
    ("parallel_residual.cohere", _GPT, "COHERE COHERE2"),
    ("mixture_of_experts.olmoe", _EXPERTS, "OLMOE"),
    ("mixture_of_experts.granite", _EXPERTS, "GRANITE_MOE GRANITE_MOE_SHARED"),
    ("mixture_of_experts.gpt_oss", _EXPERTS, "GPT_OSS"),
    ("mixture_of_experts.deepseek", _EXPERTS, "DEEPSEEK_V2 DEEPSEEK_V3"),
    ("mixture_of_experts.deepseek", _GPT, "DEEPSEEK_V2_DENSE DEEPSEEK_V3_DENSE"),
    ("bert", _BERT, "MEGATRON_BERT MEGATRON_BERT_MASKED BERT BERT_MASKED ROBERTA"),
    ("modernbert", _BERT, "MODERNBERT"),
    ("t5", _T5, "T5 MT5"),
    ("image_models.llava", Kind(images="llava"), "LLAVA LLAVA_MISTRAL LLAVA_QWEN2"),
    ("image_models.gemma3", Kind(images="gemma3"), "GEMMA3_IMAGES"),
    ("image_models.qwen", Kind(images="qwen2.5"), "QWEN2_5_VL"),
    ("hybrids.mamba2", _MAMBA, "MAMBA2"),
    ("hybrids.nemotron_h", _MAMBA_WITH_EXPERTS, "NEMOTRON_H_WITH_EXPERTS"),
    ("hybrids.nemotron_h", _MAMBA, "NEMOTRON_H"),
)
"""Modules beside this one, and families in them. A module is imported when a family of its kind is asked for."""


def families_of(kind: Kind) -> Iterator[Family]:
    """The families of a kind, each imported when it is reached."""
    for module, of, names in _MODULES:
        if of == kind:
            yield from _families_in(module, names)


@cache
def families() -> tuple[Family, ...]:
    """All families."""
    return tuple(each for module, _, names in _MODULES for each in _families_in(module, names))


def _families_in(module: str, names: str) -> Iterator[Family]:
    loaded = importlib.import_module(f"{_FOLDER}.{module}")
    return (getattr(loaded, name) for name in names.split())


def family_of_type(model_type: Any, names: Collection[str] = ()) -> Family:
    """The family of a config.json's `model_type`; of several the one that weights of these names tell. Raises UserError
    when there is none.
    """
    of_type = [family for family in families() if family.model_type == model_type]
    for family in of_type:
        told_by = family.told_by
        if told_by is None or not names or any(name.endswith(told_by) for name in names):
            return family
    kinds = {family.model_type: family.name for family in reversed(families())}
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


def family_of_checkpoint(checkpoint: Path, job: JobSpec) -> Family:
    """The same, but of several families that the model is of the one that its weights were imported as."""
    first, commit = family_of_job(job), read_commit(checkpoint)
    return family_imported_as(job.model, commit) or first


def family_imported_as(model: ModelSpec, commit: Commit | None) -> Family | None:
    """The family that the weights of a checkpoint were imported as, at first; None where the model is not of it."""
    of = None if commit is None else commit.imported_as
    named = (each for each in families_of(_kind_of(model)) if each.name == of)
    return next((each for each in named if not mismatches(model, each)), None)


def family_of_model(model: ModelSpec) -> Family:
    """The first family that a model is of. Raises UserError with what stands against the nearest one."""
    nearest, against = nearest_family(model)
    if not against:
        return nearest
    names = ", ".join(family.name for family in families())
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


def nearest_family(model: ModelSpec) -> tuple[Family, list[Mismatch]]:
    """The first family that a model is of, or comes nearest to, and what stands against it. Another kind of network is
    further than any number of other values.
    """
    compared: list[tuple[Family, list[Mismatch]]] = []
    for family in families_of(_kind_of(model)):
        compared.append((family, mismatches(model, family)))
        if not compared[-1][1]:
            return compared[-1]
    return min(compared or _of_other_kinds(model), key=lambda each: len(each[1]))


def _kind_of(model: ModelSpec) -> Kind:
    return Kind(model.architecture, model.has_experts, model.image_encoder.type if model.has_vision else None)


def _of_other_kinds(model: ModelSpec) -> Iterator[tuple[Family, list[Mismatch]]]:
    return ((family, mismatches(model, family)) for family in families())


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
