"""A program for `RankStarter`: PORT RUN_DIR [PORT RUN_DIR...] are trained one after the other in the same processes.

A job after the first takes half of what it takes in processes of its own: what Python and torch do when a function is
called for the first time is done. The first that fails ends the processes, as it does by itself.
"""

from __future__ import annotations

import os
import sys

from orchestrator.runtime.__main__ import main as train


def main() -> int:
    """The exit code of the last one."""
    words = iter(sys.argv[1:])
    for port, run_dir in zip(words, words, strict=True):
        # Of its own for each: a rank may be here while the first one still ends what was listened to at the last one's.
        os.environ["MASTER_PORT"] = port
        sys.argv[1:] = [run_dir]
        if code := train():
            return code
    return 0
