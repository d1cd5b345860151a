"""In what terms a block describes itself: its matrices, its scores, and what a rank computes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from orchestrator.models.blocks.model_fields import Fields

FP32 = 4
"""Bytes."""


class Degrees(NamedTuple):
    """How many ranks share out a layer's weights."""

    tp: int = 1
    etp: int = 1
    """Those that split each expert."""
    ep: int = 1
    """Those that have other experts each."""


class Routing(NamedTuple):
    """Experts of a layer, of which each token passes some."""

    experts: int
    chosen: int
    kept: float
    """Share of the tokens routed to an expert that it takes; the others are dropped."""


Parallel: TypeAlias = Literal["column", "row", "replicated"]


class Matrix(NamedTuple):
    """The weight of a linear layer, and its bias, whole."""

    name: str
    """Of the linear layer among its block's modules."""
    inputs: int
    outputs: int
    parallel: Parallel
    """What tensor parallelism splits: the outputs (column), or the inputs, after which ranks sum what they have (row).
    Replicated, every rank has it whole, and multiplies its own tokens by it."""
    has_bias: bool
    routing: Routing | None = None
    """Where each expert has such a matrix; None where every token passes it."""
    holds: tuple[int, ...] = ()
    """Outputs of each matrix that it holds, where these are several; () where it is one."""
    behind: tuple[str, ...] | None = None
    """Names of the matrices of its block whose outputs it takes. None: one that is split by its inputs takes those of
    the matrix before it, any other the block's input."""

    def parameters(self, degrees: Degrees) -> int:
        """Those that each rank holds."""
        tp, count = (degrees.tp, 1) if self.routing is None else (degrees.etp, self.routing.experts // degrees.ep)
        outputs = self.outputs // tp if self.parallel == "column" else self.outputs
        weight = self.inputs * outputs // (tp if self.parallel == "row" else 1)
        return count * (weight + (outputs if self.has_bias else 0))

    def split(self, tp: int) -> tuple[float, float]:
        """Inputs and outputs on each of `tp` ranks."""
        if self.parallel == "replicated":
            return self.inputs, self.outputs
        return (self.inputs, self.outputs / tp) if self.parallel == "column" else (self.inputs / tp, self.outputs)


class Scores(NamedTuple):
    """Of a query with each token that it attends to."""

    heads: int
    key_width: int
    """Of a head's query, and of its key."""
    value_width: int
    """Of a head's value."""

    @property
    def width(self) -> int:
        """Of all heads, in products of queries with keys and of scores with values: the mean of both."""
        return self.heads * (self.key_width + self.value_width) // 2

    @property
    def output(self) -> int:
        """Of what all heads give."""
        return self.heads * self.value_width


class ForwardBackward(NamedTuple):
    """Something of the forward pass, and of the backward pass."""

    forward: float
    backward: float

    def plus(self, other: ForwardBackward, times: float = 1.0) -> ForwardBackward:
        """This, and so many times another."""
        return ForwardBackward(self.forward + times * other.forward, self.backward + times * other.backward)


NOTHING = ForwardBackward(0, 0)


class Scan(NamedTuple):
    """Of a state that is passed from token to token: widths of what its kernels read and write, and its arithmetic."""

    projected: int
    """What the first matrix gives."""
    convolved: int
    """Of that, what passes a convolution."""
    inner: int
    """What it gives itself."""
    flops: int
    """For each token, forward."""
    chunked: ForwardBackward = NOTHING
    """Numbers in fp32 that operations on chunks of tokens read and write for each token, where no kernel has the whole
    scan.
    """


class RankShape(NamedTuple):
    """The sizes of a layer's tensors on one rank over a micro-batch, in elements."""

    width: int
    """Bytes of an element of weights and activations."""
    tokens: int
    """T: inside tensor-parallel regions, every rank has all tokens."""
    own_tokens: int
    """Between these regions: T, or T / TP under sequence parallelism."""
    positions: int
    """Tokens of one sequence on this rank."""
    hidden: int
    degrees: Degrees
    cp: int
    sequence_parallel: bool

    @property
    def tp(self) -> int:
        """Ranks of a tensor-parallel region."""
        return self.degrees.tp

    @property
    def stream(self) -> int:
        """Bytes of the residual stream between tensor-parallel regions."""
        return self.own_tokens * self.hidden * self.width

    @property
    def whole_stream(self) -> int:
        """Bytes of the residual stream inside a tensor-parallel region."""
        return self.tokens * self.hidden * self.width


class CoreKernels(NamedTuple):
    """What computes attention between its matrices, and an MLP or experts."""

    layers: Literal["torch", "transformer_engine"]
    rotates_projection: bool
    """Queries and keys are rotated where their projection left them."""
    masked: bool
    """Attention takes a mask of each micro-batch's own: of packed conversations, or of images."""
    is_recomputed: bool
    """The core is computed again in the backward pass."""
    operand_bytes: float | None = None
    """Of an element of what linear layers multiply, where that is in FP8 or FP4."""
    groups_experts: bool = False
    """All experts of a rank are multiplied in one kernel."""
    joins_experts: bool = False
    """What is between their products is one kernel as well, which keeps its inputs and what it gives."""
    joins_gate: bool = False
    """The gated activation of a dense MLP is one kernel, which keeps its input and what it gives."""


class Accesses(Protocol):
    """How often kernels read or write what passes between matrices and core (planning/time/kernels/accesses.py)."""

    @property
    def rope(self) -> ForwardBackward: ...
    @property
    def latent_copies(self) -> ForwardBackward: ...
    @property
    def attention_layout(self) -> ForwardBackward: ...
    @property
    def joins(self) -> float: ...
    @property
    def returns_together(self) -> bool: ...
    @property
    def projection(self) -> ForwardBackward | None: ...


class CoreWork(NamedTuple):
    """A micro-batch of a rank, as the kernels around the core of attention see it."""

    tokens: float
    tp: int
    cp: int
    kernels: Accesses
    norm: ForwardBackward
    """Accesses of a norm over what is normed."""
    rotates_at_once: bool
    """One kernel rotates queries and keys as their projection left them."""
    is_fused: bool
    """The core is a fused kernel, which takes no mask of every score."""


class RoutedTokens(NamedTuple):
    """What brings the tokens of a micro-batch to experts, once each way in a pass, in elements of a rank."""

    experts: int
    """That it has."""
    scores: float
    """Of the router."""
    sent: float
    """Of its tokens, each as often as an expert takes it."""
    computed: float
    """Of those that its experts take, which ranks that split each expert gather."""
    gathered: float
    """Of all tokens, where all ranks that share out the experts gather these instead; else 0."""
    chosen: int = 1
    """Experts of a token."""
    among: float = 1.0
    """Share of all experts that these are among: less than all where they are from some groups only."""
    biased: float = 0.0
    """Of what experts give, where a bias is added to it."""
    clamped: float = 0.0
    """Of the width inside experts, where their activation clamps it."""
    other_waits: int = 0
    """How often megatron-core has the host wait for the GPU in a forward pass, beside once for the tokens that each
    expert has.
    """


class LayerTools(NamedTuple):
    """The modules of a layer backend, of which a block's layers are made."""

    column: Any
    """A linear layer whose outputs are split over tensor-parallel ranks."""
    row: Any
    """One whose inputs are."""
    norm: Any
    projection_norm: Any
    """RMSNorm over all heads of the queries, or of the keys, whose number it is given as `heads`."""
    per_head_norm: Any
    """LayerNorm of each of these heads, with weights of its own."""
    core: Any
    """Attention of queries to keys and values that are there."""
    rotated_attention: Any
    """megatron-core's SelfAttention, with one kernel that rotates queries and keys where the projection left them; or,
    where layers differ in their rotation, with that of each."""


class LayerSetup(NamedTuple):
    """What the configuration of a job's layers follows from beside its model."""

    replicas: int
    """DP."""
    degrees: Degrees
    fuses_activation: bool
    """A kernel of megatron-core's has the bias and the activation in one."""
    gelu: Callable[[Any], Any]
    """The exact GeLU, x · Φ(x), by the fastest kernels."""


def norm_parameters(model: Fields, width: int) -> int:
    """Parameters of one norm over `width` values."""
    return 2 * width if model.has_norm_bias else width


def norm_statistics(model: Fields) -> int:
    """Bytes per row that a norm keeps: the inverse deviation, and LayerNorm the mean as well, in fp32."""
    return FP32 if model.normalization == "RMSNorm" else 2 * FP32
