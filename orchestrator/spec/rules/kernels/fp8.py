"""Matrix products in FP8: what they need, and what they do not go with.

What holds is Transformer Engine's (2.11: matrices whose sides are multiples of 16, tokens of a rank of 8, and of blocks
where blockwise scaled tensors are gathered) and megatron-core's (0.16 and 0.19: what goes with delayed scaling).
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import CP, HIDDEN, MICRO, PP, TP
from orchestrator.fields.refusals import Refusal, around, divisors_of, multiples_of, quotient
from orchestrator.models.blocks.experts.rules import ETP, EXPERT_WIDTH, SHARED
from orchestrator.models.blocks.grouped_query_attention.rules import GROUPS, HEADS
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.rules.kernels.recomputation import MODULES, OFFLOADED
from orchestrator.spec.rules.parallelism.stages import LAYERS
from orchestrator.spec.sections.fp8 import Fp8Spec

FP8, RECIPE = "precision.fp8", "precision.fp8.recipe"
ALIGNMENT = 16
"""Both sides of a matrix and the tokens of a product are multiples of it."""
_TOKENS_OF_A_RANK, _BLOCK = 8, 128
_OF_HISTORY = ("margin", "amax_history_len", "amax_compute_algo")
_IN_BF16 = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")


def fp8_dtype(job: JobSections) -> Iterator[Problem]:
    """What is not multiplied in FP8 is in bf16."""
    if job.precision.fp8 is not None and job.precision.dtype != "bf16":
        message = f"complements bf16, but dtype is {job.precision.dtype}"
        yield Problem(message, (FP8, "precision.dtype"), "write dtype: bf16, or leave fp8 out")


def fp8_layers(job: JobSections) -> Iterator[Problem]:
    """Transformer Engine's layers multiply in FP8, on GPUs."""
    if job.precision.fp8 is None:
        return
    runtime = job.runtime
    if runtime.layers == "torch":
        message = "Transformer Engine multiplies in FP8, but runtime.layers is torch"
        yield Problem(message, (FP8, "runtime.layers"), "write layers: auto, or leave fp8 out")
    if runtime.device == "cpu":
        message = "Transformer Engine multiplies in FP8 on GPUs, but runtime.device is cpu"
        yield Problem(message, (FP8, "runtime.device"), "leave fp8 out")
    if job.model.has_adapters:
        message = "adapters work with torch's layers, but FP8 needs Transformer Engine's"
        yield Problem(message, (FP8, "model.lora"), "leave fp8 out")
    if runtime.cpu_offloading_num_layers is not None:
        message = "activations in FP8 cannot be offloaded to host memory in this version"
        yield Problem(message, (OFFLOADED, FP8), "leave out one of them; FP8 with recomputation saves memory")


def fp8_scaling(job: JobSections) -> Iterator[Problem]:
    """Only delayed scaling remembers largest values."""
    fp8 = job.precision.fp8
    if fp8 is None or fp8.recipe == "delayed":
        return
    for name in _OF_HISTORY:
        if getattr(fp8, name) != Fp8Spec.model_fields[name].default:
            message = f"is for recipe: delayed, but recipe is {fp8.recipe}"
            yield Problem(message, (f"{FP8}.{name}", RECIPE), "leave it out")


def fp8_layers_in_bf16(job: JobSections) -> Iterator[Problem]:
    """First and last layers in bf16: of each pipeline stage megatron-core takes at most its share of the layers."""
    fp8 = job.precision.fp8
    if fp8 is None:
        return
    written = [name for name in _IN_BF16 if getattr(fp8, name)]
    for name in written:
        path = f"{FP8}.{name}"
        if fp8.recipe == "delayed":
            message = (
                "delayed scaling needs all layers or none: largest values are exchanged at the end of the last layer"
            )
            yield Problem(message, (path, RECIPE), "write recipe: tensorwise or blockwise, or leave it out")
        if job.model.family.is_encoder_decoder:
            message = "T5 has a first and a last layer in each half"
            yield Problem(message, (path, "model.architecture"), "leave it out")
    if not written or job.model.family.is_encoder_decoder:
        return
    layers, pp = job.model.num_layers, job.parallelism.pipeline_model_parallel_size
    most = layers // pp
    for name in written:
        count = getattr(fp8, name)
        if count > most:
            message = f"at most num_layers / PP = {most} layers can stay in bf16 at one end: {count} > {most}"
            yield Problem(message, (f"{FP8}.{name}", LAYERS, PP), f"at most {most}")
    both = fp8.num_layers_at_start_in_bf16 + fp8.num_layers_at_end_in_bf16
    if both >= layers:
        message = f"leaves no layer in FP8: {both} of {layers} stay in bf16"
        yield Problem(message, (f"{FP8}.{written[0]}", LAYERS), "fewer of them, or leave fp8 out")


