"""Text and logits from a checkpoint: `load` for Python programs, `python -m orchestrator.inference` for the command.

If the network is split over several processes, torchrun starts them all, and each one calls the same functions.
"""

import warnings

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core

with warnings.catch_warnings():
    # megatron-core warns that it found neither Transformer Engine nor apex; neither is used here.
    warnings.simplefilter("ignore")
    from orchestrator.inference.images import IMAGE
    from orchestrator.inference.model import Model, load

__all__ = ["IMAGE", "Model", "load"]
