"""Imported first by what needs MLflow: loads it quietly, and as fast as it can be loaded.

Without numpy, pandas, pyarrow and scipy, which MLflow imports where they are installed (mlflow-skinny has none of
them), for tables and models that nothing here gives it: a quarter of a follower's start.
"""

from __future__ import annotations

import orchestrator.tracking.quiet  # noqa: F401 (sets variables that mlflow reads when it is imported)

# isort: split
import importlib

from orchestrator.imports import staying, without

with staying(), without("numpy", "pandas", "pyarrow", "scipy"):
    importlib.import_module("mlflow.store.tracking.sqlalchemy_store")
