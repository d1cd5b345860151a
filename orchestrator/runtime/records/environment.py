"""What trains, for every later reading of the run: versions of Python, the platform and the packages that matter."""

from __future__ import annotations

import json
import logging
import platform

from orchestrator.errors import is_full_disk
from orchestrator.kernel_selection.libraries import versions_of
from orchestrator.run_directory.lease import Lease
from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.tracking.description import ENVIRONMENT_FILE

_PACKAGES = (
    *("torch", "megatron-core", "transformer-engine", "flash-attn-4", "triton", "numpy", "tokenizers", "mlflow"),
    "megatron-orchestrator",
)

logger = logging.getLogger(__name__)


def record_environment(run: RunDir, lease: Lease) -> None:
    """Write environment.json; the newest start counts. A full disk is only warned about. Raises LeaseLost."""
    machine = {"python": platform.python_version(), "platform": platform.platform()}
    content = json.dumps(machine | versions_of(_PACKAGES), indent=1) + "\n"
    path = run.path / ENVIRONMENT_FILE
    if run.read_object(path) == json.loads(content):
        return
    lease.check()
    try:
        write_atomically(path, content)
    except OSError as error:
        if not is_full_disk(error):
            raise
        logger.warning("%s could not be written: %s", path, error)
