"""How long a GPU takes for something, by its own clock."""

from __future__ import annotations

from collections.abc import Callable

import torch

from orchestrator.planning.hardware.devices import shipped


def fastest(run: Callable[[], object], times: int = 5, each: int = 1) -> float:
    """Seconds of the fastest of several runs, by themselves or so many (`each`) in a row, which hides how long the host
    takes to start one; the first ones compile.
    """
    seconds = []
    for _ in range(times):
        began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        began.record()
        for _ in range(each):
            run()
        ended.record()
        ended.synchronize()
        seconds.append(began.elapsed_time(ended) / 1e3 / each)
    return min(seconds)


def fastest_in_graph(run: Callable[[], object], each: int = 10) -> float:
    """The same of so many in a row in a CUDA graph, beside which the host takes no time."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(each):
            run()
    return fastest(graph.replay) / each


def memory_bandwidth() -> float:
    """Bytes per second of this GPU, by its datasheet."""
    device = shipped(torch.cuda.get_device_name())
    assert device is not None, f"no description of {torch.cuda.get_device_name()}"
    return device.memory_bandwidth
