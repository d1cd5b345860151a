"""Text and logits from a checkpoint: `load` for Python programs, `python -m orchestrator.inference` for the command.

Under torchrun with as many processes as the network is split over, every process calls the same functions.
"""

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.inference.model import Model, load

__all__ = ["Model", "load"]
