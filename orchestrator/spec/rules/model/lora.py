"""What low-rank adapters go with."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from orchestrator.errors import Problem
from orchestrator.fields.paths import PP
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.models.layers import adapter_targets_of, layers, matrices_of
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.stages import layers_of_chunks

LORA, MODULES = "model.lora", "model.lora.target_modules"


def adapted_model(job: JobSections) -> Iterator[Problem]:
    """Adapters are for decoders."""
    model = job.model
    if not model.has_adapters:
        return
    if not FEATURES["adapters"].goes_with(model.family):
        yield Problem("adapters are for architecture gpt or mamba", (LORA, "model.architecture"), "leave it out")


def adapters_narrower_than_layers(job: JobSections) -> Iterator[Problem]:
    """An adapter is narrower than what it stands beside."""
    model = job.model
    if model.has_adapters and model.adapters.rank > model.hidden_size:
        message = f"rank {model.adapters.rank} > hidden_size {model.hidden_size}: the adapters would have full rank"
        yield Problem(message, (f"{LORA}.rank", "model.hidden_size"), "8 to 64 are usual")


def each_adapter_once(job: JobSections) -> Iterator[Problem]:
    """A matrix has one adapter."""
    modules = job.model.adapted_modules
    if len(set(modules)) < len(modules):
        yield Problem("names a module twice", (MODULES,), "name each once")


def matrices_are_there(job: JobSections) -> Iterator[Problem]:
    """Some layer has each matrix that is named."""
    there = adapter_targets_of(job.model) if job.model.has_adapters else ()
    if missing := [name for name in job.model.adapted_modules if name not in there]:
        message = f"no layer of this model has {' or '.join(missing)}"
        yield Problem(message, (MODULES,), f"its layers have {', '.join(there)}")


def adapted_weights(job: JobSections) -> Iterator[Problem]:
    """Adapters beside initial weights learn nothing of use; for a benchmark on random tokens they will do."""
    if job.model.has_adapters and job.checkpoint.pretrained is None and not job.data.random_tokens:
        message = "adapters need weights to adapt, but there is no checkpoint.pretrained"
        yield Problem(message, (LORA, "checkpoint.pretrained"), "write checkpoint.pretrained: RUN")


def adapted_layers(job: JobSections) -> Iterator[Problem]:
    """Transformer Engine's layers fuse a norm with the matrix behind it: nothing can stand beside that alone."""
    if job.model.has_adapters and job.runtime.layers == "transformer_engine":
        message = "Transformer Engine's layers do not support adapters"
        yield Problem(message, ("runtime.layers", LORA), "write torch or auto")


def something_to_train(job: JobSections) -> Iterator[Problem]:
    """Every chunk of every stage has a layer with adapters, since nothing else is trained."""
    model, degrees = job.model, job.parallelism
    if set(model.adapted_modules).isdisjoint(adapter_targets_of(model)):
        return  # there are none, or it is said that no layer has these
    counts, every = layers_of_chunks(model.num_layers, degrees), iter(layers(model))
    for held in (stage[chunk] for chunk in range(degrees.num_model_chunks) for stage in counts):
        named = {matrix.name for layer in islice(every, held) for matrix in matrices_of(model, layer)}
        if named.isdisjoint(model.adapted_modules):
            what, more = (
                ("whose layers have", "more target_modules") if held else ("without layers has", "layers in each")
            )
            message = f"a stage {what} no adapters, and nothing to train"
            yield Problem(message, (LORA, PP), f"fewer stages, or {more}")
            return


RULES = (
    something_to_train,
    adapted_model,
    adapters_narrower_than_layers,
    each_adapter_once,
    matrices_are_there,
    adapted_weights,
    adapted_layers,
)
