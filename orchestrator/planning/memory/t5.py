"""What the layers of a T5 keep beyond those of a BERT and a GPT, in bytes of one rank and one micro-batch."""

from __future__ import annotations

from orchestrator.models.blocks.base import FP32, RankShape, norm_statistics
from orchestrator.models.blocks.grouped_query_attention.memory import head_sizes
from orchestrator.spec.encoder_decoder import Half
from orchestrator.spec.job import JobSpec


def kept_beyond(job: JobSpec, half: Half, sizes: dict[Half, RankShape]) -> int:
    """Of one layer: the scores' bias where positions are relative, and of the decoder the attention to the encoder.

    The bias is kept with the padding of the encoder's input, for each sample and head; recomputed attention keeps none.
    """
    selective = job.runtime.recompute_granularity == "selective"
    own, kept = sizes[half], 0
    heads = head_sizes(job.model, own)
    if job.model.position_embedding_type == "relative" and not selective:
        samples = own.tokens // own.positions if half == "encoder" else 1
        kept += samples * heads.heads * own.positions * own.positions * own.width
    if half == "decoder":
        kept += 2 * own.stream + own.own_tokens * norm_statistics(job.model)  # norm
        # Queries, output, and keys and values of the encoder's tokens.
        kept += 2 * heads.query + 2 * head_sizes(job.model, sizes["encoder"]).key
        kept += 0 if selective else own.tokens * heads.heads * FP32
        kept += own.own_tokens * own.hidden if job.model.hidden_dropout > 0 else 0
    return kept
