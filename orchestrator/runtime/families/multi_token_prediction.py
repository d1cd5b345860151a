"""A decoder that learns to predict further tokens too (DeepSeek-V3, section 2.2): a GPT with more layers at its end.

Layer k takes the hidden state of each token from the layer before it, and the embedding of the token k places behind
it; the output layer predicts from what it gives the token behind that one. Embedding and output layer are the GPT's.
"""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.transformer.multi_token_prediction import roll_tensor
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.utils import ensure_metadata_has_dp_cp_group
from torch.autograd.function import once_differentiable

from orchestrator.models.blocks.multi_token_prediction.layers import prediction_spec
from orchestrator.models.layers import prediction_layers
from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.base import virtual_stage
from orchestrator.runtime.families.gpt import GPT, decoder
from orchestrator.runtime.layers.layer_backend import block_spec_function, column_and_norm
from orchestrator.runtime.processes.context_parallel import over_the_sequence
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


class MultiTokenGPT(GPT):
    """Its losses of further tokens are part of what is minimised, and not of the loss that it gives."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.further_weight = self.config.mtp_loss_scaling_factor / self.config.mtp_num_layers
        self.further_losses: torch.Tensor | None = None
        if self.mtp_process and not self.pre_process:
            # What updates the embedding of the first stage updates its copy here: megatron-core marks only the former.
            vars(self.embedding.word_embeddings.weight)["is_embedding_or_output_parameter"] = True
            if self.share_embeddings_and_output_weights:
                # The output layer computes with that copy; megatron-core gives it a table of its own that nothing uses.
                self.output_layer.weight = None

    def take_further_losses(self) -> torch.Tensor | None:
        """Of each depth the sum of the losses and how many count, [depths, 2], since the last call; None where there
        are none.
        """
        found, self.further_losses = self.further_losses, None
        return found

    def further_hidden(self, number: int, hidden: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """What layer `number`, from 0 on, gives, [s, b, h], from the hidden states of the layer before it and the
        embeddings of the tokens that these are joined with, where that is not done for a loss.
        """
        tokens = torch.zeros(embedded.size(1), embedded.size(0), dtype=torch.long, device=embedded.device)
        found: torch.Tensor
        # It would look up the tokens behind those that it is given.
        found, _, _ = self.mtp.layers[number](
            input_ids=tokens,
            position_ids=tokens,
            hidden_states=hidden,
            attention_mask=None,
            embedding=lambda **unused: embedded,
        )
        return found

    def sharded_state_dict(
        self, prefix: str = "", sharded_offsets: tuple[Any, ...] = (), metadata: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Its weights as a checkpoint has them. megatron-core fills the metadata in for itself, but for the copy of the
        embedding on the last stage.
        """
        whole = ensure_metadata_has_dp_cp_group(metadata)
        found: dict[str, Any] = super().sharded_state_dict(prefix, sharded_offsets, whole)
        return found

    def _postprocess(
        self,
        hidden_states: torch.Tensor,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor,
        labels: torch.Tensor | None,
        *arguments: Any,
        loss_mask: torch.Tensor | None = None,
        runtime_gather_output: bool | None = None,
        **options: Any,
    ) -> torch.Tensor:
        """In place of megatron-core's, which averages over each rank's part of a sequence by itself, and computes the
        layers where nothing is learnt too.
        """
        if not self.post_process:
            return hidden_states
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        given = {"weight": weight, "runtime_gather_output": runtime_gather_output}
        further = None
        if labels is not None and self.training:
            mask = torch.ones_like(labels) if loss_mask is None else loss_mask
            inputs = {name: options.get(name) for name in _OF_LAYERS}
            further = self._further(hidden_states, input_ids, position_ids, labels, mask, inputs, given)
        logits, _ = self.output_layer(hidden_states, **given)
        if labels is None:
            scores: torch.Tensor = logits.transpose(0, 1).contiguous()
            return scores
        losses = self.compute_language_model_loss(labels, logits)
        if further is None:
            return losses
        apply: Any = _WithFurther.apply
        learnt: torch.Tensor = apply(losses, further, mask.sum())
        return learnt

    def _further(
        self,
        hidden: torch.Tensor,
        tokens: torch.Tensor,
        positions: torch.Tensor,
        labels: torch.Tensor,
        mask: torch.Tensor,
        inputs: dict[str, Any],
        given: dict[str, Any],
    ) -> torch.Tensor:
        """The weighted losses of further tokens, in units of a counted token's loss of the next one."""
        counted, parts, weighted = mask.sum(), [], []
        for layer in self.mtp.layers:
            hidden, tokens, positions = layer(
                input_ids=tokens, position_ids=positions, hidden_states=hidden, embedding=self.embedding, **inputs
            )
            labels, mask = (roll_tensor(each, cp_group=self.cp_group)[0] for each in (labels, mask))
            logits, _ = self.output_layer(hidden, **given)
            total = (self.compute_language_model_loss(labels, logits) * mask).sum()
            parts.append(torch.stack([total.detach(), mask.sum()]))
            share: torch.Tensor | float = 1.0
            if not self.config.calculate_per_token_loss:  # each micro-batch is averaged by itself
                share = over_the_sequence(counted) / over_the_sequence(mask.sum()).clamp(min=1)
            weighted.append(self.further_weight * share * total)
        self._add(torch.stack(parts).double())
        return torch.stack(weighted).sum()

    def _add(self, parts: torch.Tensor) -> None:
        self.further_losses = parts if self.further_losses is None else self.further_losses + parts


_OF_LAYERS = ("attention_mask", "rotary_pos_emb", "rotary_pos_cos", "rotary_pos_sin")


class _WithFurther(torch.autograd.Function):
    """Losses of the next token, [b, s], whose gradient is also that of another loss: as if each token that counts had a
    share of it. So whatever the losses are multiplied by, and whenever, the other loss is too.
    """

    @staticmethod
    def forward(ctx: Any, losses: torch.Tensor, further: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(counted)
        return losses.view_as(losses)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (counted,) = ctx.saved_tensors
        return gradient, gradient.sum() / counted.clamp(min=1), None


def is_of_further_tokens(name: str) -> bool:
    """Whether a weight is of the layers that predict further tokens."""
    return name.startswith("mtp.")


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> MultiTokenGPT:
    """Model chunk `index` of this rank, of which the last has the layers of further tokens."""
    block, further = block_spec_function(layers)(config, virtual_stage(job, index)), None
    if ranks.is_post_process(index):
        further = prediction_spec(len(prediction_layers(job.model)), block.layer_specs[-1], *column_and_norm(layers))
    return decoder(job, config, block, vocabulary, ranks, index, MultiTokenGPT, mtp_block_spec=further)


def train_step(job: JobSpec) -> NextToken:
    """Cross entropy of the next token, and of further ones."""
    return NextToken()
