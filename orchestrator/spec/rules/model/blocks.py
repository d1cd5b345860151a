"""What goes with the blocks that a model is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from orchestrator import plugins
from orchestrator.errors import Problem
from orchestrator.models.blocks.features import Asked
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.models.registry import Feature
from orchestrator.spec.job_sections import JobSections

_OF_FAMILIES: Final[Mapping[Feature, tuple[str, Callable[[JobSections], bool]]]] = {
    "adapters": ("model.lora", lambda job: job.model.has_adapters),
    "context_parallelism": (
        "parallelism.context_parallel_size",
        lambda job: job.parallelism.context_parallel_size > 1,
    ),
    "conversations": ("data.chat", lambda job: job.data.has_conversations),
    "flash_attention": ("runtime.attention_backend", lambda job: job.runtime.attention_backend == "flash"),
    "images": ("model.vision", lambda job: job.model.has_vision),
    "tensor_overlap": ("parallelism.tp_comm_overlap", lambda job: job.parallelism.tp_comm_overlap is True),
}
"""Features of families that a job may ask for: in which field, and whether it does."""


def _of_block(asked: Asked) -> tuple[str, Callable[[JobSections], bool]]:
    return f"model.{asked.field}", lambda job: asked.is_used(job.model)


_OF_BLOCKS = {name: _of_block(each.asked) for name, each in FEATURES.items() if each.asked is not None}
_ASKED = sorted((*_OF_FAMILIES.items(), *_OF_BLOCKS.items()), key=lambda each: each[0])
"""All of them, by name."""


def attention(job: JobSections) -> Iterator[Problem]:
    """An attention goes with some families, and with what it says that it supports."""
    block, family = job.model.attention, job.model.family
    if not block.goes_with(family):
        others = " and ".join(each.name for each in block.families or ())
        message = f"is for architecture {others}, but architecture is {family.name}"
        yield Problem(message, (f"model.{block.field}", "model.architecture"), "leave it out")
    for feature, (path, is_asked) in _ASKED:
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
