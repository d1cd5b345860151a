"""The tables of `orchestrator plan`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from orchestrator.api.plan_rows import cluster_line, describe, forecast_rows
from orchestrator.api.planned_job import PlannedJob
from orchestrator.planning.drawing import Rows
from orchestrator.planning.forecast import Forecast
from orchestrator.planning.layout.topology import Rank
from orchestrator.planning.plan import Plan
from orchestrator.quantities import memory_size, short_count, time_span

MANY_RANKS = 16
"""With more ranks than this, the rank table shows the first replica, and no more than this of it."""


def tables(judged: PlannedJob, console: Console) -> Iterator[Table]:
    """Every table that has rows, in order, for the width of this console."""
    plan, forecast = judged.plan, judged.forecast
    for table in (
        _summary(judged),
        _stages(plan, forecast),
        _memory(forecast),
        _time(forecast),
        _ranks(plan),
        _groups(plan),
        _rampup(plan),
        _blend(plan, console),
    ):
        if table.row_count:
            yield table


def page_tables(judged: PlannedJob) -> tuple[tuple[tuple[str, str], ...], tuple[Rows, ...]]:
    """For the plan's page: the rows of the summary, and the tables of what the page does not draw."""
    plan, forecast = judged.plan, judged.forecast
    exact = _blend_table(plan, _BLEND, _exact)
    made = [_written(each) for each in (_memory(forecast), _time(forecast), _rampup(plan), exact) if each.row_count]
    return tuple((label, text) for label, text in _written(_summary(judged)).rows), tuple(made)


def _written(table: Table) -> Rows:
    """A table without a terminal."""
    cells = zip(*(map(str, column.cells) for column in table.columns), strict=True)
    numbers = frozenset(number for number, column in enumerate(table.columns) if column.justify == "right")
    return Rows(str(table.title), tuple(str(column.header) for column in table.columns), tuple(cells), numbers)


def _exact(count: int) -> str:
    return f"{count:,}"


