"""`orchestrator plan`: the tables of a plan."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from orchestrator.cli.common import AsJson, JobFiles, Overrides, print_json, short_count
from orchestrator.cli.planned import ClusterName, cluster_line, describe, plan_for
from orchestrator.planning.plan import Plan
from orchestrator.planning.topology import LayerRange, Rank
from orchestrator.spec.cluster import ClusterSpec

MANY_RANKS = 64
"""With more ranks than this, the rank table shows the first replica, and no more than this of it."""


def command(jobs: JobFiles, overrides: Overrides = None, cluster: ClusterName = None, as_json: AsJson = False) -> None:
    """Show what a job will do: topology, parameters per rank, batch arithmetic, steps, tokens and the data blend.

    \b
    Example:
      orchestrator plan job.yaml
      orchestrator plan job.yaml --set parallelism.tensor_model_parallel_size=4 --json
      orchestrator plan job.yaml --cluster alps
    """
    plan, profile = plan_for(jobs, overrides, cluster)
    if as_json:
        print_json({**plan.to_dict(), "cluster": profile.name if profile else None})
        return
    # Names and paths may hold brackets: nothing is markup. In a file there is no terminal width to keep to.
    console = Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else 160)
    for table in (_summary(plan, profile), _stages(plan), _ranks(plan), _rampup(plan), _blend(plan)):
        if table.row_count:
            console.print(table)
            console.print()
    for note in plan.notes:
        console.print(f"note: {note}")


def _table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    return table


def _summary(plan: Plan, cluster: ClusterSpec | None) -> Table:
    table = _table(f"Plan of {plan.job.name}", "", "")
    words = plan.vocabulary
    rows = [
        *describe(plan),
        *([("cluster", cluster_line(plan.job, cluster))] if cluster is not None else []),
        ("vocabulary", f"{words.size:,} tokens, padded to {words.padded_size:,}"),
        ("parameters", f"{plan.parameters.total:,}, at most {plan.parameters.largest_rank:,} on one rank"),
        ("samples", f"{plan.batch.train_samples:,} sequences of {plan.job.model.seq_length:,} tokens"),
        ("lr", _learning_rate(plan)),
        ("FLOPs", f"{plan.step_flops:.4g} per step, {plan.total_flops:.4g} in all (attention full, no recomputation)"),
    ]
    for label, text in rows:
        table.add_row(label, text)
    table.show_header = False
    return table


def _learning_rate(plan: Plan) -> str:
    rate = plan.learning_rate
    warmup = f"{rate.warmup_init:g} to {rate.lr:g} over {short_count(rate.warmup_samples)} samples, then "
    decay = f"{rate.style} to {rate.min_lr:g} at {short_count(rate.decay_samples)} samples"
    return (warmup if rate.warmup_samples else "") + (f"constant {rate.lr:g}" if rate.style == "constant" else decay)


def _stages(plan: Plan) -> Table:
    """Layers and parameters of each (tensor, pipeline) rank; tensor ranks of a stage hold the same number."""
    columns = ("stage", "layers", "tensor ranks", "parameters per rank")
    table = _table("Pipeline stages", *columns, numbers=("stage", "parameters per rank"))
    held = {rank.pp: rank.parameters for rank in plan.parameters.per_rank}
    for stage, chunks in enumerate(plan.topology.stages):
        tensor_ranks = " ".join(f"({tp},{stage})" for tp in range(plan.topology.tensor_model_parallel_size))
        table.add_row(str(stage), " | ".join(_layers(chunk) for chunk in chunks), tensor_ranks, str(held[stage]))
    return table


def _layers(layers: LayerRange) -> str:
    return f"{layers.first}" if layers.first == layers.last else f"{layers.first}-{layers.last}"


def _ranks(plan: Plan) -> Table:
    ranks = plan.topology.ranks
    title = "Ranks"
    if len(ranks) > MANY_RANKS:
        ranks = tuple(rank for rank in ranks if rank.dp == 0)[:MANY_RANKS]
        title = f"Ranks: {len(ranks)} of {plan.topology.world_size}, of the first replica (--json has all)"
    degrees = plan.job.parallelism
    unused = {
        "cp": degrees.context_parallel_size == 1,
        "ep": degrees.expert_model_parallel_size == 1,
    }
    columns = tuple(column for column in Rank._fields if not unused.get(column))
    table = _table(title, *(column.replace("_", " ") for column in columns))
    for column in table.columns:
        column.justify = "right"
    for rank in ranks:
        table.add_row(*(str(getattr(rank, column)) for column in columns))
    return table


def _rampup(plan: Plan) -> Table:
    columns = ("from step", "from sample", "global batch", "micro-batches")
    table = _table("Batch size ramp-up", *columns, numbers=columns)
    if len(plan.batch.stages) > 1:
        for stage in plan.batch.stages:
            if stage.first_iteration < plan.batch.train_iters:
                table.add_row(
                    f"{stage.first_iteration:,}",
                    f"{stage.first_sample:,}",
                    str(stage.global_batch_size),
                    str(stage.num_micro_batches),
                )
    return table


def _blend(plan: Plan) -> Table:
    columns = ("source", "share", "tokens used", "tokens held", "epochs")
    table = _table("Data blend (training)", *columns, numbers=columns[1:])
    for source in plan.sources:
        absent = "to be made" if source.made_first else "not here"
        held = absent if source.tokens_held is None else f"{source.tokens_held:,}"
        epochs = "" if source.epochs is None else f"{source.epochs:.2f}"
        table.add_row(source.path, f"{source.share:.1%}", f"{source.tokens_used:,}", held, epochs)
    return table
