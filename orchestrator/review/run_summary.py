"""One run in a row of a table: what it is, how far it is, how it does. `summary` reads it, and the index keeps it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from orchestrator.launch.states.state_words import State
from orchestrator.run_directory.events.labels import Labels
from orchestrator.run_directory.rundir import RunDir


@dataclass(frozen=True)
class RunSummary:
    """A run as a table shows it. Times in seconds since the epoch, `eta` and `remaining` in seconds.

    `spec`: the resolved spec by dotted keys, each value as text (a list as JSON); empty where it cannot be read, and
    `problem` says why. `spark`: losses from the first to the last, thinned out. `values`: the last of each metric, of
    a speed the median of its latest steps; `spreads`: how far the speeds of these steps lie from each other.
    `world_size`: how many processes train it, mostly one for each GPU; `layout` says how: `TP2 PP4 DP8`.
    """

    run: RunDir
    state: State
    cause: str | None
    message: str | None
    description: str
    iteration: int
    train_iters: int | None
    values: Mapping[str, float]
    spark: tuple[float, ...]
    goodput: float | None
    eta: float | None
    created: float | None
    launched: float | None
    ended: float | None
    launches: int
    user: str | None
    sweep: str | None
    cell: str | None
    job_id: str | None
    spec: Mapping[str, str]
    problem: str | None = None
    lost_steps: int | None = None
    """Steps that a resume did again; found out with the goodput."""
    world_size: int | None = None
    layout: str = ""
    from_run: str | None = None
    """The run (`name/run_id`) that its first weights came from, and the iteration there."""
    from_iteration: int | None = None
    spreads: Mapping[str, float] = field(default_factory=dict)
    checkpoints: tuple[int, ...] = ()
    """The iterations of its committed checkpoints, oldest first."""
    labels: Labels = field(default_factory=Labels)
    tags: tuple[str, ...] = ()
    """Those that people gave it, and those of its spec, `key:value`."""
    disk_bytes: int | None = None
    """What it takes of the disk; of one that may still change only its committed checkpoints, by their markers."""
    unsent: int = 0
    """Bytes of its measurements that MLflow lacks, of a run that has ended."""
    record: str = "{}"
    """Its status for programs, as JSON: rarely asked for, and small as a text."""
    is_readable: bool = True
    """Whether more is known of it than why it cannot be read; `message` says that then."""
    is_settled: bool = False
    """Whether nothing but a change of its files can make it another."""

    @property
    def title(self) -> str:
        """The name that it is shown by."""
        return self.labels.name or self.run.name

    @property
    def shown_label(self) -> str:
        """`name/run_id`, by its shown name."""
        return f"{self.title}/{self.run.run_id}"

    @property
    def names(self) -> tuple[str, ...]:
        """All that it is found by: as it is shown, its folder's, and what it was called before."""
        return tuple(dict.fromkeys((self.title, self.run.name, *self.labels.former_names)))

    @property
    def key(self) -> str:
        """`name/run_id`, which is the same in every view of a runs folder."""
        return f"{self.run.name}/{self.run.run_id}"

    @property
    def is_active(self) -> bool:
        """Whether it works, or will do so without anybody's doing."""
        return self.state in ("running", "stopping", "queued")

    @property
    def trains(self) -> bool:
        """Whether it is there to be trained, and not for the weights that were put into it."""
        return self.state != "imported"

    @property
    def progress(self) -> float | None:
        """From 0 to 1; None where the number of steps is not known, or there are to be none."""
        return min(1.0, self.iteration / self.train_iters) if self.train_iters and self.trains else None
