"""What is recomputed in the backward pass."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from orchestrator.errors import Problem
from orchestrator.fields.paths import PP, TP
from orchestrator.fields.refusals import Refusal, Unavailable, divisors_of, quotient
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.rules.parallelism.stages import LAYERS

GRANULARITY, MODULES = "runtime.recompute_granularity", "runtime.recompute_modules"
DISTRIBUTE, OFFLOADED = "runtime.distribute_saved_activations", "runtime.cpu_offloading_num_layers"


def recomputation(job: JobSections) -> Iterator[Problem]:
    """Whole-layer recomputation says which layers; selective recomputation has nothing to say."""
    runtime = job.runtime
    granularity = runtime.recompute_granularity
    details = {
        "runtime.recompute_method": runtime.recompute_method,
        "runtime.recompute_num_layers": runtime.recompute_num_layers,
    }
    if granularity != "full":
        for path, value in details.items():
            if value is not None:
                message = f"is for recompute_granularity: full, but that is {granularity or 'not written'}"
                yield Problem(message, (path, GRANULARITY), "leave it out, or write full")
        return
    missing = [path.rpartition(".")[2] for path, value in details.items() if value is None]
    if missing:
        message = f"full recomputation needs {' and '.join(missing)}"
        hint = "recompute_method: uniform and recompute_num_layers: 1 save the most memory"
        yield Problem(message, (GRANULARITY,), hint)


def recomputed_layers(job: JobSections) -> Iterator[Problem]:
    """No more layers can be recomputed at a time than a stage holds, and groups of them make up each chunk."""
    count, layers = job.runtime.recompute_num_layers, job.model.num_layers
    if count is None or job.runtime.recompute_granularity != "full" or job.model.family.is_encoder_decoder:
        return
    lengths = sorted({held for stage in layers_of_chunks(layers, job.parallelism) for held in stage})
    largest = lengths[-1]
    if largest == 0:
        raise Unavailable("layers of a stage")
    paths = ("runtime.recompute_num_layers", LAYERS, PP)
    if count > largest:
        yield Problem(f"is more than the layers of a stage: {count} > {largest}", paths, f"at most {largest}")
    elif job.runtime.recompute_method == "uniform" and (odd := [held for held in lengths if held % count]):
        message = f"the layers of a stage are recomputed in groups of {count}: {quotient(odd[0], count)} is not whole"
        offers = (divisors_of(gcd(*lengths), paths[0], count),)
        yield Refusal(message, paths, "write 1, which saves the most memory", numbers=(odd[0], count), offers=offers)


def recomputed_modules(job: JobSections) -> Iterator[Problem]:
    """Selective recomputation says which modules; each is there, and can be recomputed."""
    modules, granularity = job.runtime.recompute_modules, job.runtime.recompute_granularity
    if modules is None:
        return
    if granularity != "selective":
        message = f"is for recompute_granularity: selective, but that is {granularity or 'not written'}"
        yield Problem(message, (MODULES, GRANULARITY), "leave it out, or write selective")
        return
    if not modules:
        yield Problem("names no module", (MODULES, GRANULARITY), "leave recompute_granularity out, or name one")
    twice = sorted({each for each in modules if modules.count(each) > 1})
    if twice:
        yield Problem(f"names {' and '.join(twice)} twice", (MODULES,), "name each once")
    if "mlp" in modules and job.model.add_bias_linear:
        message = "recomputing `mlp` hangs if linear layers have biases: megatron-core waits for their gradients"
        hint = "write model.add_bias_linear: false, or recompute_granularity: full"
        yield Problem(message, (MODULES, "model.add_bias_linear"), hint)
    if "layernorm" in modules and not job.model.normalizes_inputs:
        message = f"recomputes norms before attention and MLP, but {job.model.transformer_block_type} has them after"
        yield Problem(message, (MODULES, "model.transformer_block_type"), "leave layernorm out")


def distributed_activations(job: JobSections) -> Iterator[Problem]:
    """What whole layers are recomputed from is split over tensor-parallel ranks that would all hold it."""
    if not job.runtime.distribute_saved_activations:
        return
    if job.runtime.recompute_granularity != "full":
        message = (
            f"is for recompute_granularity: full, but that is {job.runtime.recompute_granularity or 'not written'}"
        )
        yield Problem(message, (DISTRIBUTE, GRANULARITY), "leave it out, or write full")
    if job.parallelism.tensor_model_parallel_size == 1:
        yield Problem("splits over the tensor-parallel ranks, and TP = 1", (DISTRIBUTE, TP), "leave it out")
    if job.parallelism.uses_sequence_parallel:
        message = "sequence parallelism already splits the activations over the tensor-parallel ranks"
        yield Problem(message, (DISTRIBUTE, "parallelism.sequence_parallel"), "leave it out")


def offloaded_layers(job: JobSections) -> Iterator[Problem]:
    """Activations in the host's memory: Transformer Engine's, without pipeline stages and without recomputation."""
    count, runtime, pp = (
        job.runtime.cpu_offloading_num_layers,
        job.runtime,
        job.parallelism.pipeline_model_parallel_size,
    )
    if count is None:
        return
    if runtime.layers == "torch" or runtime.device == "cpu":
        field, value = ("layers", "torch") if runtime.layers == "torch" else ("device", "cpu")
        message = f"Transformer Engine offloads activations to host memory, but runtime.{field} is {value}"
        yield Problem(message, (OFFLOADED, f"runtime.{field}"), "leave it out; recomputation saves memory everywhere")
    if count >= job.model.num_layers:
        message = f"the last layer's activations are needed at once: {count} ≥ num_layers {job.model.num_layers}"
        legal = job.model.num_layers - 1
        yield Problem(message, (OFFLOADED, LAYERS), f"at most {legal}" if legal else "leave it out")
    if job.model.has_adapters:
        message = "adapters work with torch's layers, but offloading needs Transformer Engine's"
        yield Problem(message, (OFFLOADED, "model.lora"), "leave it out; recomputation saves memory everywhere")
    if pp > 1:
        yield Problem(
            f"megatron-core offloads only without pipeline stages, but PP = {pp}", (OFFLOADED, PP), "write PP 1"
        )
    if runtime.recompute_granularity is not None:
        message = (
            f"activations are either offloaded or recomputed: recompute_granularity is {runtime.recompute_granularity}"
        )
        yield Problem(message, (OFFLOADED, GRANULARITY), "keep one of them")


RULES: tuple[Rule, ...] = (
    recomputation,
    recomputed_layers,
    recomputed_modules,
    distributed_activations,
    offloaded_layers,
)
