"""Being a guest beside a training: it comes first, and this process ends with it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

_POLL_SECONDS = 0.25
_LOWER_PRIORITY = 10


def live_beside(parent: int, draft: Path) -> None:
    """Take a lower priority, and end this process once `parent` is gone, with what it was writing in `draft`."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # meant for the ranks, which end this process when they end
    os.nice(_LOWER_PRIORITY)
    threading.Thread(target=_watch, args=(parent, draft), daemon=True).start()


def _watch(parent: int, draft: Path) -> None:
    while os.getppid() == parent:
        time.sleep(_POLL_SECONDS)
    shutil.rmtree(draft, ignore_errors=True)
    os._exit(1)