def fp8_recomputed_norms(job: JobSections) -> Iterator[Problem]:
    """A norm that is recomputed alone would be scaled by newer values than it was the first time."""
    fp8, modules = job.precision.fp8, job.runtime.recomputed_modules
    if fp8 is not None and fp8.recipe == "delayed" and "layernorm" in modules:
        message = "recomputing `layernorm` does not go with delayed scaling (megatron-core)"
        yield Problem(message, (MODULES, RECIPE), "write recipe: tensorwise or blockwise, or recompute other modules")


def fp8_matrix_sizes(job: JobSections) -> Iterator[Problem]:
    """Each rank's part of every matrix has sides that are multiples of 16."""
    if job.precision.fp8 is None:
        return
    model, degrees = job.model, job.parallelism
    tp, etp = degrees.tensor_model_parallel_size, degrees.expert_tensor_parallel
    heads, width, groups = model.num_attention_heads, model.head_dim, model.query_groups
    if model.kv_channels is None:
        wider = multiples_of(ALIGNMENT, HIDDEN, model.hidden_size)
    else:
        wider = around("model.kv_channels", width)
    sides = [
        ("hidden_size", model.hidden_size, 1, TP, [multiples_of(ALIGNMENT, HIDDEN, model.hidden_size)]),
        ("heads · width of a head", heads * width, tp, TP, [multiples_of(tp, HEADS, heads), wider]),
        (
            "queries, keys and values together",
            (heads + 2 * groups) * width,
            *(tp, TP, [divisors_of(heads, GROUPS, groups), wider]),
        ),
    ]
    if not all(model.moe_layers):
        ffn = model.ffn_size
        sides.append(("ffn_hidden_size", ffn, tp, TP, [multiples_of(tp, "model.ffn_hidden_size", ffn)]))
    if model.has_experts:
        ffn = model.moe_ffn_size
        sides.append(("moe_ffn_hidden_size", ffn, etp, ETP, [multiples_of(etp, EXPERT_WIDTH, ffn)]))
        if shared := model.shared_expert_size:
            sides.append(("the shared expert", shared, tp, TP, [multiples_of(tp, SHARED, shared)]))
    if _gathers_blocks(job) and model.hidden_size % _BLOCK:
        message = f"blocks of {_BLOCK} are gathered under sequence parallelism: hidden_size {model.hidden_size}"
        offers = (multiples_of(_BLOCK, HIDDEN, model.hidden_size),)
        yield Refusal(message, (HIDDEN, RECIPE, "parallelism.sequence_parallel"), offers=offers)
    for name, size, split, degree, sizes in sides:
        # What TP does not divide has a problem of its own.
        if size % split == 0 and size // split % ALIGNMENT:
            by = "ETP" if degree == ETP else "TP"
            per_rank = f"{name} / {by} = {quotient(size, split)}" if split > 1 else f"{name} {size}"
            message = f"FP8 multiplies matrices whose sides are multiples of {ALIGNMENT}: {per_rank}"
            degrees_of = [divisors_of(size, degree, split)] if split > 1 else []
            paths = (sizes[0].path, FP8, *(offer.path for offer in degrees_of))
            yield Refusal(message, paths, offers=(*sizes, *degrees_of))


def _gathers_blocks(job: JobSections) -> bool:
    fp8, degrees = job.precision.fp8, job.parallelism
    blockwise = fp8 is not None and fp8.recipe == "blockwise"
    return blockwise and degrees.uses_sequence_parallel and degrees.tensor_model_parallel_size > 1


def fp8_tokens(job: JobSections) -> Iterator[Problem]:
    """The gradient of a weight is a product over the tokens of a micro-batch."""
    if job.precision.fp8 is None:
        return
    model, degrees = job.model, job.parallelism
    parts = degrees.context_parallel_size
    local = degrees.tensor_model_parallel_size if degrees.uses_sequence_parallel else 1
    own = _BLOCK if _gathers_blocks(job) else _TOKENS_OF_A_RANK
    lengths = {"model.seq_length": model.seq_length}
    if model.family.is_encoder_decoder and model.decoder_seq_length is not None:
        lengths["model.decoder_seq_length"] = model.decoder_seq_length
    for path, length in lengths.items():
        if length % (parts * local):
            continue  # which has a problem of its own
        tokens = length // parts * job.micro_batch_sequences
        if tokens % ALIGNMENT or tokens // local % own:
            message = (
                f"FP8 multiplies multiples of {ALIGNMENT} tokens, and of {own} on each rank that shares "
                f"them: {tokens} tokens of a micro-batch on {local} rank{'s' if local > 1 else ''}"
            )
            offers = (multiples_of(parts * local, path, length), around(MICRO, job.batch.micro_batch_size))
            yield Refusal(message, (path, MICRO, FP8, *((CP,) if parts > 1 else ())), offers=offers)


RULES: tuple[Rule, ...] = (
    fp8_dtype,
    fp8_layers,
    fp8_scaling,
    fp8_layers_in_bf16,
    fp8_recomputed_norms,
    fp8_matrix_sizes,
    fp8_tokens,
)
