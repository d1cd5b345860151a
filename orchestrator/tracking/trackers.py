"""Which trackers a run is sent to, and what each of them can do. A tracker's library is imported only where it is asked
for.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator import plugins
from orchestrator.errors import MissingDependency
from orchestrator.imports import staying
from orchestrator.run_directory.rundir import RunDir
from orchestrator.tracking.description import Ending, read_spec

if TYPE_CHECKING:
    from orchestrator.tracking.stream import Sink

LONGEST_WAIT_SECONDS = 10.0
"""Between two attempts while they fail, for what costs little to ask: a server that is back gets what it missed while
the run still trains.
"""


class Tracker(Protocol):
    """Sends one run to one place, pass by pass. What was sent, and how far, is kept in the run directory.

    `ending`: what is known of the run's end beside its files; `num_metrics`: values sent so far;
    `longest_wait_seconds`: between two attempts while they fail.
    """

    ending: Ending
    num_metrics: int
    longest_wait_seconds: float

    def send(self, lock_seconds: float = 5.0) -> None:
        """Send what is not sent yet. Raises OrchestratorError, and whatever the tracker's library raises."""

    def close(self) -> None:
        """No pass will follow in this process."""

    def explain(self, error: BaseException) -> str:
        """One line that says what went wrong, free of secrets."""

    def bytes_left(self) -> int:
        """How much of metrics.jsonl is not sent yet."""


class TrackerFactory(Protocol):
    """A tracker of another package: what its entry point in the group `orchestrator.trackers` leads to, a class. Its
    library is better imported in the constructor: `validate` imports the class to check the options.
    """

    Options: Callable[..., Any]
    """Takes the options of a spec as keywords. Raises ValueError or TypeError for those that are wrong."""

    def __call__(self, run: Path, options: Any) -> Sink:
        """Where the run in this folder is sent, with what `Options` made of its options."""


@dataclass(frozen=True)
class _Entry:
    """Where a tracker is made, by a function `tracker(run)`, and what it needs."""

    module: str
    title: str
    package: str
    extra: str


TRACKERS = {
    "mlflow": _Entry("orchestrator.tracking.mlflow.sender", "MLflow", "mlflow", "train"),
    "tensorboard": _Entry("orchestrator.tracking.event_files", "TensorBoard", "tensorboard", "tensorboard"),
    "wandb": _Entry("orchestrator.tracking.wandb_run", "Weights & Biases", "wandb", "wandb"),
}


def asked_for(run: RunDir) -> list[str]:
    """The trackers of a run's newest spec. Raises UserError when there is no spec that can be read."""
    tracking = read_spec(run).get("tracking") or {}
    asked = {
        "mlflow": bool(tracking.get("mlflow", True)),
        "tensorboard": bool(tracking.get("tensorboard", False)),
        "wandb": tracking.get("wandb") is not None,
    }
    return [*(name for name, wanted in asked.items() if wanted), *_options_of_plugins(run)]


def tracker_of(run: RunDir, name: str) -> Tracker:
    """The tracker of that name. Raises MissingDependency where its package is not installed, and whatever a package
    raises that cannot be imported.
    """
    if name not in TRACKERS:
        return _of_another_package(run, name)
    entry = TRACKERS[name]
    try:
        with staying():
            module = importlib.import_module(entry.module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != entry.package:
            raise
        raise MissingDependency(
            f"nothing is sent to {entry.title}: {entry.package} is not installed "
            f"(pip install 'megatron-orchestrator[{entry.extra}]')"
        ) from None
    made: Tracker = module.tracker(run)
    return made


def _of_another_package(run: RunDir, name: str) -> Tracker:
    from orchestrator.tracking.stream import Stream  # most runs are sent to MLflow alone

    factory: TrackerFactory = plugins.load(plugins.TRACKERS, name)
    options = factory.Options(**_options_of_plugins(run)[name])
    return Stream(run, f"tracker-{name}", factory(run.path, options))


def _options_of_plugins(run: RunDir) -> dict[str, dict[str, Any]]:
    """Of trackers of other packages, by their names."""
    return dict((read_spec(run).get("tracking") or {}).get("plugins") or {})


def broken(error: BaseException) -> str:
    """In one line, what a tracker's package raised that cannot be used."""
    return f"its package cannot be used: {' '.join(f'{type(error).__name__}: {error}'.split())}"
