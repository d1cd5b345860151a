"""What variants of the decoder hold outside their layers, in bytes of one rank."""

from __future__ import annotations

from orchestrator.models.blocks.base import RankShape
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


def masks(job: JobSpec, sizes: RankShape, layers: Layers) -> int:
    """Masks of attention, which all layers of a rank share: a byte for a pair of tokens, a score of each head's for
    ALiBi; a score for each sequence of a micro-batch, which its passes in flight keep, where these differ.
    """
    model = job.model
    pairs = sizes.positions * model.seq_length
    windowed = model.sliding_window is not None and model.sliding_window < model.seq_length
    in_flight = job.parallelism.pipeline_model_parallel_size * job.parallelism.num_model_chunks
    of_sequences = pairs * job.batch.micro_batch_size * in_flight * sizes.width
    if job.masks_attention:
        # A score for each sequence of a micro-batch, which its passes in flight keep, and the usual mask; layers with a
        # window have a mask of their own.
        return pairs + (2 if windowed else 1) * of_sequences
    if model.position_embedding_type == "alibi":
        return pairs * (model.num_attention_heads // sizes.tp) * sizes.width
    if windowed and model.family.is_masked_lm:  # the padding of its samples differs
        return of_sequences if layers == "torch" else 0
    if model.keeps_scores(layers, in_parts=job.parallelism.context_parallel_size > 1):
        return pairs * (2 if model.window_attn_skip_freq is not None and windowed else 1)
    return pairs if windowed and layers == "torch" else 0


def capped_logits(job: JobSpec, sizes: RankShape, vocab: int) -> int:
    """What the cap of the logits keeps, over `vocab` tokens of the vocabulary."""
    return sizes.tokens * vocab * sizes.width if job.model.final_logit_softcapping is not None else 0
