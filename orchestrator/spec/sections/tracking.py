"""Where metrics go."""

import re
from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag
from orchestrator.fields.values import After, NonNegative, Plain, PluginName, Positive, ReferringText, Text, empty_dict

_SHORTEST_INTERVAL = 0.1
_ADDRESS = re.compile(r"https?://[^/@\s]+(/\S*)?")


def _check_address(text: str) -> str:
    if _ADDRESS.fullmatch(text) is None:
        raise ValueError("an address is like https://dashboard.example.org:8080, without a user or password")
    return text


def _check_interval(seconds: float) -> float:
    if 0 < seconds < _SHORTEST_INTERVAL:
        raise ValueError(f"at least {_SHORTEST_INTERVAL:g} seconds, or 0 for no measurements")
    return seconds


Address = Annotated[Text, After(_check_address)]
"""An address of web pages, without credentials."""


class WandbSpec(Section):
    """A run of Weights & Biases. Its key comes from WANDB_API_KEY or `wandb login`, its server from WANDB_BASE_URL."""

    project: Annotated[Text | None, AlsoCalled("wandb_project")] = None
    """The project; `tracking.experiment`, or the job's name by default."""
    entity: Annotated[Text | None, AlsoCalled("wandb_entity")] = None
    """The user or team it belongs to; that of the API key by default."""
    mode: Literal["online", "offline"] = "online"
    """`offline` writes to `wandb` in the run directory only; `wandb sync` uploads that later."""


class TrackingSpec(Section):
    """Metrics are written to the run directory first and forwarded from there."""

    mlflow: bool = True
    """Send to MLflow."""
    uri: Annotated[ReferringText | None, AlsoCalled("tracking_uri mlflow_tracking_uri")] = None
    """MLflow tracking server; a sqlite store in the runs folder by default. May contain ${env:NAME}."""
    experiment: Annotated[Text | None, AlsoCalled("experiment_name")] = None
    """MLflow experiment; the job's name by default."""
    tags: dict[Text, Text] = Field(default_factory=empty_dict)
    """Tags of the MLflow run."""
    dashboard_url: Annotated[Address | None, HashedIfChanged()] = None
    """Address of the dashboard that shows these runs: each MLflow run links to its page there.
    By default $ORCHESTRATOR_DASHBOARD_URL in the environment of the sender."""
    system_metrics_seconds: Annotated[Annotated[NonNegative, After(_check_interval)] | None, HashedIfChanged()] = 10.0
    """Seconds between measurements of each node's processors, memory, disk, network and GPUs, at least 0.1;
    0 or null for none."""
    tensorboard: Annotated[bool, HashedIfChanged(), AlsoCalled(tensorboard_dir="true")] = False
    """Write TensorBoard's event files too, to `tensorboard` in the run directory."""
    wandb: Annotated[WandbSpec | None, HashedIfChanged()] = None
    """Send to Weights & Biases too."""
    plugins: Annotated[dict[PluginName, dict[str, Plain]], HashedIfChanged()] = Field(default_factory=empty_dict)
    """Trackers of other packages, each with its options: `{csv: {folder: curves}}`. The name is that of an entry point
    in the group `orchestrator.trackers`."""
    log_interval: Annotated[Positive, AlsoCalled("logging_steps log_every_n_steps"), MegatronFlag(default=100)] = 1
    """Steps between metric lines. Losses, gradient norm, step time and rates of a line are means over its steps. The
    learning rate, the loss scale and counts are those of the last step."""

    @property
    def trackers(self) -> tuple[str, ...]:
        """Where metrics are sent on to."""
        there = {"mlflow": self.mlflow, "tensorboard": self.tensorboard, "wandb": self.wandb is not None}
        return (*(name for name, wanted in there.items() if wanted), *self.plugins)
