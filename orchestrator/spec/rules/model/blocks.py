"""What goes with the blocks that a model is made of."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator import plugins
from orchestrator.errors import Problem
from orchestrator.models.blocks.registry import ATTENTIONS, FEATURES, GROUPED_QUERY
from orchestrator.spec.job_sections import JobSections


def attention(job: JobSections) -> Iterator[Problem]:
    """An attention goes with some families, with what it says that it supports, and with no other one."""
    block, family = job.model.attention, job.model.family
    if not block.goes_with(family):
        others = " and ".join(each.name for each in block.families or ())
        message = f"is for architecture {others}, but architecture is {family.name}"
        yield Problem(message, (f"model.{block.field}", "model.architecture"), "leave it out")
    for name, feature in sorted(FEATURES.items()):
        if feature.concerns_attention and not block.supports(name) and feature.is_used(job):
            paths = (feature.path, f"model.{block.field}")
            yield Problem(f"does not go with model.{block.field}", paths, "leave one out")
    for other in ATTENTIONS:
        if other not in (block, GROUPED_QUERY) and other.is_used(job.model):
            paths = (f"model.{block.field}", f"model.{other.field}")
            yield Problem(f"does not go with model.{other.field}", paths, "leave one out")


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
