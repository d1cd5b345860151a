"""`python -m orchestrator.launch.processes.parent_death_signal PARENT COMMAND…`: become COMMAND, which gets SIGTERM
when PARENT dies.

A program of its own rather than code between fork and exec, which is not safe in a process with threads.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent (Linux only; elsewhere nothing is tied), then replace it by the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before we were tied
        sys.exit(128 + signal.SIGTERM)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
