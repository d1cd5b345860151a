"""What a job names that other packages have, beside what its model is made of: whether it is there, and takes the
options that it is given. No rule of the spec, as it has to do with what is installed where a job starts.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from orchestrator import plugins
from orchestrator.data.source_survey import Source
from orchestrator.errors import Problem
from orchestrator.spec.job import JobSpec


def plugin_problems(job: JobSpec, data_sets: Iterable[Source]) -> list[Problem]:
    """Everything that is wrong with them. Imports those that the job needs, and nothing where it names none. What
    writes text is needed where that is missing and a data set is made from it.
    """
    refused = [
        (f"tracking.plugins.{name}", plugins.refused(plugins.TRACKERS, name, options))
        for name, options in job.tracking.plugins.items()
    ]
    if job.data.sources:
        read = {text for each in data_sets if each.is_to_be_made for text in each.entry.text or ()}
        refused += [
            ("data.sources", plugins.refused(plugins.DATA_SOURCES, source.plugin, source.options))
            for file, source in job.data.sources.items()
            if file in read and not Path(file).exists()
        ]
    return [Problem(why, (path,), code="plugin_refused") for path, why in refused if why is not None]
