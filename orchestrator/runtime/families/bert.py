"""BERT: an encoder that predicts masked tokens and, with its binary head, how a sample's two parts belong together."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.padding import hide_padding
from orchestrator.runtime.layers.choice import block_spec_function
from orchestrator.runtime.layers.masked_attention import MaskedAttention
from orchestrator.runtime.process_groups import Ranks
from orchestrator.runtime.steps.bert import MaskedTokens
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.runtime import Layers

with warnings.catch_warnings():
    # It warns that apex is not installed; megatron_compat puts our norm in its place.
    warnings.simplefilter("ignore")
    from megatron.core.models.bert.bert_model import BertModel


class Bert(BertModel):
    """megatron-core's BERT, whose padded vocabulary entries never get any probability (as in `families.gpt`)."""

    def __init__(
        self, config: TransformerConfig, spec: Any, *, model: ModelSpec, valid_vocab_size: int, **kwargs: Any
    ) -> None:
        super().__init__(
            config,
            model.num_tokentypes,
            spec,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            add_binary_head=model.bert_binary_head,
            **kwargs,
        )
        self.valid_vocab_size = valid_vocab_size

    def _sanity_check_attention_and_get_attn_mask_dimension(self) -> str:
        """Which keys are hidden, [b, 1, 1, s]: what our attention takes, and Transformer Engine's from 1.10 on."""
        return "b11s"

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, [b, s], from labels [b, s] and this rank's part of the logits [s, b, v]."""
        hide_padding(logits, self.valid_vocab_size)
        loss: torch.Tensor = super().compute_language_model_loss(labels, logits)
        return loss


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> Bert:
    """Model chunk `index` of this rank."""
    model = job.model
    vp_stage = index if job.parallelism.virtual_pipeline_model_parallel_size is not None else None
    return Bert(
        config,
        _block_spec(config, layers, vp_stage),
        model=model,
        valid_vocab_size=vocabulary.size,
        vocab_size=vocabulary.padded_size,
        max_sequence_length=model.positions,
        pre_process=ranks.is_pre_process(index),
        post_process=ranks.is_post_process(index),
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        vp_stage=vp_stage,
    )


def _block_spec(config: TransformerConfig, layers: Layers, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The decoder's layers, with an attention to all tokens but padding."""
    block: TransformerBlockSubmodules = block_spec_function(layers)(config, vp_stage)
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        attention.params = {**attention.params, "attn_mask_type": AttnMaskType.padding}
        if layers == "torch":
            attention.submodules.core_attention = MaskedAttention
    return block


def train_step(job: JobSpec) -> MaskedTokens:
    """Cross entropy of the masked tokens and, with a binary head, of the order of a sample's parts."""
    return MaskedTokens(job.model.bert_binary_head)
