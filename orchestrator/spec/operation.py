"""Everything about a run that is not the model, the data or the optimizer: saving, evaluating, tracking, launching."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.spec.base import Section
from orchestrator.spec.values import Duration, Positive


class CheckpointSpec(Section):
    """When checkpoints are written and which are kept. One is always written at the end and at a clean stop."""

    save_interval: Positive | None = None
    """Steps between checkpoints."""
    save_seconds: Duration | None = None
    """Seconds between checkpoints; both may be given."""
    keep_last: Positive = 3
    """How many of the newest are kept."""
    keep_every: Positive | None = None
    """Keep each checkpoint at a multiple of this many steps for good."""
    async_save: bool = True
    """Write to disk while training goes on."""


class EvaluationSpec(Section):
    """Loss and perplexity on the validation split."""

    eval_interval: Positive | None = None
    """Steps between evaluations; none by default."""
    eval_iters: Positive = 10
    """Global batches per evaluation."""
    eval_at_start: bool = False
    """Evaluate once before the first step."""
    eval_at_end: bool = True
    """Evaluate after the last step (when `eval_interval` is set)."""


class TrackingSpec(Section):
    """Metrics are written to the run directory first and sent on to MLflow from there."""

    mlflow: bool = True
    """Send to MLflow."""
    uri: str | None = None
    """MLflow tracking server; a sqlite store in the runs folder by default. May hold ${env:NAME}."""
    experiment: str | None = None
    """MLflow experiment; the job's name by default."""
    tags: dict[str, str] = Field(default_factory=dict)
    """Tags of the MLflow run."""
    log_interval: Positive = 1
    """Steps between metric lines."""


class LaunchSpec(Section):
    """Where the job runs. On the CPU a 'GPU' is a process."""

    nodes: Positive = 1
    """Machines."""
    gpus_per_node: Positive | None = None
    """Processes per machine; TP · PP · CP · DP / nodes by default."""
    runs_dir: str = "runs"
    """Folder of run directories, relative to where the command is started."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Environment of every process. Values may hold ${env:NAME}."""
    python: str | None = None
    """Python of the training processes; the one that runs the command by default."""
    template: str | None = None
    """A launch template of your own instead of the shipped one."""


class RuntimeSpec(Section):
    """How the training program behaves."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    """`auto` takes CUDA where there is one."""
    layers: Literal["auto", "torch", "transformer_engine"] = "auto"
    """Layer implementation; `auto` takes Transformer Engine on a GPU where it is installed."""
    seed: int = 1234
    """Seed of initial weights and dropout."""
    deterministic: bool = False
    """Ask for deterministic GPU kernels (slower); the CPU always is."""
    threads_per_rank: Positive | None = None
    """CPU threads per process (OMP_NUM_THREADS); 1 on the CPU with several ranks by default."""
    max_bad_steps: Positive = 10
    """Consecutive steps with a NaN or infinite loss or gradient, each skipped, before the job stops."""
    hang_timeout: Duration = 1800
    """A step that takes longer ends the job with every rank's stacks in the run directory."""
    recompute_granularity: Literal["selective", "full"] | None = None
    """Recompute activations in the backward pass: attention only, or whole layers."""
    recompute_method: Literal["uniform", "block"] | None = None
    """full: recompute every layer in groups (`uniform`) or only the first layers of a stage (`block`)."""
    recompute_num_layers: Annotated[int, Field(gt=0)] | None = None
    """full: layers per group (`uniform`) or per stage (`block`)."""
