"""GPT: a decoder that predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from megatron.core.models.gpt import GPTModel
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region, gather_from_sequence_parallel_region
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.models.blocks.gated_delta_net.libraries import fla_trouble
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.cross_entropy.linear import linear_cross_entropy
from orchestrator.runtime.families.base import virtual_stage
from orchestrator.runtime.families.token_losses import token_losses
from orchestrator.runtime.layers.attention.rotary_frequencies import set_frequencies
from orchestrator.runtime.layers.embedding import mark_only_looked_up
from orchestrator.runtime.layers.layer_backend import block_spec_function
from orchestrator.runtime.layers.weight_gradient import accumulate, add_product
from orchestrator.runtime.processes.process_groups import (
    Ranks,
    get_tensor_model_parallel_group,
    get_tensor_model_parallel_rank,
)
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.sections.runtime import Layers

_POSITIONS = {"rope": "rope", "learned_absolute": "learned_absolute", "alibi": "none", "none": "none"}
"""megatron-core's words; ALiBi is our attention's business."""


class GPT(GPTModel):
    """megatron-core's GPT whose padded vocabulary entries never get any probability.

    So the loss does not depend on how far the vocabulary is padded, which changes with the tensor-parallel size.
    """

    def __init__(
        self,
        config: TransformerConfig,
        spec: Any,
        *,
        model: ModelSpec,
        valid_vocab_size: int,
        joins_loss: bool,
        **kwargs: Any,
    ) -> None:
        """`joins_loss`: the output layer and the loss are one, and there are no logits."""
        super().__init__(
            config,
            spec,
            position_embedding_type=_POSITIONS[model.position_embedding_type],
            rotary_percent=model.rotary_percent,
            rotary_base=model.rotary_base,
            **kwargs,
        )
        self.valid_vocab_size = valid_vocab_size
        embeds = self.pre_process or self.mtp_process
        if embeds and not (self.post_process and self.share_embeddings_and_output_weights):
            mark_only_looked_up(self.embedding.word_embeddings.weight)
        if model.position_embedding_type == "rope":
            set_frequencies(self.rotary_pos_emb, model)
        if model.scale_embeddings and embeds:
            scale = math.sqrt(model.hidden_size)
            self.embedding.word_embeddings.register_forward_hook(_multiply(scale))
        if model.embedding_multiplier != 1.0 and embeds:
            factor = model.embedding_multiplier
            self.embedding.word_embeddings.register_forward_hook(lambda module, arguments, output: output * factor)
        if model.logit_scale != 1.0 and self.post_process:
            # A product with the vocabulary is larger than what goes into it.
            self.output_layer.register_forward_pre_hook(_scale_first(model.logit_scale))
        self._joins_loss = joins_loss and self.post_process
        if self._joins_loss:
            self.output_layer.forward = self._hand_on
        if model.final_logit_softcapping is not None and self.post_process:
            self.output_layer.register_forward_hook(_cap(model.final_logit_softcapping))

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, [b, s], from labels [b, s] and this rank's part of the logits [s, b, v], or the
        output layer's input where that is one with the loss.
        """
        if self._joins_loss:
            return self._joined_loss(labels, logits)
        return token_losses(labels, logits, self.valid_vocab_size)

    def _hand_on(self, hidden: torch.Tensor, weight: Any = None, **unused: Any) -> tuple[torch.Tensor, None]:
        """In place of the output layer's forward pass: its input, for the loss."""
        self._output_weight = self.output_layer.weight if weight is None else weight
        return hidden, None

    def _joined_loss(self, labels: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """From hidden [s, b, h] or, under sequence parallelism, this rank's part of it."""
        if self.config.sequence_parallel:
            hidden = gather_from_sequence_parallel_region(hidden)
        else:
            hidden = copy_to_tensor_model_parallel_region(hidden)
        weight = self._output_weight
        first = get_tensor_model_parallel_rank() * weight.size(0)
        flat, wanted = hidden.flatten(0, 1), labels.t().flatten()
        group = get_tensor_model_parallel_group()
        buffer: torch.Tensor | None = getattr(weight, "main_grad", None)
        if buffer is not None and buffer.dtype != torch.float32:
            buffer = None  # as many sums as there are parts would be rounded
        add = accumulate if self.config.gradient_accumulation_fusion else add_product
        losses = linear_cross_entropy(flat, weight, wanted, self.valid_vocab_size, first, group, buffer, add)
        return losses.view(hidden.size(0), hidden.size(1)).t().contiguous()


Decoder = TypeVar("Decoder", bound=GPT)


def _multiply(factor: float) -> Callable[[Any, Any, torch.Tensor], torch.Tensor]:
    """A forward hook that multiplies an output, by the factor in the output's dtype, as Gemma was trained."""

    def multiply(module: Any, arguments: Any, output: torch.Tensor) -> torch.Tensor:
        return output * torch.tensor(factor, dtype=output.dtype).item()

    return multiply


def _scale_first(factor: float) -> Callable[[Any, tuple[torch.Tensor, ...]], tuple[torch.Tensor, ...]]:
    """A forward hook that multiplies the first input."""
    return lambda module, inputs: (inputs[0] * factor, *inputs[1:])


def _cap(cap: float) -> Callable[[Any, Any, tuple[torch.Tensor, Any]], tuple[torch.Tensor, Any]]:
    """A forward hook that caps the logits of an output layer."""

    def softcap(module: Any, arguments: Any, output: tuple[torch.Tensor, Any]) -> tuple[torch.Tensor, Any]:
        logits, bias = output
        return cap * torch.tanh(logits / cap), bias

    return softcap


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> GPT:
    """Model chunk `index` of this rank."""
    vp_stage = virtual_stage(job, index)
    device = torch.device(torch.cuda.current_device())  # on the CPU that of `cpu_shim`, beside a GPU too
    says = job.model.has_linear_attention and ranks.is_first and index == 0 and device.type == "cuda"
    if says and (trouble := fla_trouble(torch.cuda.get_device_capability(device))) is not None:
        print(f"linear attention is slow without its kernels: {trouble}", flush=True)
    return decoder(job, config, block_spec_function(layers)(config, vp_stage), vocabulary, ranks, index, GPT)


def decoder(
    job: JobSpec,
    config: TransformerConfig,
    block: Any,
    vocabulary: Vocabulary,
    ranks: Ranks,
    index: int,
    kind: type[Decoder],
    **options: Any,
) -> Decoder:
    """Model chunk `index` of this rank with the layers of `block`. `options` are megatron-core's."""
    model = job.model
    return kind(
        config,
        block,
        model=model,
        valid_vocab_size=vocabulary.size,
        joins_loss=job.runtime.fused_linear_cross_entropy,
        vocab_size=vocabulary.padded_size,
        max_sequence_length=model.positions,
        pre_process=ranks.is_pre_process(index),
        post_process=ranks.is_post_process(index),
        share_embeddings_and_output_weights=not model.untie_embeddings_and_output_weights,
        vp_stage=virtual_stage(job, index),
        **options,
    )


def train_step(job: JobSpec) -> NextToken:
    """Cross entropy of the next token."""
    return NextToken()
