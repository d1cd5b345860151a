"""Imported first by what needs MLflow: loads it quietly, and as fast as it can be loaded.

Without numpy, pandas, pyarrow and scipy, which MLflow imports where they are installed, for tables and models that
nothing here gives it: a quarter of a follower's start.
"""

from __future__ import annotations

import orchestrator.tracking.mlflow.environment  # noqa: F401 (sets variables that mlflow reads when it is imported)

# isort: split
import importlib

from orchestrator.imports import staying, without

_STORE = "mlflow.store.tracking.sqlalchemy_store"
with staying():
    try:
        with without("numpy", "pandas", "pyarrow", "scipy"):
            importlib.import_module(_STORE)
    except ImportError:  # a version that cannot do without one of them is slower, and works
        importlib.import_module(_STORE)

# A database that is away is asked once, not for 100 s: the follower tries again by itself, as with a server. MLflow has
# a variable for a server's retries (environment.py), and none for a database's.
vars(importlib.import_module("mlflow.store.db.utils"))["MAX_RETRY_COUNT"] = 1
