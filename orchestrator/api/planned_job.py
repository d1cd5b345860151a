"""A job, planned and judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.api.plan_rows import cluster_line, describe, forecast_rows
from orchestrator.api.targets import GPU_OPTION, TargetOptions, gpu_problems, load_named, profile_of
from orchestrator.api.verdict_lines import verdict_lines
from orchestrator.conversion.exportability import export_problems, export_warnings
from orchestrator.data.source_survey import data_problems, survey_job
from orchestrator.data.tasks.checks import task_problems
from orchestrator.data.tokenizers.vocabulary import UNREADABLE_TOKENIZER
from orchestrator.errors import Problem, SpecError
from orchestrator.planning.checks.partition_limits import what_is_refused
from orchestrator.planning.checks.plugin_checks import plugin_problems
from orchestrator.planning.forecast import Forecast, forecast
from orchestrator.planning.plan import Plan, make_plan
from orchestrator.planning.vocabulary import vocabulary
from orchestrator.planning.warnings import Verdict, judge
from orchestrator.run_directory.checkpoints.commit_markers import Commit
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import LoadedJob


class PlannedJob(NamedTuple):
    """A job, what it will do and take, and the verdict, whose problems have their places."""

    plan: Plan
    forecast: Forecast
    verdict: Verdict
    cluster: ClusterSpec | None

    def require(self, *, strict: bool = False) -> None:
        """Raises SpecError with everything that stops the job, and where it is strict with the warnings."""
        problems = [*self.verdict.stops, *(self.verdict.warnings if strict else ())]
        if problems:
            raise SpecError(problems=problems)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, as `orchestrator plan --json` prints it."""
        return {
            **self.plan.to_dict(),
            **self.forecast.to_dict(),
            "verdict": self.verdict.to_dict(),
            "cluster": self.cluster.name if self.cluster else None,
        }

    def rows(self) -> list[tuple[str, str]]:
        """What it would do and take, a line for each aspect."""
        cluster = [("cluster", cluster_line(self.plan.job, self.cluster))] if self.cluster is not None else []
        return [*describe(self.plan), *cluster, *forecast_rows(self.plan, self.forecast)]

    def __str__(self) -> str:
        lines = [f"  {label:<13}{text}" for label, text in self.rows()]
        return "\n".join([self.plan.job.name, *lines, *verdict_lines(self.verdict)])

    def _repr_html_(self) -> str:
        """How a notebook shows it."""
        from html import escape  # its table of entities takes long to import

        cells = "".join(f"<tr><th>{escape(label)}</th><td>{escape(text)}</td></tr>" for label, text in self.rows())
        said = "\n".join(verdict_lines(self.verdict))
        return f"<table><caption>{escape(self.plan.job.name)}</caption>{cells}</table><pre>{escape(said)}</pre>"


def judge_files(
    files: Sequence[Path], overrides: Sequence[str] | None, cluster: str | None, gpu: str | None
) -> PlannedJob:
    """Load a job and judge it. Raises SpecError when it cannot be planned at all."""
    named = TargetOptions(cluster, gpu)
    return judge_named(load_named(files, overrides or [], named), named)


def judge_named(loaded: LoadedJob, named: TargetOptions) -> PlannedJob:
    """Judge a job that was loaded with these names, for its cluster, if there is one, and for what can be made of its
    checkpoints. Raises SpecError when it cannot be planned at all.
    """
    judged = judge_loaded(loaded, named, starting=False)
    warnings = (*judged.verdict.warnings, *export_warnings(loaded.job))
    return judged._replace(verdict=judged.verdict._replace(warnings=_in_order(loaded, warnings)))


