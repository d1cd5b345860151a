"""Run a command as on a shared disk that takes 5 ms for each question about a folder:
`python -m support.slow_disk FOLDER WORDS…`.

The last line on stderr has seconds, those of the processor among them, and how many questions there were.
"""

from __future__ import annotations

import os
import sys
import time
from itertools import count
from typing import Any

import pytest

from orchestrator.cli.main import main
from support.refusals import before

SECONDS = 0.005
_questions = count()


def _wait(path: Any = ".", *rest: Any, dir_fd: int | None = None, **options: Any) -> None:
    if dir_fd is not None or (isinstance(path, str | os.PathLike) and os.fspath(path).startswith(sys.argv[1])):
        next(_questions)
        time.sleep(SECONDS)


if __name__ == "__main__":
    for name in ("stat", "lstat", "open", "listdir", "scandir", "access"):
        before(pytest.MonkeyPatch(), f"os.{name}", _wait)
    begun, processor = time.perf_counter(), time.process_time()
    code = main(sys.argv[2:])
    seconds = time.perf_counter() - begun, time.process_time() - processor
    print("\n{:.3f} {:.3f} {}".format(*seconds, next(_questions)), file=sys.stderr)
    sys.exit(code)
