"""How speed is counted."""

from typing import Literal

from orchestrator.fields.base import Section


class ThroughputSpec(Section):
    """How speed is counted in metrics, `bench` and `plan`. It does not affect the training."""

    flops: Literal["full", "causal"] = "full"
    """How the model's FLOPs are counted, for TFLOP/s and MFU: `full` counts all of attention's scores; `causal` half of
    them, as Megatron-LM does, so that figures can be compared; the full count is then shown too."""
