"""Where metrics go."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

from orchestrator.spec.base import Section
from orchestrator.spec.values import NonNegative, Positive, ReferringText, Text

_ADDRESS = re.compile(r"https?://[^/@\s]+(/\S*)?")


def _check_address(text: str) -> str:
    if _ADDRESS.fullmatch(text) is None:
        raise ValueError("an address is like https://dashboard.example.org:8080, without a user or password")
    return text


Address = Annotated[Text, AfterValidator(_check_address)]
"""An address of web pages, without credentials."""


class TrackingSpec(Section):
    """Metrics are written to the run directory first and sent on to MLflow from there."""

    mlflow: bool = True
    """Send to MLflow."""
    uri: ReferringText | None = None
    """MLflow tracking server; a sqlite store in the runs folder by default. May hold ${env:NAME}."""
    experiment: Text | None = None
    """MLflow experiment; the job's name by default."""
    tags: dict[Text, Text] = Field(default_factory=dict)
    """Tags of the MLflow run."""
    dashboard_url: Address | None = None
    """Address of the dashboard that shows these runs: each MLflow run links to its page there.
    $ORCHESTRATOR_DASHBOARD_URL of who sends it by default."""
    system_metrics_seconds: NonNegative | None = 10.0
    """Seconds between measurements of each node's processors, memory, disk, network and GPUs; 0 or null for none."""
    log_interval: Positive = 1
    """Steps between metric lines."""
