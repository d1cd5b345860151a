"""Matrix products in FP8 and FP4: what they need, and what they do not go with.

What holds is Transformer Engine's (2.11: matrices whose sides are multiples of 16, tokens of a rank of 8, and of blocks
where blockwise scaled tensors are gathered; of 32 in MXFP8) and megatron-core's (0.16 and 0.19: what goes with delayed
scaling; 32 in NVFP4, whose blocks are of 16, for what tensor cores read is aligned to 16 bytes).
"""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import CP, HIDDEN, MICRO, PP, TP
from orchestrator.fields.refusals import Refusal, SuggestedValues, around, divisors_of, multiples_of, quotient
from orchestrator.models.blocks.experts.rules import ETP, EXPERT_WIDTH, EXPERTS, SHARED
from orchestrator.models.blocks.grouped_query_attention.rules import GROUPS, HEADS
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.rules.kernels.recomputation import MODULES, OFFLOADED
from orchestrator.spec.rules.parallelism.stages import LAYERS
from orchestrator.spec.sections.quantization import Fp8Spec, NumberFormat, Quantization

FP8, RECIPE, FP4 = "precision.fp8", "precision.fp8.recipe", "precision.fp4"
ALIGNMENT: dict[NumberFormat, int] = {"fp8": 16, "mxfp8": 32, "nvfp4": 32}
"""Both sides of a matrix and the tokens of a product are multiples of it."""
_TOKENS_OF_A_RANK: dict[NumberFormat, int] = {"fp8": 8, "mxfp8": 32, "nvfp4": 32}
"""Where ranks share tokens. Transformer Engine gathers blocks that a rank has only a part of in bf16."""
_BLOCK = 128
_OF_HISTORY = ("margin", "amax_history_len", "amax_compute_algo")
_IN_BF16 = ("num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16")


def fp8_dtype(job: JobSections) -> Iterator[Problem]:
    """What is not multiplied in FP8 is in bf16."""
    if job.precision.fp8 is not None:
        yield from _dtype(job, job.precision.fp8)


def fp4_dtype(job: JobSections) -> Iterator[Problem]:
    """What is not multiplied in FP4 is in bf16. megatron-core has one of both formats."""
    if job.precision.fp4 is None:
        return
    yield from _dtype(job, job.precision.fp4)
    if job.precision.fp8 is not None:
        yield Problem("products are in FP8 or in FP4, but both are set", (FP4, FP8), "leave one of them out")


def _dtype(job: JobSections, narrow: Quantization) -> Iterator[Problem]:
    if job.precision.dtype != "bf16":
        message = f"complements bf16, but dtype is {job.precision.dtype}"
        hint = f"write dtype: bf16, or leave {narrow.field} out"
        yield Problem(message, (f"precision.{narrow.field}", "precision.dtype"), hint)


def fp8_layers(job: JobSections) -> Iterator[Problem]:
    """Transformer Engine's layers multiply in FP8, on GPUs."""
    if job.precision.fp8 is not None:
        yield from _layers(job, job.precision.fp8)


def fp4_layers(job: JobSections) -> Iterator[Problem]:
    """Transformer Engine's layers multiply in FP4, on GPUs."""
    if job.precision.fp4 is None:
        return
    yield from _layers(job, job.precision.fp4)
    if job.model.has_experts:
        message = "how experts are quantized in NVFP4 changes from version to version of Transformer Engine"
        yield Problem(message, (FP4, EXPERTS), "write fp8: {recipe: mxfp8} in its place")


