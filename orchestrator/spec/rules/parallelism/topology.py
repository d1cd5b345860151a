"""How the processes are laid out."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from orchestrator.errors import Problem
from orchestrator.fields.paths import COUNT, CP, DP, GLOBAL, GPUS, LENGTH, MICRO, NODES, PP, TP, VP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, ratio
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import micro_batches, replicas


def world_size(job: JobSections) -> Iterator[Problem]:
    """World size = TP · PP · CP · DP, and nodes share it evenly."""
    parallelism, launch = job.parallelism, job.launch
    tp, pp, cp = _degrees(job)
    dp, model_parallel = parallelism.data_parallel_size, parallelism.model_parallel_size
    if launch.gpus_per_node is None:
        world = model_parallel * (dp or 1)
        if world % launch.nodes:
            factor = f"TP · PP · CP · DP = {tp} · {pp} · {cp} · {dp or 1} = {world}"
            message = f"world size = {factor} processes do not spread evenly over {launch.nodes} nodes"
            offers = (divisors_of(world, NODES, launch.nodes),)
            yield Refusal(
                message,
                (NODES, DP, TP, PP, CP),
                "write gpus_per_node",
                numbers=(tp, pp, cp, dp or 1, launch.nodes),
                offers=offers,
            )
        return
    world = launch.nodes * launch.gpus_per_node
    machines = f"nodes · gpus_per_node = {launch.nodes} · {launch.gpus_per_node} = {world}"
    if world % model_parallel:
        message = (
            f"world size = TP · PP · CP · DP: {machines} is not a multiple of "
            f"TP · PP · CP = {tp} · {pp} · {cp} = {model_parallel}"
        )
        unit = model_parallel // gcd(model_parallel, launch.nodes)
        offers = (multiples_of(unit, GPUS, launch.gpus_per_node, note=f", as in --set {GPUS}={{}}"),)
        yield Refusal(
            message, (GPUS, NODES, TP, PP, CP), numbers=(launch.nodes, launch.gpus_per_node, tp, pp, cp), offers=offers
        )
    elif dp is not None and world != model_parallel * dp:
        message = f"world size = TP · PP · CP · DP: {machines}, but {tp} · {pp} · {cp} · {dp} = {model_parallel * dp}"
        yield Problem(message, (DP, GPUS, NODES, TP, PP, CP), f"write {world // model_parallel}, or leave it out")


def _degrees(job: JobSections) -> tuple[int, int, int]:
    parallelism = job.parallelism
    return (
        parallelism.tensor_model_parallel_size,
        parallelism.pipeline_model_parallel_size,
        parallelism.context_parallel_size,
    )


SEQUENCE_PARALLEL_WITHOUT_TP = "sequence_parallel_without_tp"


def sequence_parallel(job: JobSections) -> Iterator[Problem]:
    """SP shards over the tensor-parallel ranks, so it needs TP > 1, and its degree is TP."""
    written, tp = job.parallelism.sequence_parallel, job.parallelism.tensor_model_parallel_size
    paths = ("parallelism.sequence_parallel", TP)
    if written is True and tp == 1:
        hint = "write sequence_parallel: false, or a tensor_model_parallel_size of 2 or more"
        message = "sequence parallelism needs TP > 1, and TP = 1"
        yield Problem(message, paths, hint, code=SEQUENCE_PARALLEL_WITHOUT_TP)
    elif not isinstance(written, bool) and written != tp:
        message = f"the degree of sequence parallelism is TP: SP = {written}, TP = {tp}"
        yield Problem(message, paths, f"write {'true' if tp > 1 else 'false'}")


def virtual_stages(job: JobSections) -> Iterator[Problem]:
    """Interleaving needs stages to interleave."""
    chunks, pp = job.parallelism.num_model_chunks, job.parallelism.pipeline_model_parallel_size
    if chunks > 1 and pp == 1:
        hint = "leave it out, or write a pipeline_model_parallel_size of 2 or more"
        yield Problem(f"virtual stages need PP > 1: VP = {chunks}, PP = 1", (VP, PP), hint)


def interleaved_micro_batches(job: JobSections) -> Iterator[Problem]:
    """The interleaved schedule runs micro-batches in groups of PP."""
    pp = job.parallelism.pipeline_model_parallel_size
    if job.parallelism.num_model_chunks == 1 or pp == 1:
        return
    count = micro_batches(job)
    if count % pp:
        batch = job.batch
        one_pass = batch.micro_batch_size * replicas(job)
        message = f"with virtual stages the micro-batches per step are a multiple of PP: {count} / {pp} is not whole"
        offers = (
            multiples_of(pp, COUNT, count),
            multiples_of(pp * one_pass, GLOBAL, job.global_batch_size),
            divisors_of(job.global_batch_size // replicas(job), MICRO, batch.micro_batch_size),
        )
        yield Refusal(message, (COUNT, GLOBAL, MICRO, PP, VP), numbers=(count, pp), offers=offers)


def context_parallel(job: JobSections) -> Iterator[Problem]:
    """Ring-style context parallelism cuts the sequence into 2 · CP chunks."""
    cp, length = job.parallelism.context_parallel_size, job.model.seq_length
    if cp == 1:
        return
    if length % (2 * cp):
        message = (
            f"the sequence is cut into 2 · CP chunks: {length} / (2 · {cp}) = {ratio(length, 2 * cp)} is not whole"
        )
        offers = (divisors_of(length, CP, cp), multiples_of(2 * cp, LENGTH, length))
        yield Refusal(message, (CP, LENGTH), numbers=(length, cp), offers=offers)


def context_parallel_family(job: JobSections) -> Iterator[Problem]:
    """The cut of the sequence is made for causal attention."""
    cp, family = job.parallelism.context_parallel_size, job.model.family
    if cp > 1 and not FEATURES["context_parallelism"].goes_with(family):
        message = f"context parallelism cuts causal attention, but architecture is {family.name}: CP = {cp}"
        hint = "write context_parallel_size: 1; sequence_parallel also saves activation memory"
        yield Problem(message, (CP, "model.architecture"), hint)


RULES = (
    world_size,
    sequence_parallel,
    virtual_stages,
    interleaved_micro_batches,
    context_parallel,
    context_parallel_family,
)
