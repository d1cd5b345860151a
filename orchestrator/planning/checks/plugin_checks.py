"""What a job names that other packages have, beside what its model is made of: whether it is there, and takes the
options that it is given. No rule of the spec, as it has to do with what is installed where a job starts.
"""

from __future__ import annotations

from orchestrator import plugins
from orchestrator.errors import Problem
from orchestrator.spec.job import JobSpec


def plugin_problems(job: JobSpec) -> list[Problem]:
    """Everything that is wrong with them. Imports those that the job names, and nothing where it names none."""
    refused = {
        f"tracking.plugins.{name}": plugins.refused(plugins.TRACKERS, name, options)
        for name, options in job.tracking.plugins.items()
    }
    return [Problem(why, (path,), code="plugin_refused") for path, why in refused.items() if why is not None]
