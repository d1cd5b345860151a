"""The job named on the command line: loaded, planned, and told in a few lines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.cli.common import short_count
from orchestrator.errors import SpecError
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.spec.loading import LoadedJob, load_job


def plan_of(files: Sequence[Path], overrides: Sequence[str] | None) -> Plan:
    """Load and plan a job. Raises SpecError with the place of every problem."""
    return plan_loaded(load_job(files, overrides or []))


def plan_loaded(loaded: LoadedJob) -> Plan:
    """Plan a job that is loaded. Raises SpecError with the place of every problem."""
    try:
        return make_plan(loaded.job)
    except SpecError as error:
        raise SpecError(problems=[loaded.places.placed(problem) for problem in error.problems]) from error


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


def data_line(plan: Plan) -> str:
    """Whether the data is there, and how often it would be read."""
    if plan.job.data.random_tokens:
        return "random tokens"
    missing = [source.path for source in plan.sources if source.tokens_held is None]
    if missing:
        return f"{len(missing)} of {len(plan.sources)} sources are not on this machine"
    held = sum(source.tokens_held or 0 for source in plan.sources)
    epochs = max((source.epochs or 0.0 for source in plan.sources), default=0.0)
    return f"{len(plan.sources)} sources, {short_count(held)} training tokens, at most {epochs:.2f} epochs of one"
