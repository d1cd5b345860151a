"""T5: an encoder, and a decoder that attends to what it gives.

megatron-core has no pipeline for it. Here the encoder is on the first stages and the decoder on the rest. The first
stage embeds both inputs, and every stage passes on one tensor, [encoder length + decoder length, b, h]: what the
encoder has so far, then what the decoder has. So the schedules of megatron-core, which know one shape, serve as they
are, and the embedding is shared by the first and the last stage only, as a decoder's is.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import tensor_parallel
from megatron.core.enums import ModelType
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.process_groups_config import ProcessGroupCollection
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_config import TransformerConfig

from orchestrator.planning.vocabulary import Vocabulary
from orchestrator.runtime.families.token_losses import token_losses
from orchestrator.runtime.layers.t5_layers import RelativeBias, bias_self_attention, block_spec
from orchestrator.runtime.processes.process_groups import Ranks, part_of_pipeline, patience
from orchestrator.runtime.steps.t5 import SpanCorruption
from orchestrator.spec.encoder_decoder import HALVES, Half, layers_of, stages_of
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.runtime import Layers


class T5(LanguageModule):
    """One stage of the network: the encoder's layers, the decoder's, or both where there is one stage.

    As in `families.gpt`, padded vocabulary entries never get any probability.
    """

    def __init__(
        self, job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks
    ) -> None:
        super().__init__(config=config)
        model = job.model
        self.model_type = ModelType.encoder_or_decoder
        self.share_embeddings_and_output_weights = not model.untie_embeddings_and_output_weights
        self.valid_vocab_size = vocabulary.size
        self.lengths = (model.seq_length, model.sample_length - model.seq_length)
        self.pre_process, self.post_process = ranks.pp == 0, ranks.is_last_stage
        if self.pre_process:
            self.embedding = LanguageModelEmbedding(
                config, vocabulary.padded_size, model.positions, model.position_embedding_type
            )
        if model.position_embedding_type == "rope":
            self.rotary_pos_emb = RotaryEmbedding(
                model.head_dim, model.rotary_percent, rotary_base=model.rotary_base, use_cpu_initialization=True
            )
        halves = [stages_of(half, job.parallelism) for half in HALVES]
        self.half_group = part_of_pipeline(ranks, halves, patience(job)) if ranks.pp_size > 1 else self.pp_group
        self.relative_biases: list[RelativeBias] = []
        self.encoder = self._half("encoder", job, layers, ranks)
        self.decoder = self._half("decoder", job, layers, ranks)
        if self.post_process:
            self.output_layer = tensor_parallel.ColumnParallelLinear(
                config.hidden_size,
                vocabulary.padded_size,
                config=config,
                init_method=config.init_method,
                bias=model.add_output_bias,
                gather_output=False,
                skip_weight_param_allocation=self.pre_process and self.share_embeddings_and_output_weights,
            )
            if model.scale_decoder_outputs:
                self.output_layer.register_forward_pre_hook(_scale(model.hidden_size**-0.5))
        self.setup_embeddings_and_output_layer()
        self._received: torch.Tensor | None = None

    def _half(self, half: Half, job: JobSpec, layers: Layers, ranks: Ranks) -> TransformerBlock | None:
        """This stage's layers of the encoder or of the decoder; None where it has none."""
        model, stages = job.model, stages_of(half, job.parallelism)
        if ranks.pp not in stages:
            return None
        stage = stages.index(ranks.pp)
        groups = ProcessGroupCollection.use_mpu_process_groups()
        groups.pp = self.half_group
        # megatron-core numbers and counts a stage's layers by its configuration and group: each half has its own.
        config = copy.deepcopy(self.config)
        config.num_layers = layers_of(half, model)
        config.pipeline_model_parallel_size = len(stages)
        block = TransformerBlock(
            config=config,
            spec=block_spec(half, layers, config.num_layers // len(stages)),
            pre_process=True,
            post_process=stage == len(stages) - 1,
            pg_collection=groups,
        )
        if model.position_embedding_type == "relative":
            bias = RelativeBias(
                config,
                bidirectional=half == "encoder",
                buckets=model.relative_attention_num_buckets,
                max_distance=model.relative_attention_max_distance,
                stage=stage,
                tp_group=self.tp_group,
            )
            self.add_module(f"{half}_relative_attention_bias", bias)
            bias_self_attention(block, bias)
            self.relative_biases.append(bias)
        return block

    def set_input_tensor(self, received: torch.Tensor | list[torch.Tensor | None] | None) -> None:
        """What the stage before has passed on; megatron-core's schedules call it."""
        self._received = received[0] if isinstance(received, list) else received

    def forward(
        self,
        encoder_tokens: torch.Tensor,
        decoder_tokens: torch.Tensor,
        encoder_hidden_keys: torch.Tensor,
        labels: torch.Tensor,
    ) -> torch.Tensor:
        """The loss per decoder token, [b, s_dec], on the last stage; elsewhere what the next one takes.

        Tokens and labels: [b, s]; encoder_hidden_keys: [b, 1, 1, s_enc], True where the encoder's input is padding.
        """
        encoded, decoded = self._inputs(encoder_tokens, decoder_tokens)
        encoder_length, decoder_length = self.lengths
        if self.encoder is not None:
            encoded = self.encoder(
                hidden_states=encoded,
                attention_mask=encoder_hidden_keys,
                rotary_pos_emb=self._rotary(encoder_length),
            )
        if self.decoder is not None:
            decoded = self.decoder(
                hidden_states=decoded,
                attention_mask=None,
                context=encoded,
                context_mask=encoder_hidden_keys,
                rotary_pos_emb=self._rotary(decoder_length),
            )
        if not self.post_process:
            return torch.cat([encoded, decoded])
        return self.compute_language_model_loss(labels, self.logits(decoded))

    def logits(self, decoded: torch.Tensor, *, gathers: bool = False) -> torch.Tensor:
        """Of what the decoder gives, [s, b, h], on the last stage: [s, b, v] of this rank, or of all with `gathers`."""
        weight = self.shared_embedding_or_output_weight() if self.share_embeddings_and_output_weights else None
        logits: torch.Tensor = self.output_layer(decoded, weight=weight, runtime_gather_output=gathers)[0]
        return logits

    def _inputs(self, encoder_tokens: torch.Tensor, decoder_tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What the encoder and the decoder begin with on this stage: [s, b, h] each, s over TP under SP."""
        if self.pre_process:
            return self._embed(encoder_tokens), self._embed(decoder_tokens)
        assert self._received is not None, "the schedule sets it before each forward pass"
        shards = self.config.tensor_model_parallel_size if self.config.sequence_parallel else 1
        encoded, decoded = torch.split(self._received, [length // shards for length in self.lengths])
        return encoded, decoded

    def _embed(self, tokens: torch.Tensor) -> torch.Tensor:
        positions = torch.arange(tokens.size(1), device=tokens.device).expand_as(tokens)
        embedded: torch.Tensor = self.embedding(tokens, positions)
        return embedded

    def _rotary(self, length: int) -> torch.Tensor | None:
        return self.rotary_pos_emb(length) if hasattr(self, "rotary_pos_emb") else None

    def compute_language_model_loss(self, labels: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Cross entropy per token, [b, s], from labels [b, s] and this rank's part of the logits [s, b, v]."""
        return token_losses(labels, logits, self.valid_vocab_size)

    def shared_embedding_or_output_weight(self) -> torch.Tensor | None:
        """The embedding, or the output layer's copy of it on the last of several stages."""
        if self.pre_process:
            weight: torch.Tensor = self.embedding.word_embeddings.weight
            return weight
        return self.output_layer.weight if self.post_process else None

    def reduce_shared_gradients(self) -> None:
        """Sum the gradients of what several stages hold copies of, after those of the replicas are summed."""
        if self.half_group.size() == 1:
            return
        for bias in self.relative_biases:
            weight: Any = bias.weight
            dist.all_reduce(weight.main_grad, group=self.half_group)


def _scale(factor: float) -> Callable[[Any, tuple[torch.Tensor]], tuple[torch.Tensor]]:
    """A hook that multiplies what a module is given."""
    return lambda module, arguments: (arguments[0] * factor,)


def build_chunk(
    job: JobSpec, config: TransformerConfig, layers: Layers, vocabulary: Vocabulary, ranks: Ranks, index: int
) -> T5:
    """This rank's stage; T5 has no virtual stages."""
    return T5(job, config, layers, vocabulary, ranks)


def train_step(job: JobSpec) -> SpanCorruption:
    """Cross entropy of the decoder's next token."""
    return SpanCorruption(job.model.seq_length)
