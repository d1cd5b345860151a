"""The chosen layout as a YAML overlay: what `orchestrator run job.yaml overlay.yaml` puts over the job."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from orchestrator.fields.formatting import as_yaml
from orchestrator.spec.job import JobSpec
from orchestrator.tuning.layout import KEYS, Layout, settings_of
from orchestrator.version import __version__

MARK = "# Written by `orchestrator tune`"
"""How every overlay begins, so that one is known for one."""

WRITTEN = frozenset(
    [
        *KEYS,
        *("parallelism.data_parallel_size", "batch.global_batch_size", "batch.num_micro_batches"),
        *("launch.nodes", "launch.gpus_per_node"),
    ]
)
"""The keys that every overlay has."""


def overlay_text(layout: Layout, job: JobSpec, told: Sequence[str], gpu: str | None = None) -> str:
    """The overlay of `layout` for `job`, which has its machines and its global batch; `told` goes above it as
    comments.
    """
    lines = [f"{MARK} {__version__}.", *(f"# {line}" for line in told)]
    for section, values in overlay_settings(layout, job, gpu).items():
        lines += ["", f"{section}:", *(f"  {key}: {_value(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def overlay_settings(layout: Layout, job: JobSpec, gpu: str | None = None) -> dict[str, dict[str, Any]]:
    """What an overlay says, by section and key.

    Every setting that the tuner searched is in it, so that it means the same over any version of the job; None takes
    back what follows from others.
    """
    settings = settings_of(layout)
    batch = {**settings["batch"], "global_batch_size": job.global_batch_size, "num_micro_batches": None}
    launch = {"nodes": job.launch.nodes, "gpus_per_node": job.launch.gpus_per_node}
    return {
        "parallelism": settings["parallelism"],
        "batch": batch,
        "runtime": settings["runtime"],
        "launch": launch if gpu is None else {**launch, "gpu": gpu},
    }


def _value(value: Any) -> str:
    return "null" if value is None else as_yaml(value)
