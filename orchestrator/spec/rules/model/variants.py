"""Variants of the decoder: scaled rotary positions, attention windows, and what only some layers can do."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.models.blocks.grouped_query_attention.rope_scaling import RopeScaling
from orchestrator.spec.job_sections import JobSections

SCALING, POSITIONS = "model.rope_scaling", "model.position_embedding_type"
WINDOW, SKIP = "model.sliding_window", "model.window_attn_skip_freq"
_ONLY_FOR = {
    "low_freq_factor": "llama3",
    "high_freq_factor": "llama3",
    "beta_fast": "yarn",
    "beta_slow": "yarn",
    "attention_factor": "yarn",
}


def rope_scaling(job: JobSections) -> Iterator[Problem]:
    """Scaling is for rotary positions, and each kind has figures of its own."""
    model, scaling = job.model, job.model.rope_scaling
    if scaling is None:
        return
    if model.position_embedding_type != "rope":
        message = f"is for rotary positions, and position_embedding_type is {model.position_embedding_type}"
        yield Problem(message, (SCALING, POSITIONS), "leave it out")
    for name, kind in _ONLY_FOR.items():
        if scaling.type != kind and getattr(scaling, name) != RopeScaling.model_fields[name].default:
            message = f"is for type: {kind}, and type is {scaling.type}"
            yield Problem(message, (f"{SCALING}.{name}", f"{SCALING}.type"), "leave it out")
    if scaling.type == "linear":
        return
    if scaling.original_max_position_embeddings is None:
        message = f"{scaling.type} needs original_max_position_embeddings, the longest sequence before the scaling"
        yield Problem(message, (SCALING,), "write it; Llama 3.1's is 8192")
    low, high = ("low_freq_factor", "high_freq_factor") if scaling.type == "llama3" else ("beta_slow", "beta_fast")
    lower, upper = getattr(scaling, low), getattr(scaling, high)
    if lower >= upper:
        message = f"{low} must be less than {high}: {lower:g} ≥ {upper:g}"
        defaults = tuple(RopeScaling.model_fields[name].default for name in (low, high))
        yield Problem(
            message, (f"{SCALING}.{low}", f"{SCALING}.{high}"), f"{defaults[0]:g} and {defaults[1]:g} are usual"
        )


def yarn(job: JobSections) -> Iterator[Problem]:
    """YaRN counts turns by the logarithm of the base, and multiplies whole heads."""
    model, scaling = job.model, job.model.rope_scaling
    if scaling is None or scaling.type != "yarn":
        return
    if model.rotary_percent < 1.0:
        message = f"yarn multiplies whole queries and keys, and rotary_percent {model.rotary_percent:g} turns a part"
        yield Problem(message, (f"{SCALING}.type", "model.rotary_percent"), "write llama3 or linear, or turn all")
    if model.rotary_base == 1:
        yield Problem("yarn needs a rotary_base above 1", ("model.rotary_base", SCALING), "10000 is usual")


def window_of_some_layers(job: JobSections) -> Iterator[Problem]:
    """Layers are taken out of a window that there is."""
    model = job.model
    if model.window_attn_skip_freq is None:
        return
    if model.sliding_window is None:
        message = "says which layers have no window, and there is no sliding_window"
        yield Problem(message, (SKIP, WINDOW), "leave it out, or write a sliding_window")
    elif model.window_attn_skip_freq == 1:
        message = "1 takes every layer out of the window"
        yield Problem(message, (SKIP, WINDOW), "leave both out, or write 2 or more")


RULES = (rope_scaling, yarn, window_of_some_layers)
