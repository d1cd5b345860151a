"""What goes with the blocks that a model is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from orchestrator import plugins
from orchestrator.errors import Problem
from orchestrator.models.registry import Feature
from orchestrator.spec.job_sections import JobSections

_ASKED: Final[Mapping[Feature, tuple[str, Callable[[JobSections], bool]]]] = {
    "adapters": ("model.lora", lambda job: job.model.has_adapters),
    "attention_sinks": ("model.softmax_type", lambda job: job.model.has_sinks),
    "context_parallelism": (
        "parallelism.context_parallel_size",
        lambda job: job.parallelism.context_parallel_size > 1,
    ),
    "conversations": ("data.chat", lambda job: job.data.has_conversations),
    "experts": ("model.num_experts", lambda job: job.model.has_experts),
    "flash_attention": ("runtime.attention_backend", lambda job: job.runtime.attention_backend == "flash"),
    "images": ("model.vision", lambda job: job.model.has_vision),
    "multi_token_prediction": ("model.mtp_num_layers", lambda job: job.model.predicts_further),
    "norms_without_bias": ("model.norm_bias", lambda job: not job.model.norm_bias),
    "output_gate": ("model.attention_output_gate", lambda job: job.model.attention_output_gate),
    "output_norms": ("model.transformer_block_type", lambda job: job.model.normalizes_outputs),
    "parallel_residual": ("model.parallel_residual", lambda job: job.model.parallel_residual is not None),
    "positions_by_layer": ("model.no_rope_freq", lambda job: job.model.rotates_by_layer),
    "tensor_overlap": ("parallelism.tp_comm_overlap", lambda job: job.parallelism.tp_comm_overlap is True),
}
"""Features that a job may ask for: in which field, and whether it does."""


def attention(job: JobSections) -> Iterator[Problem]:
    """An attention goes with some families, and with what it says that it supports."""
    block, family = job.model.attention, job.model.family
    if not block.goes_with(family):
        others = " and ".join(each.name for each in block.families or ())
        message = f"is for architecture {others}, but architecture is {family.name}"
        yield Problem(message, (f"model.{block.field}", "model.architecture"), "leave it out")
    for feature, (path, is_asked) in _ASKED.items():
        if not block.supports(feature) and is_asked(job):
            yield Problem(f"does not go with model.{block.field}", (path, f"model.{block.field}"), "leave one out")


def attention_of_package(job: JobSections) -> Iterator[Problem]:
    """Another package's attention is installed, and takes its options."""
    name, options = job.model.attention_plugin, job.model.attention_options
    if name is None:
        if options:
            yield Problem("no attention supports them", ("model.attention_options",), "write attention_plugin too")
        return
    why = plugins.refused(plugins.BLOCKS, name, options)
    if why is not None:
        yield Problem(why, ("model.attention_plugin", "model.attention_options"))


RULES = (attention_of_package, attention)
