"""Starting the program that converts checkpoints: what `checkpoint export`, `import` and `reshape` share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from orchestrator.errors import JobError, UserError

EXCHANGE_MODULE = "orchestrator.exchange"


def convert(*arguments: str) -> dict[str, Any]:
    """Run the program; its progress goes to our standard error. Raises what it says went wrong."""
    process = subprocess.run(
        [sys.executable, "-m", EXCHANGE_MODULE, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        # Libraries say what they lack when they are imported; progress alone is to be seen.
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    try:
        answer: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        answer = {"error": f"the conversion ended with exit code {process.returncode}", "exit_code": 1}
    if "error" in answer:
        raise (UserError if answer["exit_code"] == UserError.exit_code else JobError)(answer["error"])
    return answer


def size_of(done: Mapping[str, Any]) -> str:
    """How much was written, for people."""
    size = int(done["bytes"])
    return f"{size / 1e9:.2f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"