def _table(title: str, *columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left")
    return table


def _summary(judged: PlannedJob) -> Table:
    plan = judged.plan
    table = _table(f"Plan of {plan.job.name}", "", "")
    words = plan.vocabulary
    rows = [
        *describe(plan),
        *([("cluster", cluster_line(plan.job, judged.cluster))] if judged.cluster is not None else []),
        *forecast_rows(judged.plan, judged.forecast),
        ("vocabulary", f"{words.size:,} tokens, padded to {words.padded_size:,}"),
        ("parameters", f"{plan.parameters.total:,}, at most {plan.parameters.largest_rank:,} on one rank"),
        *([("active parameters", _active(plan))] if plan.parameters.inactive else []),
        ("samples", _samples(plan)),
        ("lr", _learning_rate(plan)),
        (
            "FLOPs",
            f"{plan.step_flops:.4g} per step, {plan.total_flops:.4g} in all ({_attention(plan)}, no recomputation)",
        ),
        *(("note", note) for note in plan.notes),
    ]
    for label, text in rows:
        table.add_row(label, text)
    table.show_header = False
    return table


def _active(plan: Plan) -> str:
    """With what publishers of models may leave out."""
    counts = plan.parameters
    output = f", output layer {counts.output:,}" if counts.output else ""
    return f"{counts.active:,} (of these embedding {counts.embedding:,}{output})"


def _attention(plan: Plan) -> str:
    if plan.full_step_flops is None:
        return "attention full"
    return f"attention causal, as Megatron-LM counts; in full {plan.full_step_flops:.4g} per step"


def _samples(plan: Plan) -> str:
    """`1,000 sequences of 512 tokens`."""
    job, samples = plan.job, f"{plan.batch.train_samples:,}"
    sequences = f"sequences of {job.model.sample_length:,} tokens"
    if not job.has_task:
        return f"{samples} {sequences}"
    each = job.sequences_per_sample
    return f"{samples} examples, {each} {sequences} each" if each > 1 else f"{samples} examples, {sequences}"


def _learning_rate(plan: Plan) -> str:
    rate = plan.learning_rate
    warmup = f"{rate.warmup_init:g} to {rate.lr:g} over {short_count(rate.warmup_samples)} samples, then "
    decay = f"{rate.style} to {rate.min_lr:g} at {short_count(rate.decay_samples)} samples"
    if rate.style == "WSD":
        last, end = short_count(rate.final_samples), short_count(rate.decay_samples)
        decay = f"{rate.lr:g}, and {rate.final_style} to {rate.min_lr:g} over the last {last} of {end} samples"
        if not rate.final_samples:
            decay = f"{rate.lr:g} over {end} samples, and {rate.min_lr:g} behind them"
    return (warmup if rate.warmup_samples else "") + (f"constant {rate.lr:g}" if rate.style == "constant" else decay)


def _stages(plan: Plan, forecast: Forecast) -> Table:
    """Layers, parameters and memory of each stage; its tensor ranks hold the same."""
    columns = ("stage", "layers", "tensor ranks", "parameters per rank", "memory per rank")
    table = _table("Pipeline stages", *columns, numbers=("stage", *columns[3:]))
    held = {rank.pp: rank.parameters for rank in plan.parameters.per_rank}
    for stage, chunks in enumerate(plan.topology.stages):
        tensor_ranks = " ".join(f"({tp},{stage})" for tp in range(plan.topology.tensor_model_parallel_size))
        layers = " | ".join(str(chunk) for chunk in chunks)
        taken = memory_size(forecast.memory.stages[stage].peak_bytes)
        table.add_row(str(stage), layers, tensor_ranks, str(held[stage]), taken)
    return table


def _memory(forecast: Forecast) -> Table:
    """What the fullest stage's memory is made of."""
    fullest = max(forecast.memory.stages, key=lambda stage: stage.peak_bytes)
    where = f" of a rank of stage {fullest.pp}, the fullest" if len(forecast.memory.stages) > 1 else " of a rank"
    table = _table(f"Memory{where}", "part", "memory", numbers=("memory",))
    for part, count in fullest.parts.items():
        if count:
            table.add_row(part.replace("_", " "), memory_size(count))
    table.add_row("peak of the training program", memory_size(fullest.peak_bytes))
    if not forecast.device.is_cpu:
        table.add_row("with CUDA, NCCL and the allocator", memory_size(fullest.device_bytes))
    return table


def _time(forecast: Forecast) -> Table:
    """What a step's time is made of."""
    time = forecast.time
    table = _table("Time of a step", "part", "time", "share", numbers=("time", "share"))
    for part, seconds in time.parts.items():
        if seconds / time.step_seconds >= 0.0005:
            table.add_row(part.replace("_", " "), time_span(seconds), f"{seconds / time.step_seconds:.1%}")
    table.add_row("step", time_span(time.step_seconds), "")
    return table


def _ranks(plan: Plan) -> Table:
    ranks = plan.topology.ranks
    title = "Ranks"
    if len(ranks) > MANY_RANKS:
        replicas = plan.topology.replicas_with_all_experts
        ranks = tuple(rank for rank in ranks if rank.dp < replicas)[:MANY_RANKS]
        which = "first replica" if replicas == 1 else f"first {replicas} replicas, which share the experts"
        title = f"Ranks: {len(ranks)} of {plan.topology.world_size}, of the {which} (--json has all)"
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


def _groups(plan: Plan) -> Table:
    """The groups that exchange data, and how many of them do so between nodes."""
    table = _table("Groups", "kind", "ranks", "exchange", "on nodes", numbers=("ranks",))
    for kind in plan.topology.groups.values():
        if kind.name == "embedding" and plan.job.model.untie_embeddings_and_output_weights:
            continue  # megatron-core makes these groups, and nothing is sent in them
        crossing = kind.crossing()
        if crossing.size > 1:
            table.add_row(kind.name.replace("_", " "), str(crossing.size), kind.exchanges, str(crossing))
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


def _blend(plan: Plan, console: Console) -> Table:
    """What is drawn from each source: over the whole training, by one evaluation, and what is held back for a test.

    Where exact counts do not fit into the console, they are rounded rather than cut off.
    """
    exact = _blend_table(plan, _BLEND, _exact)
    wanted = Measurement.get(console, console.options.update(max_width=10_000), exact).maximum
    if wanted <= console.width:
        return exact
    narrow = _blend_table(plan, _NARROW_BLEND, short_count)
    narrow.padding = (0, 1, 0, 0)
    for column in narrow.columns:
        column.no_wrap = column.header != "source"
        column.overflow = "fold"
    return narrow


_BLEND = ("for", "source", "share", "samples", "tokens", "tokens held", "documents", "epochs", "again from step")
_NARROW_BLEND = ("for", "source", "share", "samples", "tokens", "held", "docs", "epochs", "again\nat step")


def _blend_table(plan: Plan, columns: tuple[str, ...], shown: Callable[[int], str]) -> Table:
    table = _table("Data blend", *columns, numbers=columns[2:])
    gap = " " if columns == _BLEND else "\n"
    for part in (plan.blend.train, plan.blend.validation, plan.blend.test):
        times = f",{gap}{part.evaluations:,} times" if part.part == "validation" else ""
        for source in part.sources:
            if not part.samples and not source.documents:
                continue  # neither read nor held back
            label = f"{part.part}{times}" if part.samples else f"{part.part}{gap}(not read)"
            absent = "to be made" if source.made_first else "not here"
            table.add_row(
                label,
                source.path,
                f"{source.share:.1%}",
                shown(source.samples_alone or source.samples),
                shown(source.tokens_used),
                absent if source.tokens_held is None else shown(source.tokens_held),
                "" if source.documents is None else shown(source.documents),
                "" if source.epochs is None or not part.samples else f"{source.epochs:.2f}",
                "" if source.second_epoch_step is None else shown(source.second_epoch_step),
            )
    return table
