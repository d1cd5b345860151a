"""`python -m orchestrator.tracking`: see program.py."""

from __future__ import annotations

import sys

from orchestrator.imports import staying

try:
    with staying():
        from orchestrator.tracking.program import main
except ModuleNotFoundError as error:
    if error.name != "mlflow":
        raise
    sys.exit("nothing is sent to MLflow: mlflow is not installed (pip install 'megatron-orchestrator[train]')")

if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
