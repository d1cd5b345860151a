"""Templates of the user's own, looked at before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path

from orchestrator.errors import Problem, UserError
from orchestrator.launch.executor_protocol import Place, Start, executor_of
from orchestrator.launch.scripts.render import render
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.cluster import ClusterSpec
from orchestrator.spec.job import JobSpec


def template_problems(job: JobSpec, cluster: ClusterSpec | None) -> list[Problem]:
    """What is wrong with templates of the user's own: found by rendering them, for a run that there is not yet."""
    run = RunDir(Path.cwd() / job.name / "run")
    problems, mend = [], "fix it, or leave it out to use the shipped one"
    if job.launch.template is not None:
        try:
            render(job, run_dir=run.path, python=sys.executable)
        except UserError as error:
            problems.append(Problem(str(error), ("launch.template",), mend, code="template"))
    if cluster is None or (job.launch.slurm_template or cluster.template) is None:
        return problems
    path = "launch.slurm_template"
    if job.launch.slurm_template is None:
        path, mend = "launch.cluster", f"fix `template` in the profile {cluster.name}"
    try:
        executor_of(job).render(Start(job, Place(run, Path.cwd(), sys.executable), cluster))
    except UserError as error:
        problems.append(Problem(str(error), (path,), mend, code="template"))
    return problems
