"""The metric log of a run directory, and its way into MLflow."""
