"""MLflow without noise, telemetry or long waits. Imported before mlflow, which reads its variables on import.

What a person sets in the environment counts, except that nothing is ever reported to MLflow's makers.
"""

from __future__ import annotations

import logging
import os
import warnings

os.environ |= {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
# Standard output is for programs: a line for each run (see program.py).
os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    # The follower tries again by itself, with what has been measured by then.
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    # No open handle on a sqlite file between calls: a store that was removed and made anew is found again.
    "MLFLOW_SQLALCHEMYSTORE_POOLCLASS": "NullPool",
}.items():
    os.environ.setdefault(_name, _value)

# The messages of libraries may hold addresses with credentials; what matters of them is raised as well.
logging.disable(logging.CRITICAL)
warnings.simplefilter("ignore")
