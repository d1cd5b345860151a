"""What a kernel on a GPU, or an operation of torch on the CPU, does: told by its name."""

from __future__ import annotations

import re
from functools import cache

GEMM, ATTENTION, MEMORY_BOUND, LOSS, OPTIMIZER, OTHER = (
    "gemm",
    "attention",
    "memory_bound",
    "loss",
    "optimizer",
    "other",
)
COMPUTE = (GEMM, ATTENTION, MEMORY_BOUND, LOSS, OPTIMIZER, OTHER)
COMMUNICATION = "communication"
HOST_COPIES = "host_copies"

MARK = "spin_kernel"
"""What `torch.cuda._sleep` starts: it stands for a moment of the step, and is no part of it."""

_KERNELS: tuple[tuple[str, str], ...] = (
    (COMMUNICATION, r"^nccl|ncclDevKernel|ncclKernel|nvshmem|userbuffers|multimem_|symm_mem|(one|two)_shot_all_reduce"),
    (COMMUNICATION, r"^memcpy ptop"),
    (HOST_COPIES, r"^memcpy (htod|dtoh)"),
    (MEMORY_BOUND, r"^mem(cpy|set)"),
    (MEMORY_BOUND, r"multi_tensor.*BinaryOpListAlpha"),  # adds many gradients to their buffers
    (OPTIMIZER, r"multi_?tensor|adam|lpnorm"),
    (LOSS, r"cross_?entropy|nll_?loss|log_?softmax|logsumexp"),
    (GEMM, r"^triton_tem\w*_(mm|addmm|bmm|baddbmm)|^_(multiply|add_products)$"),
    (ATTENTION, r"fmha|flash|sdpa|attention|attn|softmax|dot_do_o|cudnn::fusion"),
    (MEMORY_BOUND, r"epilogue::impl::\w*bgrad"),  # sums a bias's gradient behind the product
    (GEMM, r"gemm|cutlass|nvjet|xmma|cublas|splitk|s16816|wgmma|gemv|matmul|dot_kernel|reduce_1block_kernel"),
    (MEMORY_BOUND, r"^triton_"),
    (
        MEMORY_BOUND,
        r"elementwise|vectorized|norm|gammabeta|rope|rotary|_rotate|gelu|glu|silu|gated|act_|dropout|bias|residual|activation",
    ),
    (MEMORY_BOUND, r"copy|cast|transpose|cat|index|gather|scatter|embedding|fill|reduce|permute|sort|scan|topk|unroll"),
    (MEMORY_BOUND, r"amax|scal|quantize|grad_weight|krn_|cub::|random|distribution|philox|arange|mask|router|moe"),
    (MEMORY_BOUND, r"chunk_|causal_conv1d|ssd_|state_passing|_branch|_of_bias|_gate|_share_gradients|_row_id_map"),
)
"""Kernels by what their names hold; the first that fits counts. Case does not matter."""

_OF_A_LOSS = {"exp", "log", "max", "amax", "put"}
_OF_NO_LOSS = {"silu", "sigmoid", "tanh", "erf", "gelu", "rsqrt", "softmax", "softplus", "embedding"}
"""torch.compile names a kernel after the operations in it. Those of a cross entropy take exponentials, or put a
gradient into its place; activations, norms and the embedding's gradient do so with other operations beside them."""

_OPERATIONS: tuple[tuple[str, str], ...] = (
    (COMMUNICATION, r"^(gloo|mpi|nccl):|^c10d::|^_c10d_functional::"),
    (OPTIMIZER, r"adam|^aten::_fused_sgd|_foreach_norm"),
    (LOSS, r"CrossEntropy|cross_entropy|nll_loss|log_softmax|logsumexp"),
    (ATTENTION, r"scaled_dot_product|flash_attention|attention|^aten::_?softmax|ScaledDotProduct"),
    (GEMM, r"^aten::(mm|addmm|addmm_|bmm|baddbmm|matmul|linear|_scaled_mm)$|^mkl(dnn)?(::|_)"),
)

_SHARED = frozenset({LOSS, ATTENTION, OPTIMIZER, COMMUNICATION})
"""What an operation on the CPU is, its smaller ones are as well."""


@cache
def part_of_kernel(name: str) -> str:
    """The part of a step that a kernel belongs to; OTHER where its name says nothing."""
    compiled = re.fullmatch(r"triton_(?:poi|red|per)_fused_(\w+)", name)
    if compiled is not None:
        words = set(compiled.group(1).split("_"))
        if words & _OF_A_LOSS and not words & _OF_NO_LOSS:
            return LOSS
    return _first(_KERNELS, name) or OTHER


def part_of_operation(name: str, outer: str | None) -> str | None:
    """The part of a step that an operation of torch belongs to, called by one of the part `outer`.

    Everything that is not listed moves memory, but for autograd's own work, which is the host's.
    """
    known = _known_operation(name)
    if known == COMMUNICATION:
        return known
    if outer in _SHARED:
        return outer
    if known is not None:
        return known
    return MEMORY_BOUND if name.startswith("aten::") else outer


def kind_of_communication(name: str) -> str:
    """`AllGather`, `ReduceScatter`, `AllReduce`, `SendRecv`, `Broadcast`, or `other`."""
    plain = re.sub(r"[^a-z]", "", name.lower())
    for kind in ("AllGather", "ReduceScatter", "AllReduce", "SendRecv", "AllToAll", "Broadcast", "Reduce"):
        if kind.lower() in plain:
            return kind
    return "SendRecv" if "send" in plain or "recv" in plain else "other"


def computes(name: str) -> bool:
    """Whether an operation's own time is work: that of others, such as autograd's, is the host's, or waiting."""
    return name.startswith(("aten::", "mkl")) or _known_operation(name) == COMMUNICATION


@cache
def _known_operation(name: str) -> str | None:
    return _first(_OPERATIONS, name)


def _first(table: tuple[tuple[str, str], ...], name: str) -> str | None:
    return next((part for part, pattern in table if re.search(pattern, name, re.IGNORECASE)), None)
