"""Hybrids of state space layers (Mamba-2), attention, MLPs and experts."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import ATTENTIONS, EXPERTS, MLP
from orchestrator.models.layer_pattern import layer_pattern
from orchestrator.models.layers import MIXERS, blocks_in_layers
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.rules.kernels.recomputation import GRANULARITY, MODULES

FAMILY, PATTERN = "model.architecture", "model.hybrid_override_pattern"
_FIELDS = tuple(name for name in ModelSpec.model_fields if name.startswith(("hybrid_", "mamba_")))
_RATIOS = ("hybrid_attention_ratio", "hybrid_mlp_ratio")
_NOT_OF_HYBRIDS = {
    "model.sliding_window": "windows need attention in every layer",
    "model.attention_logit_softcapping": "capped scores need attention in every layer",
    "precision.fp8": "its state space layers have not been tried in FP8",
    "precision.fp4": "its state space layers have not been tried in FP4",
    "runtime.cpu_offloading_num_layers": "it needs a decoder with identical layers",
}
_ON_THE_CPU = "the kernels of state space layers are for GPUs, but runtime.device is cpu"


def hybrids_only(job: JobSections) -> Iterator[Problem]:
    """Fields of hybrids are for these, and some others are not."""
    if not job.model.family.is_hybrid:
        for name in _FIELDS:
            if getattr(job.model, name) != ModelSpec.model_fields[name].default:
                message = f"is for architecture: mamba, but architecture is {job.model.architecture}"
                yield Problem(message, (f"model.{name}", FAMILY), "leave it out")
        return
    for path, reason in _NOT_OF_HYBRIDS.items():
        section, _, name = path.partition(".")
        if getattr(getattr(job, section), name) is not None:
            yield Problem(f"is not for architecture: mamba: {reason}", (path, FAMILY), "leave it out")
    if job.runtime.device == "cpu":
        yield Problem(_ON_THE_CPU, ("runtime.device", FAMILY), "leave it out; `plan` needs no GPU")


def pattern(job: JobSections) -> Iterator[Problem]:
    """Each layer has a kind, said once."""
    model = job.model
    if not model.family.is_hybrid:
        return
    written, ratios = model.hybrid_override_pattern, [getattr(model, name) for name in _RATIOS]
    if sum(ratios) > 1:
        message = f"attention and MLPs are more than all layers: {ratios[0]:g} + {ratios[1]:g} > 1"
        yield Problem(message, tuple(f"model.{name}" for name in _RATIOS), "the rest are state space layers")
    if written is None:
        return
    if any(ratios):
        yield Problem("sets the kind of each layer, but ratios are set too", (PATTERN,), "write one of them")
    if strange := sorted(set(written) - set(MIXERS)):
        letters = ", ".join(f"{letter} ({mixer.name})" for letter, mixer in MIXERS.items())
        yield Problem(f"there is no layer {' and no layer '.join(strange)}: {letters}", (PATTERN,))
    if len(written) != model.num_layers:
        message = f"names {len(written)} layers, but num_layers is {model.num_layers}"
        yield Problem(message, (PATTERN, "model.num_layers"), f"write num_layers: {len(written)}, or a letter for each")


def modules_of_hybrids(job: JobSections) -> Iterator[Problem]:
    """Some layer has each module that is recomputed."""
    model, modules = job.model, job.runtime.recomputed_modules
    if not model.family.is_hybrid:
        return
    there = blocks_in_layers(model)
    has = {"core_attn": any(block in ATTENTIONS for block in there), "mlp": MLP in there}
    has["moe"] = EXPERTS in there
    has["layernorm"] = any(block.norm_is_recomputed for block in there)
    if absent := [module for module in modules if not has.get(module, True)]:
        message = f"no layer has a {absent[0]} that could be recomputed: {layer_pattern(model)}"
        hint = "write recompute_granularity: full, which recomputes state space layers too"
        yield Problem(message, (MODULES, PATTERN, GRANULARITY), hint)


RULES: tuple[Rule, ...] = (hybrids_only, pattern, modules_of_hybrids)