def _layers(job: JobSections, narrow: Quantization) -> Iterator[Problem]:
    runtime, path, kind = job.runtime, f"precision.{narrow.field}", narrow.field.upper()
    without = f"leave {narrow.field} out"
    if runtime.layers == "torch":
        message = f"Transformer Engine multiplies in {kind}, but runtime.layers is torch"
        yield Problem(message, (path, "runtime.layers"), f"write layers: auto, or {without}")
    if runtime.device == "cpu":
        message = f"Transformer Engine multiplies in {kind} on GPUs, but runtime.device is cpu"
        yield Problem(message, (path, "runtime.device"), without)
    if job.model.has_adapters:
        message = f"adapters work with torch's layers, but {kind} needs Transformer Engine's"
        yield Problem(message, (path, "model.lora"), without)
    if runtime.cpu_offloading_num_layers is not None:
        message = f"activations in {kind} cannot be offloaded to host memory in this version"
        yield Problem(message, (OFFLOADED, path), f"leave out one of them; {kind} with recomputation saves memory")


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
    for name in _written_ends(fp8):
        if fp8.recipe == "delayed":
            message = (
                "delayed scaling needs all layers or none: largest values are exchanged at the end of the last layer"
            )
            hint = "write recipe: tensorwise or blockwise, or leave it out"
            yield Problem(message, (f"{FP8}.{name}", RECIPE), hint)
    most = job.model.num_layers // job.parallelism.pipeline_model_parallel_size
    for name in _written_ends(fp8):
        count = getattr(fp8, name)
        if count > most and not job.model.family.is_encoder_decoder:
            message = f"at most num_layers / PP = {most} layers can stay in bf16 at one end: {count} > {most}"
            yield Problem(message, (f"{FP8}.{name}", LAYERS, PP), f"at most {most}")
    yield from _ends_in_bf16(job, fp8)


def fp4_layers_in_bf16(job: JobSections) -> Iterator[Problem]:
    """First and last layers in bf16 leave some in FP4."""
    if job.precision.fp4 is not None:
        yield from _ends_in_bf16(job, job.precision.fp4)


def _ends_in_bf16(job: JobSections, narrow: Quantization) -> Iterator[Problem]:
    written, layers = _written_ends(narrow), job.model.num_layers
    if job.model.family.is_encoder_decoder:
        for name in written:
            paths = (f"precision.{narrow.field}.{name}", "model.architecture")
            yield Problem("T5 has a first and a last layer in each half", paths, "leave it out")
    elif written and sum(narrow.ends_in_bf16) >= layers:
        message = f"leaves no layer in {narrow.field.upper()}: {sum(narrow.ends_in_bf16)} of {layers} stay in bf16"
        paths = (f"precision.{narrow.field}.{written[0]}", LAYERS)
        yield Problem(message, paths, f"fewer of them, or leave {narrow.field} out")


def _written_ends(narrow: Quantization) -> list[str]:
    return [name for name, count in zip(_IN_BF16, narrow.ends_in_bf16, strict=True) if count]


def fp8_recomputed_norms(job: JobSections) -> Iterator[Problem]:
    """A norm that is recomputed alone would be scaled by newer values than it was the first time."""
    fp8, modules = job.precision.fp8, job.runtime.recomputed_modules
    if fp8 is not None and fp8.recipe == "delayed" and "layernorm" in modules:
        message = "recomputing `layernorm` does not go with delayed scaling (megatron-core)"
        yield Problem(message, (MODULES, RECIPE), "write recipe: tensorwise or blockwise, or recompute other modules")


def fp8_matrix_sizes(job: JobSections) -> Iterator[Problem]:
    """Each rank's part of every matrix has sides that are multiples of 16, in MXFP8 of 32."""
    if job.precision.fp8 is None:
        return
    if _gathers_blocks(job) and job.model.hidden_size % _BLOCK:
        message = f"blocks of {_BLOCK} are gathered under sequence parallelism: hidden_size {job.model.hidden_size}"
        offers = (multiples_of(_BLOCK, HIDDEN, job.model.hidden_size),)
        yield Refusal(
            message, (HIDDEN, RECIPE, "parallelism.sequence_parallel"), numbers=(job.model.hidden_size,), offers=offers
        )
    yield from _matrix_sizes(job, job.precision.fp8)


def fp4_matrix_sizes(job: JobSections) -> Iterator[Problem]:
    """Each rank's part of every matrix has sides that are multiples of 32."""
    if job.precision.fp4 is not None:
        yield from _matrix_sizes(job, job.precision.fp4)


def _matrix_sizes(job: JobSections, narrow: Quantization) -> Iterator[Problem]:
    multiple, kind = ALIGNMENT[narrow.number_format], narrow.number_format.upper()
    for name, size, split, degree, sizes in _sides(job, multiple):
        # What TP does not divide has a problem of its own.
        if size % split == 0 and size // split % multiple:
            by = "ETP" if degree == ETP else "TP"
            per_rank = f"{name} / {by} = {quotient(size, split)}" if split > 1 else f"{name} {size}"
            message = f"{kind} multiplies matrices whose sides are multiples of {multiple}: {per_rank}"
            degrees_of = [divisors_of(size, degree, split)] if split > 1 else []
            paths = (sizes[0].path, f"precision.{narrow.field}", *(offer.path for offer in degrees_of))
            yield Refusal(message, paths, numbers=(multiple, size, split), offers=(*sizes, *degrees_of))


