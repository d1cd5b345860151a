"""Run a command as on a shared disk that takes 5 ms for each question about a folder: `slow_disk.py FOLDER WORDS…`.

The last line on stderr has seconds, those of the processor among them, and how many questions there were.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from orchestrator.cli.main import main

SECONDS = 0.005
_questions = count()


def _slowly(ask: Callable[..., Any], folder: str) -> Callable[..., Any]:
    def asked(path: Any = ".", *rest: Any, dir_fd: int | None = None, **options: Any) -> Any:
        if dir_fd is not None or (isinstance(path, str | os.PathLike) and os.fspath(path).startswith(folder)):
            next(_questions)
            time.sleep(SECONDS)
        return ask(path, *rest, **({} if dir_fd is None else {"dir_fd": dir_fd}), **options)

    return asked


if __name__ == "__main__":
    for name in ("stat", "lstat", "open", "listdir", "scandir", "access"):
        setattr(os, name, _slowly(getattr(os, name), sys.argv[1]))
    begun, processor = time.perf_counter(), time.process_time()
    code = main(sys.argv[2:])
    seconds = time.perf_counter() - begun, time.process_time() - processor
    print("\n{:.3f} {:.3f} {}".format(*seconds, next(_questions)), file=sys.stderr)
    sys.exit(code)
