"""What is said about a job before it starts: the warnings of `validate`. A warning that the work would certainly be
lost stops the start.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from orchestrator.errors import Problem, SpecError
from orchestrator.planning.checks.checkpoint_room import CHECKPOINT_ROOM, bytes_kept, room_for_all
from orchestrator.planning.checks.pretrained_weights import NO_WEIGHTS
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.warnings import Verdict, judge
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec

ON_A_CLUSTER = frozenset({CHECKPOINT_ROOM})
"""Codes of the warnings that stop a start on a cluster: its nodes may differ from this machine, but share its disk."""
HERE = ON_A_CLUSTER | {NO_WEIGHTS}
"""Those that stop a start on this machine."""
_OF_THE_LAYOUT = frozenset({"gpu_memory", "tensor_parallel_across_nodes", "pipeline_bubble", "communication"})


def check_start(verdict: Verdict, stopping: Collection[str], *, allowed: bool, warn: Callable[[str], object]) -> None:
    """Say the warnings of a job that is about to start. Raises SpecError with what stops it, unless that is
    `allowed`: the verdict's stops, and the warnings whose codes are `stopping`.
    """
    stops = [*verdict.stops, *(each for each in verdict.warnings if each.code in stopping)]
    tell_warnings(
        [*(stops if allowed else ()), *(each for each in verdict.warnings if each.code not in stopping)], warn
    )
    if stops and not allowed:
        way_out = "--allow-warnings starts it anyway"
        raise SpecError([replace(each, hint=f"{each.hint}\n{way_out}" if each.hint else way_out) for each in stops])


def tell_warnings(warnings: Iterable[Problem], warn: Callable[[str], object]) -> None:
    """Say warnings, each once."""
    for each in {(each.code, each.message): each for each in warnings}.values():
        place = f"{each.location}: " if each.location else ""
        field = f"{each.paths[0]}: " if each.paths else ""
        warn(f"{place}{field}{each.message}" + (f"\n{textwrap.indent(each.hint, ' ' * 9)}" if each.hint else ""))


def verdict_on(job: JobSpec, cluster: ClusterSpec | None, runs_dir: Path, saved: Sequence[Commit] = ()) -> Verdict:
    """The verdict on a job that no file was read for: of a run, or of a cell. Raises SpecError where it has no plan."""
    plan = make_plan(job)
    return judge(plan, forecast(plan, cluster), cluster, (), runs_dir, saved)


def verdict_on_all(
    jobs: Sequence[tuple[JobSpec, Sequence[Commit]]], cluster: ClusterSpec | None, runs_dir: Path
) -> Verdict:
    """The verdict on several jobs that start together, each with the checkpoints of its run: each kind of warning once,
    and whether the disk has room for all of them.
    """
    verdicts, wanted = [], 0
    for job, saved in jobs:
        plan = make_plan(job)
        taken = forecast(plan, cluster)
        verdicts.append(judge(plan, taken, cluster, (), runs_dir, saved))
        wanted += max(0, bytes_kept(plan, taken) - sum(each.bytes for each in saved))
    warnings = {(each.code, each.paths): each for verdict in verdicts for each in verdict.warnings}
    together = room_for_all(len(jobs), wanted, runs_dir) if len(jobs) > 1 else ()
    is_told = any(code == CHECKPOINT_ROOM for code, _ in warnings)
    return Verdict((), (*warnings.values(), *(() if is_told else together)), ())


def tell_of_measurement(
    job: JobSpec, runs_dir: Path, warn: Callable[[str], object], *, layout_is_open: bool = False
) -> None:
    """Say the warnings of a job that is measured. It saves nothing, and running out of memory is a result."""
    verdict = verdict_on(job, None, runs_dir)
    untold = {CHECKPOINT_ROOM, *(_OF_THE_LAYOUT if layout_is_open else ())}
    stops = () if layout_is_open else verdict.stops
    tell_warnings([*stops, *(each for each in verdict.warnings if each.code not in untold)], warn)
