"""The ways out for a job that does not fit into its GPUs: remedies that its cluster can give, in words."""

from __future__ import annotations

from orchestrator.planning.checks.host_memory import beyond_host_memory
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.forecast import Forecast, estimated
from orchestrator.planning.memory import Memory
from orchestrator.planning.memory.fit import TIGHT
from orchestrator.planning.plan import Plan
from orchestrator.planning.suggestions.remedy_search import Remedy, remedies
from orchestrator.planning.vocabulary import padded_vocab_size
from orchestrator.quantities import memory_size
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

SHOWN_WAYS = 4
"""Changes that are offered to a job that does not fit."""


def available_remedies(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> list[Remedy]:
    """The changes that the cluster can give and after which the job fits with room to spare, the cheapest first: each
    sized and priced as the plan of the changed job is.
    """
    device, vocabulary = forecast.device, plan.vocabulary

    def planned(job: JobSpec) -> tuple[Memory, float]:
        divisible_by, tp = job.model.make_vocab_size_divisible_by, job.parallelism.tensor_model_parallel_size
        estimate = estimated(job, padded_vocab_size(vocabulary.size, divisible_by, tp), device)
        return estimate.memory, estimate.time.step_seconds

    limit = int(TIGHT * (device.memory_bytes or 0))
    found = remedies(plan.job, vocabulary.size, forecast.layers, limit, planned, machine=device.gpus_per_node)
    ways = [way for way in found if not beyond_host_memory(way.job, way.memory, cluster)]
    if cluster is not None and not what_is_refused(plan.job, cluster):
        return [way for way in ways if not what_is_refused(way.job, cluster)]
    return ways


def cheapest_remedies(plan: Plan, forecast: Forecast, cluster: ClusterSpec | None) -> str:
    """The cheapest of them in words, with prices."""
    ways = available_remedies(plan, forecast, cluster)
    if not ways:
        return "no small change makes it fit; `orchestrator tune` searches all layouts"
    lines = [
        f"  {way.words}{_on(way, plan)}: {memory_size(way.memory.device_bytes)}, {_price(way)}\n"
        f"    {' '.join(f'--set {override}' for override in way.overrides)}"
        for way in ways[:SHOWN_WAYS]
    ]
    return "\n".join(["what makes it fit, the cheapest first:", *lines])


def _on(way: Remedy, plan: Plan) -> str:
    return f" on {way.gpus} GPUs" if way.gpus != plan.job.world_size else ""


def _price(way: Remedy) -> str:
    change = way.slower
    if abs(change) < 0.005:
        return "as fast per GPU"
    return f"{abs(change):.0%} {'slower' if change > 0 else 'faster'} per GPU"