def judge_loaded(
    loaded: LoadedJob,
    named: TargetOptions,
    *,
    starting: bool = True,
    runs_dir: Path | None = None,
    saved: Sequence[Commit] = (),
) -> PlannedJob:
    """Judge a job that is loaded. Raises SpecError when it cannot be planned at all, or not for what is named.

    Where the job is `starting`, data and a tokenizer that are not here stop it. `runs_dir` and `saved` as for `judge`.
    """
    profile, misnamed = profile_of(loaded.job, named)
    misnamed += gpu_problems(loaded.job, named, profile)
    cluster = profile.value if profile is not None else None
    plan, problems = _planned(loaded, cluster, starting)
    if plan is None or misnamed:
        raise _placed(loaded, [*misnamed, *problems])
    taken = forecast(plan, cluster)
    if named.gpu is not None:
        taken = taken._replace(choice=taken.choice._replace(how=GPU_OPTION))
    verdict = judge(plan, taken, cluster, problems, runs_dir, saved)
    return PlannedJob(plan, taken, _placed_verdict(loaded, verdict), cluster)


def judge_here(loaded: LoadedJob, plan: Plan, runs_dir: Path, saved: Sequence[Commit] = ()) -> Verdict:
    """The verdict on a job that is about to start on this machine, whatever cluster it names."""
    return _placed_verdict(loaded, judge(plan, forecast(plan), None, (), runs_dir, saved))


def _placed_verdict(loaded: LoadedJob, verdict: Verdict) -> Verdict:
    return verdict._replace(stops=_in_order(loaded, verdict.stops), warnings=_in_order(loaded, verdict.warnings))


def profile_named(loaded: LoadedJob, named: TargetOptions) -> ClusterSpec | None:
    """The profile that is named. Raises SpecError where a name is wrong, of the GPU too."""
    profile, problems = profile_of(loaded.job, named)
    problems += gpu_problems(loaded.job, named, profile)
    if problems:
        raise _placed(loaded, problems)
    return profile.value if profile is not None else None


def plan_loaded(loaded: LoadedJob) -> Plan:
    """Plan a job that is about to start here. Raises SpecError with the place of each problem."""
    plan, problems = _planned(loaded, None, starting=True)
    if plan is None or problems:
        raise _placed(loaded, problems)
    return plan


def vocabulary_size_of(loaded: LoadedJob) -> int:
    """Tokens before padding. Raises SpecError with the place of each problem."""
    try:
        return vocabulary(loaded.job).size
    except SpecError as error:
        raise _placed(loaded, error.problems) from error


def _planned(loaded: LoadedJob, cluster: ClusterSpec | None, starting: bool) -> tuple[Plan | None, list[Problem]]:
    """The plan, if there can be one, and what is wrong: what `cluster` cannot give, data that does not fit the job."""
    problems = [] if cluster is None else what_is_refused(loaded.job, cluster)
    plan = None
    try:
        plan = make_plan(loaded.job)
    except SpecError as error:
        problems = [*error.problems, *problems]
    data = loaded.job.data
    data_sets = list(plan.data_sets) if plan is not None else survey_job(loaded.job)
    found = data_problems(data, data_sets, needed=starting)
    if starting and not data.random_tokens:
        found += task_problems(loaded.job.task)
    told = {problem.code for problem in problems} & {UNREADABLE_TOKENIZER}
    problems += [each for each in found if each.code not in told]
    problems += export_problems(loaded.job)
    problems += plugin_problems(loaded.job, data_sets)
    problems += _template_problems(loaded.job, cluster)
    return plan, problems


def _template_problems(job: JobSpec, cluster: ClusterSpec | None) -> list[Problem]:
    """Those of the user's own templates, of which most jobs have none: what renders them takes long to import."""
    if not (job.launch.template or job.launch.slurm_template or (cluster and cluster.template)):
        return []
    from orchestrator.launch.scripts.templates import template_problems

    return template_problems(job, cluster)


def _placed(loaded: LoadedJob, problems: Iterable[Problem]) -> SpecError:
    return SpecError(problems=list(_in_order(loaded, problems)))


def _in_order(loaded: LoadedJob, problems: Iterable[Problem]) -> tuple[Problem, ...]:
    return tuple(loaded.places.ordered([loaded.places.placed(problem) for problem in problems]))
