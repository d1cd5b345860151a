"""What one transformer layer holds for its backward pass, and what that pass takes beside it. Bytes of one rank.

Counted from the tensors that autograd saves, each storage once (Korthikanti et al. 2022, "Reducing Activation
Recomputation in Large Transformer Models", section 4, counts the same for an attention that keeps its scores; ours does
not). A view keeps all of the tensor that it is a view of. Sizes below are in elements: T tokens of a
micro-batch on this rank, h hidden, q and k the widths of this rank's queries and keys, f of its part of the MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.backends.fused_kernels import rotates_projection
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.precision import DTYPE_BYTES
from orchestrator.spec.sections.runtime import Layers

FP32 = 4


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one layer's tensors on one rank, in elements."""

    width: int
    """Bytes of an element of weights and activations."""
    tokens: int
    """T: inside tensor-parallel regions, every rank has all tokens."""
    own_tokens: int
    """Between these regions: T, or T / TP under sequence parallelism."""
    positions: int
    """Tokens of one sequence on this rank."""
    hidden: int
    heads: int
    groups: int
    """Key/value heads."""
    head_dim: int
    qkv: int
    """Width of the projection's output that the attention's views keep."""
    ffn: int
    gate: int
    """Halves of the first MLP matrix's output: 2 with a gate, else 1."""
    sequence_parallel: bool

    @property
    def stream(self) -> int:
        """Bytes of the residual stream between tensor-parallel regions."""
        return self.own_tokens * self.hidden * self.width

    @property
    def whole_stream(self) -> int:
        """Bytes of the residual stream inside a tensor-parallel region."""
        return self.tokens * self.hidden * self.width

    @property
    def query(self) -> int:
        """Bytes of the queries, and of the attention's output."""
        return self.tokens * self.heads * self.head_dim * self.width

    @property
    def key(self) -> int:
        """Bytes of the keys, and of the values."""
        return self.tokens * self.groups * self.head_dim * self.width

    @property
    def inner(self) -> int:
        """Bytes of the MLP's inner activation."""
        return self.tokens * self.ffn * self.width


