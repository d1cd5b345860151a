"""The fields of grouped-query attention in `model`."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import ConfigDict

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import (
    AlsoCalled,
    HashedIfChanged,
    ListedAfter,
    MegatronFlag,
    NoMegatronFlag,
    NotOfNetwork,
    ShortName,
)
from orchestrator.fields.values import MAX_SIZE, Fraction, KeptWhole, Number, Positive, PositiveNumber
from orchestrator.models.blocks.grouped_query_attention.rope_scaling import RopeScaling, attention_factor

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields, GroupedQueryFields

_RELATIVE = ("model.position_embedding_type", "relative")
_ROPE = ("model.position_embedding_type", "rope")
_RotaryBase = Annotated[float, Number(ge=1.0, le=MAX_SIZE), KeptWhole()]


class GroupedQueryAttentionSpec(Section):
    """Heads, what is done to queries and keys, and to their scores."""

    model_config = ConfigDict(defer_build=True)  # nothing is validated as one

    num_attention_heads: Annotated[
        Positive,
        resume.SHAPE,
        ShortName("heads"),
        AlsoCalled("n_head n_heads num_heads"),
        MegatronFlag(),
        ListedAfter("hidden_size"),
    ]
    """Query heads per layer."""
    num_query_groups: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.query_groups, resume.SHAPE),
        AlsoCalled("n_kv_head n_kv_heads num_kv_heads num_key_value_heads group_query_attention"),
        ListedAfter("ffn_hidden_size"),
    ] = None
    """Key/value heads: fewer than the query heads is grouped-query attention, 1 is multi-query."""
    kv_channels: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.head_dim, resume.SHAPE),
        AlsoCalled("head_dim"),
        MegatronFlag(),
    ] = None
    """Width of one head; h / num_attention_heads by default."""
    rotary_percent: Annotated[
        float,
        Number(gt=0.0, le=1.0),
        resume.LOGIC,
        AlsoCalled("rotary_pct partial_rotary_factor"),
        MegatronFlag(only=_ROPE),
        ListedAfter("position_embedding_type"),
    ] = 1.0
    """Fraction of each head that is rotated."""
    rotary_base: Annotated[
        _RotaryBase, resume.LOGIC, AlsoCalled("rope_theta rope_base"), MegatronFlag(only=_ROPE, is_whole=True)
    ] = 10000
    """Base of the rotary frequencies."""
    rotary_base_local: Annotated[
        _RotaryBase | None, resume.LOGIC, HashedIfChanged(), AlsoCalled("rope_local_base_freq")
    ] = None
    """Base of the rotary frequencies in layers with a window, which `rope_scaling` does not change then; `rotary_base`
    by default."""
    no_rope_freq: Annotated[Positive | None, resume.LOGIC, HashedIfChanged(), AlsoCalled("no_rope_layer_interval")] = (
        None
    )
    """Every layer whose number (from 1) is a multiple of this does without rotary positions."""
    attention_temperature_scale: Annotated[
        PositiveNumber | None,
        resume.LOGIC,
        HashedIfChanged(),
        AlsoCalled("attn_scale"),
        NoMegatronFlag("its queries have the same temperature at every position"),
    ] = None
    """Layers without rotary positions (`no_rope_freq`) multiply the query of token p (from 1) by 1 + this · ln(1 + ⌊p /
    `attention_temperature_interval`⌋), as in Llama 4 (Nakanishi 2025, "Scalable-Softmax Is Superior for Attention").
    Not at all by default."""
    attention_temperature_interval: Annotated[
        Positive,
        resume.LOGIC,
        HashedIfChanged(),
        AlsoCalled("floor_scale"),
        NoMegatronFlag("its queries have the same temperature at every position"),
    ] = 8192
    """Tokens after each of which the temperature changes."""
    attention_chunk_size: Annotated[
        Positive | None,
        resume.LOGIC,
        HashedIfChanged(),
        NoMegatronFlag("its attention has no chunks"),
    ] = None
    """Tokens of a chunk, beyond which layers with rotary positions do not look: a sequence is cut into chunks from its
    beginning on (Llama 4). Not at all by default."""
    rope_scaling: Annotated[RopeScaling | None, resume.LOGIC] = None
    """Rotary positions for longer sequences."""
    mrope_section: Annotated[
        list[Positive] | None,
        resume.LOGIC,
        HashedIfChanged(),
        NoMegatronFlag("it has them with --position-embedding-type mrope, for other models"),
    ] = None
    """Rotary positions in time, by row and by column of an image, for images of any size (Qwen2.5-VL's are [16, 24,
    24]): how many pairs of channels of a head turn by each. Text has the same position in all three."""
    sliding_window: Annotated[
        Positive | None, resume.LOGIC, AlsoCalled(window_size="(one more: it counts the token itself)")
    ] = None
    """Tokens that a token attends to: itself and those just before it; in a BERT as many after it too. All by default.
    (Megatron's `window_size` does not count the token itself.)"""
    window_attn_skip_freq: Annotated[
        Positive | list[Literal[0, 1]] | None, resume.same_or(lambda job: job.model.windowed_layers, resume.LOGIC)
    ] = None
    """Every layer whose number (from 1) is a multiple of this attends to all tokens, despite `sliding_window`; or a
    list of 1 (window) and 0 (all tokens) for each layer."""
    attention_logit_softcapping: Annotated[
        PositiveNumber | None, resume.LOGIC, AlsoCalled("attn_logit_softcapping")
    ] = None
    """Attention scores x become cap · tanh(x / cap)."""
    softmax_type: Annotated[Literal["vanilla", "learnable"], resume.SHAPE, HashedIfChanged(), MegatronFlag()] = (
        "vanilla"
    )
    """With `learnable` each head has an attention sink: a learned number s, whose exp(s) is added to the sum that the
    softmax divides by, so that a token may attend to little (gpt-oss)."""
    softmax_scale: Annotated[PositiveNumber | None, resume.LOGIC] = None
    """Attention scores are multiplied by this; 1 / √(width of a head) by default. T5's published weights need 1."""
    add_qkv_bias: Annotated[
        bool,
        resume.same_or(lambda job: job.model.has_qkv_bias, resume.SHAPE),
        AlsoCalled("attention_bias"),
        MegatronFlag(),
        ListedAfter("add_bias_linear"),
    ] = False
    """A bias in the query/key/value projection only (`add_bias_linear` already has one)."""
    qk_layernorm: Annotated[bool, resume.SHAPE, MegatronFlag()] = False
    """Normalise queries and keys."""
    qk_layernorm_scope: Annotated[Literal["head", "per_head", "projection"], resume.SHAPE, HashedIfChanged()] = "head"
    """What `qk_layernorm` normalises: `head`: each head by itself, with the same weights for all; `per_head`: by itself
    with weights of its own and no bias (Command R+); `projection`: the queries, and the keys, of all heads together
    (OLMo 2)."""
    attention_output_gate: Annotated[bool, resume.SHAPE, HashedIfChanged(), MegatronFlag()] = False
    """Multiply what each head gives by the sigmoid of a gate, which the query projection gives beside the queries
    (Qwen3-Next)."""
    qk_l2_norm: Annotated[
        bool,
        resume.LOGIC,
        HashedIfChanged(),
        AlsoCalled("use_qk_norm"),
    ] = False
    """Divide rotated queries and keys by the root of their mean square, each head by itself and without weights (Llama
    4). Layers without rotary positions do not."""
    relative_attention_num_buckets: Annotated[
        Positive, resume.SHAPE, MegatronFlag(only=_RELATIVE), ListedAfter("decoder_seq_length")
    ] = 32
    """Relative positions: number of distance buckets; near distances have their own, far ones share one per range."""
    relative_attention_max_distance: Annotated[Positive, resume.LOGIC, MegatronFlag(only=_RELATIVE)] = 128
    """Relative positions: distances beyond this share one bucket."""
    attention_dropout: Annotated[
        Fraction,
        resume.LOGIC,
        NotOfNetwork(),
        AlsoCalled("attn_pdrop"),
        MegatronFlag(default=0.1),
        ListedAfter("hidden_dropout"),
    ] = 0.0
    """Dropout on attention weights."""

    @property
    def query_groups(self) -> int:
        """Key/value heads."""
        return self.num_query_groups or self.num_attention_heads

    @property
    def head_dim(self: "Fields") -> int:
        """Width of one head."""
        return self.kv_channels or self.hidden_size // self.num_attention_heads

    @property
    def scale_of_scores(self: "Fields") -> float:
        """What attention scores are multiplied by."""
        return self.softmax_scale or 1 / math.sqrt(self.head_dim)

    @property
    def windowed_layers(self: "GroupedQueryFields") -> tuple[bool, ...]:
        """For each layer whether its tokens attend within `sliding_window` alone."""
        skip, numbers = self.window_attn_skip_freq, range(1, self.num_layers + 1)
        if self.sliding_window is None:
            return (False,) * self.num_layers
        if isinstance(skip, list):
            return tuple(bool(each) for each in skip)
        return tuple(skip is None or number % skip != 0 for number in numbers)

    @property
    def has_chunks(self: "GroupedQueryFields") -> bool:
        """Whether its sequences have several chunks."""
        return self.attention_chunk_size is not None and self.seq_length > self.attention_chunk_size

    @property
    def share_in_chunks(self: "GroupedQueryFields") -> float:
        """Share of all pairs of tokens that are in one chunk: the last one may be shorter."""
        if self.attention_chunk_size is None or not self.has_chunks:
            return 1.0
        whole, rest = divmod(self.seq_length, self.attention_chunk_size)
        return (whole * self.attention_chunk_size**2 + rest**2) / self.seq_length**2

    @property
    def window_size(self: "GroupedQueryFields") -> tuple[int, int] | None:
        """Tokens before a token, and after it, that it attends to in layers with a window, as Megatron-LM counts."""
        if self.sliding_window is None:
            return None
        beside = self.sliding_window - 1
        return (beside, 0) if self.family.is_decoder_only else (beside, beside)

    @property
    def has_sinks(self) -> bool:
        """Whether each head has a learned sink for its attention."""
        return self.softmax_type == "learnable"

    def keeps_scores(self: "Fields", layers: str, *, in_parts: bool = False) -> bool:
        """Whether torch computes and keeps every score, as no fused kernel of these layers does what is done to them.
        `in_parts`: ranks share a sequence, or it holds several conversations, which leaves Transformer Engine's out.
        """
        slopes = self.position_embedding_type == "alibi"
        return self.attention_logit_softcapping is not None or (
            self.has_sinks and (layers == "torch" or in_parts or slopes)
        )

    @property
    def mrope_sections(self) -> tuple[int, ...]:
        """Pairs of channels that turn by the position in time, by row and by column; of a model that has these."""
        assert self.mrope_section is not None, "the caller has asked for it"
        return tuple(self.mrope_section)

    @property
    def rotates_by_layer(self) -> bool:
        """Whether layers differ in how they rotate queries and keys."""
        return self.rotary_base_local is not None or self.no_rope_freq is not None

    @property
    def rotated_query_factor(self) -> float:
        """What the rotated channels of queries are multiplied by for YaRN, where these are not all channels of all
        layers; where they are, 1: the scores are multiplied by it.
        """
        whole = self.rotary_percent == 1.0 and not self.rotates_by_layer
        return 1.0 if whole else attention_factor(self.rope_scaling) ** 2

    @property
    def has_qkv_bias(self: "Fields") -> bool:
        """Whether the query/key/value projection has a bias."""
        return self.add_bias_linear or self.add_qkv_bias
