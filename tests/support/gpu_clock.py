"""How long a GPU takes for something, by its own clock."""

from __future__ import annotations

from collections.abc import Callable

import torch


def fastest(run: Callable[[], object], times: int = 5) -> float:
    """Seconds of the fastest of several runs, each alone; the first ones compile."""
    seconds = []
    for _ in range(times):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        run()
        ended.record()
        ended.synchronize()
        seconds.append(began.elapsed_time(ended) / 1e3)
    return min(seconds)
