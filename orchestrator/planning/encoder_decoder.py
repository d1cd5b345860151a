"""The halves of a T5 as models of their own, which the models of time and memory know already."""

from __future__ import annotations

from orchestrator.spec.encoder_decoder import HALVES, Half, layers_of, layers_of_stage
from orchestrator.spec.job import JobSpec


def half_job(job: JobSpec, half: Half) -> JobSpec:
    """A T5's encoder as a BERT, its decoder as a GPT, which lacks the attention to the encoder."""
    model = job.model
    is_encoder = half == "encoder"
    changes = {
        "architecture": "bert" if is_encoder else "gpt",
        "seq_length": model.seq_length if is_encoder else model.sample_length - model.seq_length,
        "num_layers": layers_of(half, model),
        "decoder_seq_length": None,
    }
    return job.changed(model=changes)


def halves_of_stage(job: JobSpec, stage: int) -> dict[Half, int]:
    """How many layers of each half a pipeline stage holds, of those halves that it has."""
    held = {half: layers_of_stage(half, stage, job.model, job.parallelism) for half in HALVES}
    return {half: layers for half, layers in held.items() if layers}
