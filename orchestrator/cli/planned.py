"""The job named on the command line: loaded, planned, and told in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from orchestrator.cli.common import short_count
from orchestrator.cluster.profiles import known_profiles, load_profile, unknown_profile
from orchestrator.data.preparation import data_problems, survey
from orchestrator.errors import Problem, SpecError
from orchestrator.planning.limits import partition_of, what_is_refused
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob, load_job
from orchestrator.spec.words import duration

ClusterName = Annotated[
    str | None,
    typer.Option("--cluster", metavar="NAME", help="Check it against this cluster profile, instead of launch.cluster."),
]


def plan_for(
    files: Sequence[Path], overrides: Sequence[str] | None, cluster: str | None
) -> tuple[Plan, ClusterSpec | None]:
    """Load a job and plan it for its cluster, if there is one. Raises SpecError with the place of every problem."""
    words = [*(overrides or []), *([f"launch.cluster={cluster}"] if cluster is not None else [])]
    if cluster is not None:
        load_profile(cluster)  # what is wrong with it stands on the command line, not in the job
    loaded = load_job(files, words)
    profile = named_profile(loaded)
    return plan_loaded(loaded, profile, starting=False), profile


def named_profile(loaded: LoadedJob) -> ClusterSpec | None:
    """The profile that a job names. Raises SpecError with the place of a name that no profile has."""
    name = loaded.job.launch.cluster
    if name is None:
        return None
    if name not in known_profiles():
        message, hint = unknown_profile(name)
        raise SpecError(problems=[loaded.places.placed(Problem(message, ("launch.cluster",), hint))])
    return load_profile(name)


def plan_loaded(loaded: LoadedJob, cluster: ClusterSpec | None = None, *, starting: bool = True) -> Plan:
    """Plan a job that is loaded. Raises SpecError with the place of each problem: what `cluster` cannot give, data that
    does not fit the job, and where the job is `starting`, data and a tokenizer that are not here.
    """
    problems = [] if cluster is None else what_is_refused(loaded.job, cluster)
    plan = None
    try:
        plan = make_plan(loaded.job)
    except SpecError as error:
        problems = [*error.problems, *problems]
    data = loaded.job.data
    data_sets = list(plan.data_sets) if plan is not None else survey(data)
    said = {problem.message for problem in problems}
    problems += [found for found in data_problems(data, data_sets, needed=starting) if found.message not in said]
    if plan is None or problems:
        raise SpecError(problems=loaded.places.ordered([loaded.places.placed(problem) for problem in problems]))
    return plan


def describe(plan: Plan) -> list[tuple[str, str]]:
    """What the job would do, a line for each aspect."""
    job, batch = plan.job, plan.batch
    ramp = f", ramped up from {batch.sizes[0]}" if len(batch.sizes) > 1 else ""
    return [
        (
            "model",
            f"{job.model.architecture}, {short_count(plan.parameters.total)} parameters, "
            f"{job.model.num_layers} layers, hidden {job.model.hidden_size}, sequence {job.model.seq_length}",
        ),
        ("layout", layout_line(plan)),
        (
            "batch",
            f"{job.global_batch_size} = micro {job.batch.micro_batch_size} x {job.num_micro_batches} micro-batches x "
            f"DP {job.data_parallel_size}{ramp}",
        ),
        ("length", f"{batch.train_iters:,} steps, {short_count(batch.train_tokens)} tokens"),
        ("data", data_line(plan)),
    ]


def layout_line(plan: Plan) -> str:
    """`8 processes on 1 node = TP 2 x PP 2 x DP 2, sequence parallel`."""
    layout, degrees = plan.topology, plan.job.parallelism
    sizes = {
        "TP": layout.tensor_model_parallel_size,
        "CP": layout.context_parallel_size,
        "PP": layout.pipeline_model_parallel_size,
        "DP": layout.data_parallel_size,
    }
    product = " x ".join(f"{name} {size}" for name, size in sizes.items() if name != "CP" or size > 1)
    extras = [
        f"{layout.virtual_pipeline_model_parallel_size} chunks per stage" if degrees.num_model_chunks > 1 else "",
        f"EP {layout.expert_model_parallel_size}" if layout.expert_model_parallel_size > 1 else "",
        "sequence parallel" if degrees.uses_sequence_parallel else "",
        "distributed optimizer" if degrees.use_distributed_optimizer and layout.data_parallel_size > 1 else "",
    ]
    processes = f"{layout.world_size} process{'es' if layout.world_size > 1 else ''}"
    nodes = f"{layout.nodes} node{'s' if layout.nodes > 1 else ''}"
    return ", ".join([f"{processes} on {nodes} = {product}", *filter(None, extras)])


def cluster_line(job: JobSpec, cluster: ClusterSpec) -> str:
    """`alps, partition gpu: 2 of 16 nodes, 8 of 8 GPUs on each, 4h of 1d`."""
    partition = partition_of(job, cluster)
    most = cluster.partitions.get(partition or "")
    time = job.launch.time or cluster.time
    asked = [
        _share(job.launch.nodes, most.nodes if most else None, "nodes"),
        _share(job.processes_per_node, most.gpus_per_node if most else None, "GPUs on each"),
        _share(duration(time) if time else None, duration(most.time_limit) if most and most.time_limit else None, ""),
    ]
    where = f"{cluster.name}, partition {partition}" if partition else cluster.name
    return f"{where}: {', '.join(filter(None, asked))}"


def _share(wanted: object, most: object, unit: str) -> str:
    if wanted is None:
        return ""
    return f"{wanted} of {most} {unit}".rstrip() if most is not None else f"{wanted} {unit}".rstrip()


def data_line(plan: Plan) -> str:
    """Whether the data is there, and how often it would be read."""
    if plan.job.data.random_tokens:
        return "random tokens"
    made_first = sum(each.is_to_be_made for each in plan.data_sets)
    missing = sum(each.header is None for each in plan.data_sets) - made_first
    if missing or made_first:
        parts = [f"{missing} of {len(plan.data_sets)} sources are not on this machine"] if missing else []
        parts += [making_line(made_first)] if made_first else []
        return "; ".join(parts)
    held = sum(source.tokens_held or 0 for source in plan.sources)
    epochs = max((source.epochs or 0.0 for source in plan.sources), default=0.0)
    return f"{len(plan.sources)} sources, {short_count(held)} training tokens, at most {epochs:.2f} epochs of one"


def making_line(count: int) -> str:
    """`2 sources will be made from text first`."""
    return f"{count} source{'s' if count > 1 else ''} will be made from text first"
