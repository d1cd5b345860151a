"""Which pipeline stages hold a T5's encoder and which its decoder, and how many layers each."""

from __future__ import annotations

from typing import Literal

from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.model import ModelSpec

Half = Literal["encoder", "decoder"]
HALVES: tuple[Half, Half] = ("encoder", "decoder")


def stages_of(half: Half, degrees: ParallelismSpec) -> range:
    """The pipeline stages of one half, in order; one stage holds both."""
    stages = degrees.pipeline_model_parallel_size
    if stages == 1:
        return range(1)
    split = degrees.pipeline_model_parallel_split_rank or stages // 2
    return range(split) if half == "encoder" else range(split, stages)


def layers_of(half: Half, model: ModelSpec) -> int:
    """Layers of one half."""
    return model.encoder_layers if half == "encoder" else model.decoder_layers


def layers_of_stage(half: Half, stage: int, model: ModelSpec, degrees: ParallelismSpec) -> int:
    """Layers of one half that one stage holds; 0 where it holds none."""
    stages = stages_of(half, degrees)
    return layers_of(half, model) // max(len(stages), 1) if stage in stages else 0
