"""The network."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator.models.registry import FAMILIES, Architecture, ModelFamily, Positions
from orchestrator.spec.base import Section
from orchestrator.spec.lora import LoraSpec
from orchestrator.spec.rope_scaling import RopeScaling
from orchestrator.spec.values import Fraction, NonNegative, Positive, PositiveNumber, Text, refuse_bool
from orchestrator.spec.vision import VisionSpec


class ModelSpec(Section):
    """The architecture of the transformer. `preset` fills in what is not written."""

    architecture: Architecture = "gpt"
    """The family: `gpt` is a decoder, `bert` an encoder that predicts masked tokens, `t5` an encoder and a decoder that
    gives back the spans that were taken out of the encoder's input, `mamba` a decoder of state space layers (Mamba-2)
    or a hybrid of these with attention and MLPs."""
    preset: Text | None = None
    """A named architecture to start from; `orchestrator schema --presets` lists them."""
    num_layers: Positive
    """Transformer layers."""
    hidden_size: Positive
    """Width of the residual stream, h."""
    num_attention_heads: Positive
    """Query heads per layer."""
    seq_length: Positive
    """Tokens per training sequence, s."""
    ffn_hidden_size: Positive | None = None
    """Width inside the MLP; 4h by default, or 8h/3 rounded up to a multiple of 64 for `swiglu` and `geglu`."""
    num_query_groups: Positive | None = None
    """Key/value heads: fewer than the query heads is grouped-query attention, 1 is multi-query."""
    kv_channels: Positive | None = None
    """Width of one head; h / num_attention_heads by default."""
    max_position_embeddings: Positive | None = None
    """Longest sequence that learned positions cover; `seq_length` by default."""
    vocab_size: Positive | None = None
    """Tokens in the vocabulary before padding; read from the tokenizer by default."""
    make_vocab_size_divisible_by: Positive = 128
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""
    position_embedding_type: Positions = "rope"
    """How positions are told apart; `alibi` lowers attention scores by distance, with a slope for each head; `relative`
    is T5's, a learned bias of the scores for each range of distances."""
    rotary_percent: Annotated[float, Field(gt=0.0, le=1.0), BeforeValidator(refuse_bool)] = 1.0
    """Part of each head that is rotated."""
    rotary_base: Positive = 10000
    """Base of the rotary frequencies."""
    rope_scaling: RopeScaling | None = None
    """Rotary positions for longer sequences."""
    sliding_window: Positive | None = None
    """Tokens that a token attends to: itself and those just before it. All by default. (Megatron's `window_size` does
    not count the token itself.)"""
    window_attn_skip_freq: Positive | None = None
    """Every layer whose number (from 1) is a multiple of this attends to all tokens in spite of `sliding_window`."""
    attention_logit_softcapping: PositiveNumber | None = None
    """Attention scores x become cap · tanh(x / cap)."""
    softmax_scale: PositiveNumber | None = None
    """Attention scores are multiplied by this; 1 / √(width of a head) by default. T5's published weights want 1."""
    final_logit_softcapping: PositiveNumber | None = None
    """Logits x become cap · tanh(x / cap)."""
    normalization: Literal["LayerNorm", "RMSNorm"] = "LayerNorm"
    """The norm before attention, before the MLP and after the last layer."""
    transformer_block_type: Literal["pre_ln", "post_ln"] = "pre_ln"
    """BERT: whether norms stand before attention and MLP, and behind the last layer (`pre_ln`, as in Megatron-LM), or
    behind each of them and behind the embedding (`post_ln`, as in the first BERT)."""
    norm_epsilon: PositiveNumber = 1e-5
    """Added to the variance in each norm."""
    apply_layernorm_1p: bool = False
    """Norms multiply by 1 + weight instead of by weight."""
    activation: Literal["gelu", "gelu_tanh", "relu", "squared_relu", "swiglu", "geglu"] = "gelu"
    """The MLP's activation. `gelu_tanh` is GPT-2's approximation; `swiglu` and `geglu` (with that approximation) have a
    gate of the same width."""
    add_bias_linear: bool = True
    """Biases in every linear layer."""
    add_qkv_bias: bool = False
    """A bias in the query/key/value projection only (`add_bias_linear` already has one)."""
    qk_layernorm: bool = False
    """Normalise queries and keys per head."""
    untie_embeddings_and_output_weights: bool = False
    """Give the output layer its own weights instead of the embedding's."""
    add_output_bias: bool = False
    """T5: a bias for each entry of the vocabulary in the tied output layer, as Megatron-LM's T5 has it."""
    scale_embeddings: bool = False
    """Multiply token embeddings by the square root of the hidden size."""
    scale_decoder_outputs: bool = False
    """T5: divide what the decoder gives by the square root of the hidden size before the output layer, as the first T5
    does."""
    encoder_num_layers: Positive | None = None
    """Layers of a T5's encoder; `num_layers` by default."""
    decoder_num_layers: Positive | None = None
    """Layers of a T5's decoder; `num_layers` by default."""
    decoder_seq_length: Positive | None = None
    """Tokens of a T5's decoder per training sample; `seq_length` is the encoder's."""
    relative_attention_num_buckets: Positive = 32
    """Relative positions: distances that are told apart, near ones singly and far ones in ranges."""
    relative_attention_max_distance: Positive = 128
    """Relative positions: from here on all distances are alike."""
    bert_binary_head: bool = True
    """BERT: learn as well how the two parts of a sample belong together (`data.bert_order`), and tell them apart."""
    num_tokentypes: Positive | None = None
    """BERT: kinds of tokens that the embedding tells apart; by default the two parts of a sample with the binary head,
    and none without it."""
    hybrid_override_pattern: Text | None = None
    """mamba: the layers in their order, a letter each: `M` state space, `*` attention, `-` MLP. By the two ratios by
    default."""
    hybrid_attention_ratio: Fraction = 0.0
    """mamba: part of the layers that are attention, evenly spaced."""
    hybrid_mlp_ratio: Fraction = 0.0
    """mamba: part of the layers that are MLPs, evenly spaced between the others."""
    mamba_state_dim: Positive = 128
    """mamba: state of each channel of a state space layer."""
    mamba_head_dim: Positive = 64
    """mamba: channels of a head of a state space layer."""
    mamba_num_groups: Positive = 8
    """mamba: groups of heads that share how they write to their state and read from it."""
    mamba_num_heads: Positive | None = None
    """mamba: heads of a state space layer; 2h / mamba_head_dim by default."""
    hidden_dropout: Fraction = 0.0
    """Dropout on the residual branches and embeddings."""
    attention_dropout: Fraction = 0.0
    """Dropout on attention weights."""
    num_experts: Positive | None = None
    """Experts of each mixture-of-experts layer; none by default: every MLP is dense."""
    moe_layer_freq: Positive | list[Literal[0, 1]] = 1
    """Which layers have experts: one in every so many, the first first, or a list of 1 (experts) and 0 (dense)."""
    moe_ffn_hidden_size: Positive | None = None
    """Width inside each expert; that of a dense MLP by default."""
    moe_shared_expert_intermediate_size: Positive | None = None
    """Width inside an expert that every token passes, beside those it is routed to; several are one of their total
    width. None by default."""
    moe_router_topk: Positive = 2
    """Experts that each token is routed to."""
    moe_router_score_function: Literal["softmax", "sigmoid"] = "softmax"
    """What turns the router's logits into weights of the chosen experts."""
    moe_router_pre_softmax: bool = False
    """Take the softmax over all experts before the best are chosen, instead of over the chosen ones."""
    moe_router_dtype: Literal["fp32", "fp64"] | None = None
    """Format in which the router computes; that of the activations by default."""
    moe_router_load_balancing_type: Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"] = "aux_loss"
    """How tokens are kept balanced: a loss over each micro-batch, one over each sequence, or an assignment that
    balances by itself."""
    moe_aux_loss_coeff: NonNegative = 0.0
    """Weight of the load-balancing loss; 0.01 is a good start."""
    moe_z_loss_coeff: PositiveNumber | None = None
    """Weight of the loss that keeps the router's logits small; 0.001 is a good start."""
    moe_expert_capacity_factor: PositiveNumber | None = None
    """Tokens that an expert takes at most, as a multiple of its even share; what is beyond passes by the experts. No
    token is dropped by default."""
    moe_token_dispatcher_type: Literal["allgather", "alltoall"] = "alltoall"
    """How tokens come to their experts: each to those that it needs, or all to all ranks."""
    moe_grouped_gemm: bool | None = None
    """Compute all experts of a rank in one kernel, with Transformer Engine's layers; by default wherever these are
    used."""
    lora: LoraSpec | None = None
    """Low-rank adapters: they are trained, and nothing else is."""
    vision: VisionSpec | None = None
    """Images among the tokens, and what encodes them; `{}` for that of LLaVA 1.5."""
    init_method_std: PositiveNumber = 0.02
    """Standard deviation of the initial weights; layers that write to the residual stream use std / sqrt(2 L)."""

    @property
    def family(self) -> ModelFamily:
        """What is true of all models of its architecture."""
        return FAMILIES[self.architecture]

    @property
    def has_experts(self) -> bool:
        """Whether some layers have experts in place of a dense MLP."""
        return self.num_experts is not None

    @property
    def expert_count(self) -> int:
        """Experts of each layer that has some; 0 for a dense model."""
        return self.num_experts or 0

    @property
    def shared_expert_size(self) -> int:
        """Width inside the expert that every token passes; 0 where there is none."""
        return self.moe_shared_expert_intermediate_size or 0

    @property
    def has_adapters(self) -> bool:
        """Whether low-rank adapters alone are trained."""
        return self.lora is not None

    @property
    def adapters(self) -> LoraSpec:
        """The adapters of a model that has some."""
        assert self.lora is not None, "the caller has asked `has_adapters`"
        return self.lora

    @property
    def has_vision(self) -> bool:
        """Whether there are images among its tokens."""
        return self.vision is not None

    @property
    def image_encoder(self) -> VisionSpec:
        """What encodes the images of a model that has some."""
        assert self.vision is not None, "the caller has asked `has_vision`"
        return self.vision

    @property
    def has_frozen_encoder(self) -> bool:
        """Whether it has an encoder of images that is not trained."""
        return self.vision is not None and self.vision.freeze

    @property
    def ffn_size(self) -> int:
        """Width inside the MLP."""
        if self.ffn_hidden_size is not None:
            return self.ffn_hidden_size
        if self.is_gated:
            return -(-8 * self.hidden_size // 3 // 64) * 64
        return 4 * self.hidden_size

    @property
    def is_gated(self) -> bool:
        """Whether the MLP's first matrix has a second half that gates the first."""
        return self.activation in ("swiglu", "geglu")

    @property
    def query_groups(self) -> int:
        """Key/value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_dim(self) -> int:
        """Width of one head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def positions(self) -> int:
        """Length of the learned position table."""
        return self.max_position_embeddings or self.seq_length

    @property
    def tokentypes(self) -> int:
        """Kinds of tokens that the embedding tells apart."""
        if not self.family.is_masked_lm:
            return 0
        return self.num_tokentypes or (2 if self.bert_binary_head else 0)

    @property
    def reads_sentences(self) -> bool:
        """Whether the family's data sets are made of sentences instead of whole documents."""
        return self.family.least_sentences > 0

    @property
    def has_qkv_bias(self) -> bool:
        """Whether the query/key/value projection has a bias."""
        return self.add_bias_linear or self.add_qkv_bias

    @property
    def encoder_layers(self) -> int:
        """Layers of a T5's encoder."""
        return self.encoder_num_layers or self.num_layers

    @property
    def decoder_layers(self) -> int:
        """Layers of a T5's decoder."""
        return self.decoder_num_layers or self.num_layers

    @property
    def sample_length(self) -> int:
        """Tokens of one training sample: the encoder's and the decoder's where there are both."""
        return self.seq_length + (self.decoder_seq_length or 0)

    @property
    def moe_ffn_size(self) -> int:
        """Width inside each expert."""
        return self.moe_ffn_hidden_size or self.ffn_size

    @property
    def moe_kept_share(self) -> float:
        """Of the tokens that are routed to experts those that these take, where all are asked for equally often: each
        its capacity. A capacity above the even share drops nothing then, and nothing is padded up to it.
        """
        return min(self.moe_expert_capacity_factor or 1.0, 1.0)

    @property
    def active_ffn_size(self) -> float:
        """Width of all experts together that a token passes in a layer that has some; the mean, where some drop it."""
        routed = self.moe_router_topk * self.moe_ffn_size * self.moe_kept_share
        return routed + self.shared_expert_size

    @property
    def moe_layers(self) -> tuple[bool, ...]:
        """For each layer whether it has experts."""
        if not self.has_experts:
            return (False,) * self.num_layers
        if isinstance(self.moe_layer_freq, list):
            return tuple(bool(has) for has in self.moe_layer_freq)
        return tuple(layer % self.moe_layer_freq == 0 for layer in range(self.num_layers))
