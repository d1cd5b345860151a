"""Sending a run and its sweep to MLflow."""
