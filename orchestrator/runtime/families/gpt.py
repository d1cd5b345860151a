"""GPT: a decoder that predicts the next token."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.layers.choice import block_spec_function
from orchestrator.runtime.process_groups import Ranks, get_tensor_model_parallel_rank
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.spec.job import JobSpec
from orchestrator.spec.runtime import Layers


class GPT(GPTModel):  # type: ignore[misc]
    """megatron-core's GPT whose padded vocabulary entries never get any probability.

    So the loss does not depend on how far the vocabulary is padded, which changes with the tensor-parallel size.
    """

    def __init__(self, config: TransformerConfig, spec: Any, *, valid_vocab_size: int, **kwargs: Any) -> None:
        super().__init__(config, spec, **kwargs)
        self.valid_vocab_size = valid_vocab_size

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, [b, s], from labels [b, s] and this rank's part of the logits [s, b, v]."""
        local = logits.size(-1)
        first_padding = self.valid_vocab_size - get_tensor_model_parallel_rank() * local
        if first_padding < local:
            logits[..., max(first_padding, 0) :] = torch.finfo(logits.dtype).min
        loss: torch.Tensor = super().compute_language_model_loss(labels, logits)
        return loss


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> GPT:
    """Model chunk `index` of this rank."""
    model = job.model
    vp_stage = index if job.parallelism.virtual_pipeline_model_parallel_size is not None else None
    return GPT(
        config,
        block_spec_function(layers)(config, vp_stage),
        valid_vocab_size=vocabulary.size,
        vocab_size=vocabulary.padded_size,
        max_sequence_length=model.positions,
        pre_process=ranks.is_pre_process(index),
        post_process=ranks.is_post_process(index),
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        position_embedding_type=model.position_embedding_type,
        rotary_percent=model.rotary_percent,
        rotary_base=model.rotary_base,
        vp_stage=vp_stage,
    )


def train_step(job: JobSpec) -> NextToken:
    """Cross entropy of the next token."""
    return NextToken()
