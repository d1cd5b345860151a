"""A step that is repeated, as one CUDA graph: the host then starts one thing for a token instead of hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

_WARM_UPS = 3
"""Steps that run as they are: libraries allocate and compile in the first ones, which no graph can hold."""


class GraphedStep:
    """Calls a step that reads and writes the same memory every time.

    With `captures` it does so as a graph from the fourth call on; it must then not wait for the GPU, nor talk to other
    processes.
    """

    def __init__(self, step: Callable[[], None], *, captures: bool) -> None:
        self._step, self._captures = step, captures
        self._calls = 0
        self._graph: Any = None

    def __call__(self) -> None:
        """Do the step."""
        self._calls += 1
        if not self._captures:
            self._step()
        elif self._graph is not None:
            self._graph.replay()
        elif self._calls <= _WARM_UPS:
            cuda: Any = torch.cuda  # its classes have no types
            side, usual = cuda.Stream(), cuda.current_stream()
            side.wait_stream(usual)
            with cuda.stream(side):
                self._step()
            usual.wait_stream(side)
        else:
            graph = torch.cuda.CUDAGraph()
            # What other threads ask CUDA meanwhile (NCCL's looks after its work) is none of this graph's business.
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self._step()
            self._graph = graph
            graph.replay()
