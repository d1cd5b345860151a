"""The same job on fewer nodes, with fewer replicas and the same global batch (`launch.min_nodes`)."""

from __future__ import annotations

from orchestrator.errors import SpecError, UserError
from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.spec.job import JobSpec


def on_nodes(job: JobSpec, nodes: int) -> JobSpec:
    """The job on so many nodes, each with as many processes as before.

    Raises UserError where whole replicas do not fit on them, where the global batch does not divide by these, or where
    the training would take another course.
    """
    if nodes == job.launch.nodes:
        return job
    fields = job.model_dump(mode="json")
    fields["launch"] |= {"nodes": nodes, "gpus_per_node": job.processes_per_node}
    fields["parallelism"]["data_parallel_size"] = None
    fields["batch"] |= {"global_batch_size": job.global_batch_size, "num_micro_batches": None}
    try:
        changed = JobSpec.model_validate(fields)
    except SpecError as error:
        raise UserError(
            f"on {nodes} of {job.launch.nodes} nodes: {error.problems[0].message}", code="layout_does_not_fit_nodes"
        ) from error
    altering = [change.reason for change in diff_jobs(job, changed) if change.kind != "safe"]
    if altering:
        raise UserError(f"on {nodes} of {job.launch.nodes} nodes: {altering[0]}", code="layout_does_not_fit_nodes")
    return changed


def node_counts(job: JobSpec) -> list[int]:
    """On how many nodes a job can run, most first. Raises UserError where `launch.min_nodes` allows fewer than
    `launch.nodes`, and its layout does not.
    """
    most, least = job.launch.nodes, job.launch.min_nodes
    counts, why = [most], ""
    for nodes in range(most - 1, (most if least is None else least) - 1, -1):
        try:
            on_nodes(job, nodes)
            counts.append(nodes)
        except UserError as error:
            why = why or str(error)
    if why and len(counts) == 1:
        raise UserError(
            f"launch.min_nodes: the layout does not allow fewer nodes: {why}; leave it out",
            code="min_nodes_not_possible",
        )
    return counts
