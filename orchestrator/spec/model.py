"""The network."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields import resume
from orchestrator.fields.metadata import (
    AlsoCalled,
    HashedIfChanged,
    MegatronFlag,
    NoMegatronFlag,
    NotOfNetwork,
    ShortName,
)
from orchestrator.fields.order import in_listed_order
from orchestrator.fields.values import Fraction, Plain, PluginName, Positive, PositiveNumber, Size, Text, empty_dict
from orchestrator.models.blocks.registry import AttentionBlock, BlockFields, attention_of
from orchestrator.models.layer_pattern import layer_pattern
from orchestrator.models.layers import adapter_targets_of
from orchestrator.models.registry import BERT, FAMILIES, MAMBA, T5, Architecture, ModelFamily, Positions
from orchestrator.spec.lora import LoraSpec
from orchestrator.spec.vision import VisionSpec

_BERT = ("model.architecture", BERT.name)
_MAMBA = ("model.architecture", MAMBA.name)
_T5 = ("model.architecture", T5.name)
_OURS = "Megatron-LM has no attentions of other packages"


@in_listed_order
class ModelSpec(BlockFields):
    """The architecture of the transformer. `preset` provides the values that are left out."""

    architecture: Annotated[Architecture, resume.SHAPE, AlsoCalled("model_type arch")] = "gpt"
    """The family: `gpt` is a decoder, `bert` an encoder that predicts masked tokens, `t5` an encoder and a decoder that
    restores the spans removed from the encoder's input, `mamba` a decoder of state space layers (Mamba-2)
    or a hybrid of these with attention and MLPs."""
    preset: Annotated[
        Text | None,
        resume.safe("a preset only fills in fields, which are compared themselves"),
        NotOfNetwork(),
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
    seq_length: Annotated[
        Positive,
        resume.sequence,
        NotOfNetwork(),
        ShortName("seq"),
        AlsoCalled("encoder_seq_length seq_len max_seq_len max_seq_length sequence_length block_size n_ctx"),
        MegatronFlag(old_names=("encoder-seq-length",)),
    ]
    """Tokens per training sequence, s."""
    max_position_embeddings: Annotated[Positive | None, resume.positions, AlsoCalled("n_positions")] = None
    """Longest sequence that learned positions cover; `seq_length` by default."""
    position_embedding_offset: Annotated[
        Size, resume.SHAPE, HashedIfChanged(), NoMegatronFlag("its positions begin at the first row")
    ] = 0
    """BERT: rows of the table of learned positions before that of the first token: RoBERTa has two, up to that of
    padding."""
    vocab_size: Annotated[Positive | None, resume.VOCABULARY, NotOfNetwork(), AlsoCalled("padded_vocab_size")] = None
    """Tokens in the vocabulary before padding; read from the tokenizer by default."""
    make_vocab_size_divisible_by: Annotated[
        Positive, resume.VOCABULARY, NotOfNetwork(), AlsoCalled("pad_vocab_size_to"), MegatronFlag()
    ] = 128
    """The vocabulary is padded to a multiple of this times the tensor-parallel size."""
    position_embedding_type: Annotated[
        Positions,
        resume.SHAPE,
        AlsoCalled(use_rotary_position_embeddings="rope", no_position_embedding="none", alibi="alibi"),
    ] = "rope"
    """How positions are distinguished; `alibi` lowers attention scores by distance, with a slope for each head;
    `relative` is T5's, a learned bias on the scores for each range of distances."""
    final_logit_softcapping: Annotated[PositiveNumber | None, resume.LOGIC] = None
    """Logits x become cap · tanh(x / cap)."""
    normalization: Annotated[Literal["LayerNorm", "RMSNorm"], resume.SHAPE, AlsoCalled("norm_type")] = "LayerNorm"
    """The norm around attention and MLP, and after the last layer."""
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
    add_bias_linear: Annotated[
        bool, resume.SHAPE, AlsoCalled("bias", disable_bias_linear="false"), MegatronFlag("disable-bias-linear")
    ] = True
    """Biases in every linear layer."""
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
    """T5: a bias for each vocabulary entry in the tied output layer, as in Megatron-LM's T5."""
    scale_embeddings: Annotated[bool, resume.LOGIC] = False
    """Multiply token embeddings by the square root of the hidden size."""
    scale_decoder_outputs: Annotated[bool, resume.LOGIC] = False
    """T5: divide the decoder's output by the square root of the hidden size before the output layer, as in T5 v1.0."""
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
    bert_binary_head: Annotated[
        bool,
        resume.SHAPE,
        AlsoCalled("add_binary_head", bert_no_binary_head="false"),
        MegatronFlag("bert-no-binary-head", only=_BERT),
    ] = True
    """BERT: also learn how the two parts of a sample are related (`data.bert_order`), and distinguish them."""
    bert_head_bias: Annotated[
        bool, resume.SHAPE, HashedIfChanged(), NoMegatronFlag("the dense layer of its BERT's head has a bias")
    ] = True
    """BERT: a bias in the dense layer between the last layer and the output layer (ModernBERT has none)."""
    num_tokentypes: Annotated[Positive | None, resume.same_or(lambda job: job.model.tokentypes, resume.SHAPE)] = None
    """BERT: token types of the embedding; by default two with the binary head, one for each part of a sample, and none
    without it."""
    hybrid_override_pattern: Annotated[
        Text | None,
        resume.same_or(lambda job: layer_pattern(job.model), resume.SHAPE),
        AlsoCalled("hybrid_layer_pattern"),
    ] = None
    """mamba: the layers in order, one letter each: `M` state space, `*` attention, `-` MLP, `E` experts. By
    default the two ratios determine it."""
    hybrid_attention_ratio: Annotated[
        Fraction, resume.same_or(lambda job: layer_pattern(job.model), resume.SHAPE), MegatronFlag(only=_MAMBA)
    ] = 0.0
    """mamba: fraction of attention layers, evenly spaced."""
    hybrid_mlp_ratio: Annotated[
        Fraction, resume.same_or(lambda job: layer_pattern(job.model), resume.SHAPE), MegatronFlag(only=_MAMBA)
    ] = 0.0
    """mamba: fraction of MLP layers, evenly spaced between the others."""
    hidden_dropout: Annotated[
        Fraction, resume.LOGIC, NotOfNetwork(), AlsoCalled("dropout resid_pdrop embd_pdrop"), MegatronFlag(default=0.1)
    ] = 0.0
    """Dropout on the residual branches and embeddings."""
    lora: Annotated[LoraSpec | None, AlsoCalled("peft peft_config lora_config")] = None
    """Low-rank adapters: only they are trained."""
    vision: Annotated[VisionSpec | None, HashedIfChanged()] = None
    """Images among the tokens, and their encoder; `{}` for that of LLaVA 1.5."""
    attention_plugin: Annotated[PluginName | None, resume.SHAPE, HashedIfChanged(), NoMegatronFlag(_OURS)] = None
    """An attention of another package: the name of an entry point in the group `orchestrator.blocks`."""
    attention_options: Annotated[dict[str, Plain], resume.LOGIC, HashedIfChanged(), NoMegatronFlag(_OURS)] = Field(
        default_factory=empty_dict
    )
    """Options of that attention."""
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
    def has_adapters(self) -> bool:
        """Whether low-rank adapters alone are trained."""
        return self.lora is not None

    @property
    def adapters(self) -> LoraSpec:
        """The adapters of a model that has some."""
        assert self.lora is not None, "the caller has asked `has_adapters`"
        return self.lora

    @property
    def adapted_modules(self) -> tuple[str, ...]:
        """Names of the matrices that adapters stand beside; none in a model without adapters."""
        if self.lora is None:
            return ()
        return adapter_targets_of(self) if self.lora.target_modules is None else tuple(self.lora.target_modules)

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
    def attends_both_ways_in_images(self) -> bool:
        """Whether the tokens of an image attend to each other, which a mask in every layer says."""
        return self.vision is not None and self.vision.kind.attends_both_ways

    @property
    def positions(self) -> int:
        """Length of the learned position table."""
        return self.max_position_embeddings or self.seq_length + self.position_embedding_offset

    @property
    def longest_positioned(self) -> int:
        """Tokens of the longest sequence that the table of learned positions covers."""
        return self.positions - self.position_embedding_offset

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
