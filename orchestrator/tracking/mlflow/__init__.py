"""The way of a run and of its sweep into MLflow."""
