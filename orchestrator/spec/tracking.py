"""Where metrics go."""

from __future__ import annotations

from pydantic import Field

from orchestrator.spec.base import Section
from orchestrator.spec.values import Positive, ReferringText, Text


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
    log_interval: Positive = 1
    """Steps between metric lines."""