def layer_sizes(job: JobSpec) -> LayerSizes:
    """The sizes for one micro-batch of a job."""
    model, degrees = job.model, job.parallelism
    tp, sharded = degrees.tensor_model_parallel_size, degrees.uses_sequence_parallel
    positions = model.seq_length // degrees.context_parallel_size
    tokens = model.sample_length // degrees.context_parallel_size * job.micro_batch_sequences
    heads, all_groups = model.num_attention_heads // tp, model.query_groups
    groups = max(all_groups // tp, 1)
    # Where several ranks share a key/value head, each gathers the projections of all of them and takes its part.
    projected = (heads + 2 * groups) if all_groups >= tp else model.num_attention_heads + 2 * all_groups
    return LayerSizes(
        width=DTYPE_BYTES[job.precision.dtype],
        tokens=tokens,
        own_tokens=tokens // tp if sharded else tokens,
        positions=positions,
        hidden=model.hidden_size,
        heads=heads,
        groups=groups,
        head_dim=model.head_dim,
        qkv=projected * model.head_dim,
        ffn=model.ffn_size // tp,
        gate=2 if model.is_gated else 1,
        sequence_parallel=sharded,
    )


def norm_statistics(job: JobSpec) -> int:
    """Bytes per row that a norm keeps: the inverse deviation, and LayerNorm the mean as well, in fp32."""
    return FP32 if job.model.normalization == "RMSNorm" else 2 * FP32


def saved_by_layer(
    job: JobSpec, sizes: LayerSizes, layers: Layers, *, selective: bool, experts: int | None = None
) -> int:
    """Bytes that one layer keeps from its forward to its backward pass over one micro-batch.

    `selective`: the attention is recomputed. `experts`: what its experts keep, where it has some.
    """
    statistics = norm_statistics(job)
    norms = 2 * (2 * sizes.stream + sizes.own_tokens * statistics)  # input, statistics, and output for the linear
    if "layernorm" in job.runtime.recomputed_modules and layers == "torch":  # a part of the linear in the other
        norms = 2 * sizes.stream
    elif "layernorm" in job.runtime.recomputed_modules and experts is not None:  # the one before experts is not
        norms -= sizes.stream + sizes.own_tokens * statistics
    dropped = 2 * sizes.own_tokens * sizes.hidden if job.model.hidden_dropout > 0 else 0  # masks of one byte
    mlp = kept_inside_mlp(job, sizes) if experts is None else experts
    if ("mlp" if experts is None else "moe") in job.runtime.recomputed_modules:
        mlp = 0
    own = _kept_by_variant(job, sizes, layers, selective=selective)
    return norms + _attention(job, sizes, layers, statistics, selective) + mlp + dropped + own


def kept_inside_mlp(job: JobSpec, sizes: LayerSizes) -> int:
    """Of a dense MLP the activation's input, and its output for the second linear. ReLU needs its output alone."""
    return (sizes.gate + (job.model.activation != "relu")) * sizes.inner


def _attention(job: JobSpec, sizes: LayerSizes, layers: Layers, statistics: int, selective: bool) -> int:
    """From the projection's output to the second linear's input."""
    model = job.model
    rotated = model.position_embedding_type == "rope"
    normed = model.qk_layernorm
    projection = sizes.tokens * sizes.qkv * sizes.width
    # Queries of several heads per group do not lie evenly in the projection's output, so they are copied out of it.
    copied = sizes.groups > 1 and sizes.heads > sizes.groups
    kept = sizes.query + (0 if selective else sizes.tokens * sizes.heads * FP32)  # output, log-sum-exp
    if normed:
        kept += sizes.tokens * (sizes.heads + sizes.groups) * statistics
    whole = 0 if selective else _whole_sequence(job, sizes)
    if rotates_projection(job, layers):  # and stays where it is, or goes to tensors of its own as a whole
        return kept + projection
    if layers == "torch":
        kept += whole
        kept += 0 if whole and (rotated or normed) else projection  # the values are a view of it
        if rotated or normed:
            kept += sizes.query + sizes.key
        if copied and (normed or not rotated):
            kept += sizes.query  # saved by the norm, or by the attention itself
        if rotated:
            # Cosines and sines are made anew by every layer, for queries and for keys.
            kept += 4 * sizes.positions * rotary_width(job) * sizes.width
        return kept
    if normed:
        kept += sizes.query + sizes.key  # its norms take evenly laid out copies
    if rotated or normed:
        kept += sizes.query + sizes.key
        # Its attention copies values that do not lie as the keys do; recomputed, it keeps what they are a view of.
        return kept + (projection if selective else sizes.key)
    return kept + (projection + sizes.query if copied and selective else projection)


def _kept_by_variant(job: JobSpec, sizes: LayerSizes, layers: Layers, *, selective: bool) -> int:
    """What a layer keeps more than a plain one."""
    model, kept = job.model, 0
    if model.attention_logit_softcapping is not None and not selective:
        rows = sizes.tokens * sizes.heads
        kept += rows * model.seq_length * _of_a_score(sizes) - rows * FP32  # and no log-sum-exp
    repeats = model.attention_logit_softcapping is not None or job.data.packs
    if repeats and not selective and sizes.groups < sizes.heads:
        kept += 2 * sizes.query - 2 * sizes.key  # keys and values for each query head
    if model.apply_layernorm_1p and layers == "torch":
        # These norms compute on, and keep, fp32 copies of their input and of 1 + weight.
        kept += 2 * (sizes.stream * (FP32 - sizes.width) // sizes.width + sizes.hidden * FP32)
        if model.qk_layernorm:
            copies = 0 if sizes.width == FP32 else FP32 // sizes.width
            kept += (sizes.query + sizes.key) * copies + 2 * sizes.head_dim * FP32
    return kept


def _whole_sequence(job: JobSpec, sizes: LayerSizes) -> int:
    """Under context parallelism torch's layers keep the keys and values of the whole sequence, gathered, and the
    attention's output twice: as its two halves, and whole for the next linear. Recomputed, they keep neither.
    """
    cp = job.parallelism.context_parallel_size
    return 2 * cp * sizes.key + sizes.query if cp > 1 else 0


def rotary_width(job: JobSpec) -> int:
    """Rotated elements of a head."""
    width = job.model.head_dim
    return int(width * job.model.rotary_percent) if job.model.rotary_percent < 1 else width


def backward_of_layer(job: JobSpec, sizes: LayerSizes, layers: Layers) -> int:
    """The most that the backward pass of a layer takes beyond everything that was saved when it began, in bytes.

    That is in its MLP, of which three moments compete: gradients appear while what was saved is still needed. The
    attention comes when the MLP's part is free again.
    """
    gradient = sizes.stream
    weight = sizes.ffn * sizes.hidden * sizes.width
    gathered = sizes.whole_stream if sizes.sequence_parallel else 0
    masked = sizes.stream if job.model.hidden_dropout > 0 else 0
    second_linear = gradient + masked + gathered + sizes.inner + weight
    activation = gradient + sizes.gate * sizes.inner
    first_linear = gradient - sizes.inner + sizes.whole_stream + sizes.gate * weight
    if sizes.sequence_parallel:
        first_linear += sizes.stream + (gathered if layers == "transformer_engine" else 0)
    if job.precision.fp8 is not None:
        # The gradient of a linear's output is cast in both orders, and is still there itself; its input was one byte.
        second_linear += sizes.whole_stream
        first_linear += sizes.gate * sizes.inner + sizes.inner // 2
    again = kept_inside_mlp(job, sizes) if "mlp" in job.runtime.recomputed_modules else 0
    return max(again + max(second_linear, activation, first_linear), _backward_of_capped(job, sizes))


def _backward_of_capped(job: JobSpec, sizes: LayerSizes) -> int:
    """What the backward pass of soft-capped attention takes: above all the gradient of its softmax."""
    if job.model.attention_logit_softcapping is None:
        return 0
    scores = sizes.tokens * sizes.heads * job.model.seq_length
    again = _of_a_score(sizes) if job.runtime.recompute_granularity == "selective" else 0
    return 3 * sizes.stream + sizes.query + scores * (FP32 + again)


def _of_a_score(sizes: LayerSizes) -> int:
    """Bytes that soft-capped attention keeps of each score: capped, and the softmax in fp32 and in the activations'
    format.
    """
    return FP32 + (2 * sizes.width if sizes.width < FP32 else FP32)
