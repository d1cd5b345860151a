"""The network."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from orchestrator.fields import resume
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag, NoMegatronFlag, ShortName
from orchestrator.fields.values import Fraction, NonNegative, Positive, PositiveNumber, Text, refuse_bool
from orchestrator.models.blocks.registry import AttentionBlock, attention_of
from orchestrator.models.blocks.state_space.matrices import state_space_heads
from orchestrator.models.layers import layer_pattern
from orchestrator.models.registry import BERT, FAMILIES, MAMBA, T5, Architecture, ModelFamily, Positions
from orchestrator.spec.lora import LoraSpec
from orchestrator.spec.rope_scaling import RopeScaling
from orchestrator.spec.vision import VisionSpec

if TYPE_CHECKING:
    from orchestrator.fields.base import Section as BlockFields
else:
    from orchestrator.models.blocks.registry import BlockFields

_BERT = ("model.architecture", BERT.name)
_MAMBA = ("model.architecture", MAMBA.name)
_RELATIVE = ("model.position_embedding_type", "relative")
_ROPE = ("model.position_embedding_type", "rope")
_T5 = ("model.architecture", T5.name)


class ModelSpec(BlockFields):
    """The architecture of the transformer. `preset` fills in what is not written."""

    architecture: Annotated[Architecture, resume.SHAPE, AlsoCalled("model_type arch")] = "gpt"
    """The family: `gpt` is a decoder, `bert` an encoder that predicts masked tokens, `t5` an encoder and a decoder that
    gives back the spans that were taken out of the encoder's input, `mamba` a decoder of state space layers (Mamba-2)
    or a hybrid of these with attention and MLPs."""
    preset: Annotated[
        Text | None,
        resume.safe("a preset only fills in fields, which are compared themselves"),
        AlsoCalled("model_name"),
        NoMegatronFlag("its values are flags"),
    ] = None
    """A named architecture to start from; `orchestrator schema --presets` lists them."""
    num_layers: Annotated[
        Positive,
        resume.SHAPE,
        ShortName("layers"),
        AlsoCalled("n_layer n_layers num_hidden_layers"),
        MegatronFlag(old_names=("encoder-num-layers",)),
    ]
    """Transformer layers."""
    hidden_size: Annotated[
        Positive, resume.SHAPE, ShortName("hidden"), AlsoCalled("n_embd d_model dim embedding_dim"), MegatronFlag()
    ]
    """Width of the residual stream, h."""
    num_attention_heads: Annotated[
        Positive, resume.SHAPE, ShortName("heads"), AlsoCalled("n_head n_heads num_heads"), MegatronFlag()
    ]
    """Query heads per layer."""
    seq_length: Annotated[
        Positive,
        resume.sequence,
        ShortName("seq"),
        AlsoCalled("encoder_seq_length seq_len max_seq_len max_seq_length sequence_length block_size n_ctx"),
        MegatronFlag(old_names=("encoder-seq-length",)),
    ]
    """Tokens per training sequence, s."""
    ffn_hidden_size: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.ffn_size, resume.SHAPE),
        AlsoCalled("n_inner d_ff intermediate_size"),
    ] = None
    """Width inside the MLP; 4h by default, or 8h/3 rounded up to a multiple of 64 for `swiglu` and `geglu`."""
    num_query_groups: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.query_groups, resume.SHAPE),
        AlsoCalled("n_kv_head n_kv_heads num_kv_heads num_key_value_heads group_query_attention"),
    ] = None
    """Key/value heads: fewer than the query heads is grouped-query attention, 1 is multi-query."""
    kv_channels: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.head_dim, resume.SHAPE),
        AlsoCalled("head_dim"),
        MegatronFlag(),
    ] = None
    """Width of one head; h / num_attention_heads by default."""
    max_position_embeddings: Annotated[Positive | None, resume.positions, AlsoCalled("n_positions")] = None
    """Longest sequence that learned positions cover; `seq_length` by default."""
    vocab_size: Annotated[Positive | None, resume.VOCABULARY, AlsoCalled("padded_vocab_size")] = None
    """Tokens in the vocabulary before padding; read from the tokenizer by default."""
    make_vocab_size_divisible_by: Annotated[
        Positive, resume.VOCABULARY, AlsoCalled("pad_vocab_size_to"), MegatronFlag()
    ] = 128
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""
    position_embedding_type: Annotated[
        Positions,
        resume.SHAPE,
        AlsoCalled(use_rotary_position_embeddings="rope", no_position_embedding="none", alibi="alibi"),
    ] = "rope"
    """How positions are told apart; `alibi` lowers attention scores by distance, with a slope for each head; `relative`
    is T5's, a learned bias of the scores for each range of distances."""
    rotary_percent: Annotated[
        float,
        Field(gt=0.0, le=1.0),
        BeforeValidator(refuse_bool),
        resume.LOGIC,
        AlsoCalled("rotary_pct partial_rotary_factor"),
        MegatronFlag(only=_ROPE),
    ] = 1.0
    """Part of each head that is rotated."""
    rotary_base: Annotated[Positive, resume.LOGIC, AlsoCalled("rope_theta rope_base"), MegatronFlag(only=_ROPE)] = 10000
    """Base of the rotary frequencies."""
    rope_scaling: Annotated[RopeScaling | None, resume.LOGIC] = None
    """Rotary positions for longer sequences."""
    sliding_window: Annotated[
        Positive | None, resume.LOGIC, AlsoCalled(window_size="(one more: it counts the token itself)")
    ] = None
    """Tokens that a token attends to: itself and those just before it. All by default. (Megatron's `window_size` does
    not count the token itself.)"""
    window_attn_skip_freq: Annotated[Positive | None, resume.LOGIC] = None
    """Every layer whose number (from 1) is a multiple of this attends to all tokens in spite of `sliding_window`."""
    attention_logit_softcapping: Annotated[
        PositiveNumber | None, resume.LOGIC, AlsoCalled("attn_logit_softcapping")
    ] = None
    """Attention scores x become cap · tanh(x / cap)."""
    softmax_scale: Annotated[PositiveNumber | None, resume.LOGIC] = None
    """Attention scores are multiplied by this; 1 / √(width of a head) by default. T5's published weights want 1."""
    final_logit_softcapping: Annotated[PositiveNumber | None, resume.LOGIC] = None
    """Logits x become cap · tanh(x / cap)."""
    normalization: Annotated[Literal["LayerNorm", "RMSNorm"], resume.SHAPE, AlsoCalled("norm_type")] = "LayerNorm"
    """The norm before attention, before the MLP and after the last layer."""
    transformer_block_type: Annotated[Literal["pre_ln", "post_ln"], resume.SHAPE] = "pre_ln"
    """BERT: whether norms stand before attention and MLP, and behind the last layer (`pre_ln`, as in Megatron-LM), or
    behind each of them and behind the embedding (`post_ln`, as in the first BERT)."""
    norm_epsilon: Annotated[
        PositiveNumber,
        resume.LOGIC,
        AlsoCalled("layernorm_epsilon layer_norm_epsilon layer_norm_eps rms_norm_eps norm_eps"),
        MegatronFlag(old_names=("layernorm-epsilon",)),
    ] = 1e-5
    """Added to the variance in each norm."""
    apply_layernorm_1p: Annotated[
        bool,
        resume.forbidden("the weights of norms have another meaning"),
        AlsoCalled("layernorm_zero_centered_gamma"),
        MegatronFlag(),
    ] = False
    """Norms multiply by 1 + weight instead of by weight."""
    activation: Annotated[
        Literal["gelu", "gelu_tanh", "relu", "squared_relu", "swiglu", "geglu"],
        resume.activation,
        AlsoCalled(
            "activation_function hidden_act",
            swiglu="swiglu",
            gated_linear_unit="(swiglu or geglu)",
            openai_gelu="(gelu: megatron-core takes no notice of it)",
            squared_relu="squared_relu",
        ),
    ] = "gelu"
    """The MLP's activation. `gelu_tanh` is GPT-2's approximation; `swiglu` and `geglu` (with that approximation) have a
    gate of the same width."""
    add_bias_linear: Annotated[
        bool, resume.SHAPE, AlsoCalled("bias", disable_bias_linear="false"), MegatronFlag("disable-bias-linear")
    ] = True
    """Biases in every linear layer."""
    add_qkv_bias: Annotated[
        bool,
        resume.same_or(lambda job: job.model.has_qkv_bias, resume.SHAPE),
        AlsoCalled("attention_bias"),
        MegatronFlag(),
    ] = False
    """A bias in the query/key/value projection only (`add_bias_linear` already has one)."""
    qk_layernorm: Annotated[bool, resume.SHAPE, MegatronFlag()] = False
    """Normalise queries and keys per head."""
    untie_embeddings_and_output_weights: Annotated[
        bool,
        resume.SHAPE,
        AlsoCalled(
            tie_word_embeddings="(the opposite)",
            weight_tying="(the opposite)",
            share_embeddings_and_output_weights="(the opposite)",
        ),
        MegatronFlag(),
    ] = False
    """Give the output layer its own weights instead of the embedding's."""
    add_output_bias: Annotated[bool, resume.SHAPE, HashedIfChanged()] = False
    """T5: a bias for each entry of the vocabulary in the tied output layer, as Megatron-LM's T5 has it."""
    scale_embeddings: Annotated[bool, resume.LOGIC] = False
    """Multiply token embeddings by the square root of the hidden size."""
    scale_decoder_outputs: Annotated[bool, resume.LOGIC] = False
    """T5: divide what the decoder gives by the square root of the hidden size before the output layer, as the first T5
    does."""
    encoder_num_layers: Annotated[
        Positive | None, resume.same_or(lambda job: job.model.encoder_layers, resume.SHAPE)
    ] = None
    """Layers of a T5's encoder; `num_layers` by default."""
    decoder_num_layers: Annotated[
        Positive | None, resume.same_or(lambda job: job.model.decoder_layers, resume.SHAPE), MegatronFlag(only=_T5)
    ] = None
    """Layers of a T5's decoder; `num_layers` by default."""
    decoder_seq_length: Annotated[Positive | None, resume.LOGIC, MegatronFlag(only=_T5)] = None
    """Tokens of a T5's decoder per training sample; `seq_length` is the encoder's."""
    relative_attention_num_buckets: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_RELATIVE)] = 32
    """Relative positions: distances that are told apart, near ones singly and far ones in ranges."""
    relative_attention_max_distance: Annotated[Positive, resume.LOGIC, MegatronFlag(only=_RELATIVE)] = 128
    """Relative positions: from here on all distances are alike."""
    bert_binary_head: Annotated[
        bool,
        resume.SHAPE,
        AlsoCalled("add_binary_head", bert_no_binary_head="false"),
        MegatronFlag("bert-no-binary-head", only=_BERT),
    ] = True
    """BERT: learn as well how the two parts of a sample belong together (`data.bert_order`), and tell them apart."""
    num_tokentypes: Annotated[Positive | None, resume.same_or(lambda job: job.model.tokentypes, resume.SHAPE)] = None
    """BERT: kinds of tokens that the embedding tells apart; by default the two parts of a sample with the binary head,
    and none without it."""
    hybrid_override_pattern: Annotated[
        Text | None,
        resume.same_or(lambda job: layer_pattern(job.model), resume.SHAPE),
        AlsoCalled("hybrid_layer_pattern"),
    ] = None
    """mamba: the layers in their order, a letter each: `M` state space, `*` attention, `-` MLP. By the two ratios by
    default."""
    hybrid_attention_ratio: Annotated[
        Fraction, resume.same_or(lambda job: layer_pattern(job.model), resume.SHAPE), MegatronFlag(only=_MAMBA)
    ] = 0.0
    """mamba: part of the layers that are attention, evenly spaced."""
    hybrid_mlp_ratio: Annotated[
        Fraction, resume.same_or(lambda job: layer_pattern(job.model), resume.SHAPE), MegatronFlag(only=_MAMBA)
    ] = 0.0
    """mamba: part of the layers that are MLPs, evenly spaced between the others."""
    mamba_state_dim: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_MAMBA)] = 128
    """mamba: state of each channel of a state space layer."""
    mamba_head_dim: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_MAMBA)] = 64
    """mamba: channels of a head of a state space layer."""
    mamba_num_groups: Annotated[Positive, resume.SHAPE, MegatronFlag(only=_MAMBA)] = 8
    """mamba: groups of heads that share how they write to their state and read from it."""
    mamba_num_heads: Annotated[
        Positive | None,
        resume.same_or(lambda job: state_space_heads(job.model), resume.SHAPE),
        MegatronFlag(only=_MAMBA),
    ] = None
    """mamba: heads of a state space layer; 2h / mamba_head_dim by default."""
    hidden_dropout: Annotated[
        Fraction, resume.LOGIC, AlsoCalled("dropout resid_pdrop embd_pdrop"), MegatronFlag(default=0.1)
    ] = 0.0
    """Dropout on the residual branches and embeddings."""
    attention_dropout: Annotated[Fraction, resume.LOGIC, AlsoCalled("attn_pdrop"), MegatronFlag(default=0.1)] = 0.0
    """Dropout on attention weights."""
    num_experts: Annotated[Positive | None, resume.SHAPE] = None
    """Experts of each mixture-of-experts layer; none by default: every MLP is dense."""
    moe_layer_freq: Annotated[
        Positive | list[Literal[0, 1]], resume.same_or(lambda job: job.model.moe_layers, resume.SHAPE)
    ] = 1
    """Which layers have experts: one in every so many, the first first, or a list of 1 (experts) and 0 (dense)."""
    moe_ffn_hidden_size: Annotated[
        Positive | None, resume.same_or(lambda job: job.model.moe_ffn_size, resume.SHAPE)
    ] = None
    """Width inside each expert; that of a dense MLP by default."""
    moe_shared_expert_intermediate_size: Annotated[Positive | None, resume.SHAPE] = None
    """Width inside an expert that every token passes, beside those it is routed to; several are one of their total
    width. None by default."""
    moe_router_topk: Annotated[Positive, resume.LOGIC] = 2
    """Experts that each token is routed to."""
    moe_router_score_function: Annotated[Literal["softmax", "sigmoid"], resume.LOGIC] = "softmax"
    """What turns the router's logits into weights of the chosen experts."""
    moe_router_pre_softmax: Annotated[bool, resume.LOGIC] = False
    """Take the softmax over all experts before the best are chosen, instead of over the chosen ones."""
    moe_router_dtype: Annotated[
        Literal["fp32", "fp64"] | None,
        resume.trajectory("the router rounds differently, and near ties choose other experts"),
    ] = None
    """Format in which the router computes; that of the activations by default."""
    moe_router_load_balancing_type: Annotated[
        Literal["aux_loss", "seq_aux_loss", "sinkhorn", "none"], resume.BALANCE
    ] = "aux_loss"
    """How tokens are kept balanced: a loss over each micro-batch, one over each sequence, or an assignment that
    balances by itself."""
    moe_aux_loss_coeff: Annotated[NonNegative, resume.BALANCE] = 0.0
    """Weight of the load-balancing loss; 0.01 is a good start."""
    moe_z_loss_coeff: Annotated[PositiveNumber | None, resume.BALANCE] = None
    """Weight of the loss that keeps the router's logits small; 0.001 is a good start."""
    moe_expert_capacity_factor: Annotated[PositiveNumber | None, resume.LOGIC] = None
    """Tokens that an expert takes at most, as a multiple of its even share; what is beyond passes by the experts. No
    token is dropped by default."""
    moe_token_dispatcher_type: Annotated[
        Literal["allgather", "alltoall"],
        resume.safe("tokens come to their experts another way; losses agree, not bitwise"),
    ] = "alltoall"
    """How tokens come to their experts: each to those that it needs, or all to all ranks."""
    moe_grouped_gemm: Annotated[
        bool | None, resume.safe("the same products in other kernels; losses agree, not bitwise")
    ] = None
    """Compute all experts of a rank in one kernel, with Transformer Engine's layers; by default wherever these are
    used."""
    lora: Annotated[LoraSpec | None, AlsoCalled("peft peft_config lora_config")] = None
    """Low-rank adapters: they are trained, and nothing else is."""
    vision: Annotated[VisionSpec | None, HashedIfChanged()] = None
    """Images among the tokens, and what encodes them; `{}` for that of LLaVA 1.5."""
    init_method_std: Annotated[
        PositiveNumber, resume.INITIAL, AlsoCalled("initializer_range init_std"), MegatronFlag()
    ] = 0.02
    """Standard deviation of the initial weights; layers that write to the residual stream use std / sqrt(2 L)."""

    @property
    def family(self) -> ModelFamily:
        """What is true of all models of its architecture."""
        return FAMILIES[self.architecture]

    @property
    def attention(self) -> AttentionBlock:
        """What its tokens attend with."""
        return attention_of(self)

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
    def moe_layers(self) -> tuple[bool, ...]:
        """For each layer whether it has experts."""
        if not self.has_experts:
            return (False,) * self.num_layers
        if isinstance(self.moe_layer_freq, list):
            return tuple(bool(has) for has in self.moe_layer_freq)
        return tuple(layer % self.moe_layer_freq == 0 for layer in range(self.num_layers))
