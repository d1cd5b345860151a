"""Where a job runs."""

from __future__ import annotations

from pydantic import Field

from orchestrator.spec.base import Section
from orchestrator.spec.values import Positive, ReferringText, Text, VariableName


class LaunchSpec(Section):
    """Where the job runs. On the CPU a 'GPU' is a process."""

    nodes: Positive = 1
    """Machines."""
    gpus_per_node: Positive | None = None
    """Processes per machine; TP · PP · CP · DP / nodes by default."""
    runs_dir: Text = "runs"
    """Folder of run directories, relative to where the command is started."""
    env: dict[VariableName, ReferringText] = Field(default_factory=dict)
    """Environment of every process. Values may hold ${env:NAME}."""
    python: Text | None = None
    """Python of the training processes; the one that runs the command by default."""
    template: Text | None = None
    """A launch template of your own instead of the shipped one."""