def _sides(job: JobSections, multiple: int) -> Iterator[tuple[str, int, int, str, list[SuggestedValues]]]:
    """Sides of matrices: name, size, over how many ranks it is split, which degree that is, and other sizes."""
    model, degrees = job.model, job.parallelism
    tp, etp = degrees.tensor_model_parallel_size, degrees.expert_tensor_parallel
    heads, width, groups = model.num_attention_heads, model.head_dim, model.query_groups
    wider = around("model.kv_channels", width)
    if model.kv_channels is None:
        wider = multiples_of(multiple, HIDDEN, model.hidden_size)
    yield "hidden_size", model.hidden_size, 1, TP, [multiples_of(multiple, HIDDEN, model.hidden_size)]
    yield "heads · width of a head", heads * width, tp, TP, [multiples_of(tp, HEADS, heads), wider]
    together, fewer = (heads + 2 * groups) * width, divisors_of(heads, GROUPS, groups)
    yield "queries, keys and values together", together, tp, TP, [fewer, wider]
    if not all(model.moe_layers):
        yield "ffn_hidden_size", model.ffn_size, tp, TP, [multiples_of(tp, "model.ffn_hidden_size", model.ffn_size)]
    if model.has_experts:
        ffn, shared = model.moe_ffn_size, model.shared_expert_size
        yield "moe_ffn_hidden_size", ffn, etp, ETP, [multiples_of(etp, EXPERT_WIDTH, ffn)]
        if shared:
            yield "the shared expert", shared, tp, TP, [multiples_of(tp, SHARED, shared)]


def _gathers_blocks(job: JobSections) -> bool:
    fp8, degrees = job.precision.fp8, job.parallelism
    blockwise = fp8 is not None and fp8.recipe == "blockwise"
    return blockwise and degrees.uses_sequence_parallel and degrees.tensor_model_parallel_size > 1


def fp8_tokens(job: JobSections) -> Iterator[Problem]:
    """The gradient of a weight is a product over the tokens of a micro-batch."""
    if job.precision.fp8 is not None:
        yield from _tokens(job, job.precision.fp8)


def fp4_tokens(job: JobSections) -> Iterator[Problem]:
    """The same in FP4."""
    if job.precision.fp4 is not None:
        yield from _tokens(job, job.precision.fp4)


def _tokens(job: JobSections, narrow: Quantization) -> Iterator[Problem]:
    model, degrees, number_format = job.model, job.parallelism, narrow.number_format
    parts, multiple = degrees.context_parallel_size, ALIGNMENT[number_format]
    local = degrees.tensor_model_parallel_size if degrees.uses_sequence_parallel else 1
    own = _BLOCK if _gathers_blocks(job) else _TOKENS_OF_A_RANK[number_format]
    lengths = {"model.seq_length": model.seq_length}
    if model.family.is_encoder_decoder and model.decoder_seq_length is not None:
        lengths["model.decoder_seq_length"] = model.decoder_seq_length
    for path, length in lengths.items():
        if length % (parts * local):
            continue  # which has a problem of its own
        tokens = length // parts * job.micro_batch_sequences
        if tokens % multiple or tokens // local % own:
            message = (
                f"{number_format.upper()} multiplies multiples of {multiple} tokens, and of {own} on each rank that "
                f"shares them: {tokens} tokens of a micro-batch on {local} rank{'s' if local > 1 else ''}"
            )
            offers = (multiples_of(parts * local, path, length), around(MICRO, job.batch.micro_batch_size))
            paths = (path, MICRO, f"precision.{narrow.field}", *((CP,) if parts > 1 else ()))
            yield Refusal(message, paths, numbers=(multiple, own, tokens, local), offers=offers)


RULES: tuple[Rule, ...] = (
    fp8_dtype,
    fp8_layers,
    fp8_scaling,
    fp8_layers_in_bf16,
    fp8_recomputed_norms,
    fp8_matrix_sizes,
    fp8_tokens,
    fp4_dtype,
    fp4_layers,
    fp4_layers_in_bf16,
    fp4_matrix_sizes,
    fp4_tokens,
)
