"""BERT: an encoder that predicts masked tokens and, with its binary head, how a sample's two parts belong together."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset
from torch.nn import functional

from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.base import virtual_stage
from orchestrator.runtime.families.token_losses import token_losses
from orchestrator.runtime.layers.attention.rotary_frequencies import frequencies, set_frequencies
from orchestrator.runtime.layers.layer_backend import block_spec_function, column_and_norm, encoder_attention
from orchestrator.runtime.layers.normalization.branches import without_first_norm
from orchestrator.runtime.layers.normalization.post_norms import normalise_behind, normalise_embedding
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.steps.base import TrainStep
from orchestrator.runtime.steps.bert import MaskedTokens
from orchestrator.runtime.steps.task import RightAnswer
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers

with warnings.catch_warnings():
    # It warns that apex is not installed; megatron_compat puts our norm in its place.
    warnings.simplefilter("ignore")
    from megatron.core.models.bert.bert_model import BertModel

_TASK_HEAD = "task_head."


class Bert(BertModel):
    """megatron-core's BERT, whose padded vocabulary entries never get any probability (as in `families.gpt`)."""

    def __init__(
        self, config: TransformerConfig, spec: Any, *, model: ModelSpec, valid_vocab_size: int, **kwargs: Any
    ) -> None:
        super().__init__(
            config,
            model.tokentypes,
            spec,
            position_embedding_type=model.position_embedding_type,
            rotary_percent=model.rotary_percent,
            add_binary_head=model.bert_binary_head,
            **kwargs,
        )
        self.valid_vocab_size = valid_vocab_size
        self.first_position = model.position_embedding_offset
        if model.position_embedding_type == "rope":  # megatron-core's BERT takes no base
            self.rotary_pos_emb.inv_freq = frequencies(self.rotary_pos_emb, model.rotary_base)
            set_frequencies(self.rotary_pos_emb, model)
        if model.normalizes_embeddings and self.pre_process:
            normalise_embedding(self.embedding, config)
        if not model.bert_head_bias and self.post_process:
            self.lm_head.dense.register_parameter("bias", None)

    def bert_position_ids(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Rows of the position table for tokens, [b, s] as these."""
        positions: torch.Tensor = super().bert_position_ids(token_ids) + self.first_position
        return positions

    def _sanity_check_attention_and_get_attn_mask_dimension(self) -> str:
        """Which keys are hidden, [b, 1, 1, s]: what our attention takes, and Transformer Engine's from 1.10 on."""
        return "b11s"

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, [b, s], from labels [b, s] and this rank's part of the logits [s, b, v]."""
        return token_losses(labels, logits, self.valid_vocab_size)


class BertForTask(Bert):
    """The same up to its pooler, with the head of a task in place of its own: scores for whole sequences.

    The head is small and whole on every tensor-parallel rank; all of them have the same gradient of it.
    """

    def __init__(self, config: TransformerConfig, spec: Any, *, head_size: int, **kwargs: Any) -> None:
        super().__init__(config, spec, share_embeddings_and_output_weights=False, **kwargs)
        if self.post_process:
            del self.lm_head, self.output_layer, self.binary_head
            self.task_head = torch.nn.Linear(config.hidden_size, head_size)

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, tokentype_ids: torch.Tensor
    ) -> torch.Tensor:
        """Scores, [b, head_size], on the last stage; elsewhere what the next one takes. Inputs: [b, s]."""
        embedded = rotary = None
        if self.pre_process:
            embedded = self.embedding(input_ids, self.bert_position_ids(input_ids), tokentype_ids)
        if self.position_embedding_type == "rope":
            rotary = self.rotary_pos_emb(input_ids.size(1))
        hidden: torch.Tensor = self.encoder(
            hidden_states=embedded,
            attention_mask=self.bert_extended_attention_mask(attention_mask),
            rotary_pos_emb=rotary,
        )
        if not self.post_process:
            return hidden
        pooled = functional.dropout(self.pooler(hidden, 0), self.config.hidden_dropout, self.training)
        scores: torch.Tensor = self.task_head(pooled)
        return scores

    def sharded_state_dict(self, *arguments: Any, **options: Any) -> dict[str, Any]:
        """The weights by name, for checkpoints."""
        # megatron-core's language models look for the output layer, which is not there.
        state: dict[str, Any] = super(LanguageModule, self).sharded_state_dict(*arguments, **options)
        return state


def is_task_head(name: str) -> bool:
    """Whether a weight is of the head of a task."""
    return name.startswith(_TASK_HEAD)


def only_predicts_tokens(name: str) -> bool:
    """Whether a weight is of the heads that a BERT is trained with before it is given a task."""
    return name.startswith(("lm_head.", "output_layer.", "binary_head."))


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> Bert:
    """Model chunk `index` of this rank."""
    model = job.model
    vp_stage = virtual_stage(job, index)
    settings: dict[str, Any] = {
        "model": model,
        "valid_vocab_size": vocabulary.size,
        "vocab_size": vocabulary.padded_size,
        "max_sequence_length": model.positions,
        "pre_process": ranks.is_pre_process(index),
        "post_process": ranks.is_post_process(index),
        "vp_stage": vp_stage,
    }
    block = _block_spec(config, layers, vp_stage)
    holds_first = bool(block.layer_specs) and get_transformer_layer_offset(config, vp_stage=vp_stage) == 0
    if model.embedding_norm and holds_first:  # the embeddings' stage may have no layer
        block.layer_specs[0] = without_first_norm(block.layer_specs[0], column_and_norm(layers)[0])
    if model.transformer_block_type == "post_ln":
        normalise_behind(block, layers, config)
    if job.has_task:
        return BertForTask(config, block, head_size=job.labelled_task.head_size, **settings)
    tied = not model.untie_embeddings_and_output_weights
    return Bert(config, block, share_embeddings_and_output_weights=tied, **settings)


def _block_spec(config: TransformerConfig, layers: Layers, vp_stage: int | None) -> TransformerBlockSubmodules:
    """The decoder's layers, with an attention to all tokens but padding."""
    block: TransformerBlockSubmodules = block_spec_function(layers)(config, vp_stage)
    core_attention = encoder_attention(layers)
    for layer in block.layer_specs:
        attention = layer.submodules.self_attention
        attention.params = {**attention.params, "attn_mask_type": AttnMaskType.padding}
        attention.submodules.core_attention = core_attention
    return block


def train_step(job: JobSpec) -> TrainStep:
    """Cross entropy of the masked tokens and, with a binary head, of the order of a sample's parts; of the right answer
    where the job has a task."""
    if job.has_task:
        return RightAnswer(job.labelled_task)
    per_token = job.has_per_token_loss
    return MaskedTokens(job.model.bert_binary_head, job.model.tokentypes, per_token=per_token)
