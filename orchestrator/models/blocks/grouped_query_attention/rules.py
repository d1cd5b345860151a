"""Heads and their groups, rotary positions, and attention windows: what goes with them, and how ranks share heads."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.paths import CP, HIDDEN, TP
from orchestrator.fields.refusals import (
    Refusal,
    SuggestedValues,
    Unavailable,
    around,
    divisors_of,
    multiples_of,
    quotient,
)
from orchestrator.models.blocks.grouped_query_attention.fields import GroupedQueryAttentionSpec
from orchestrator.models.blocks.grouped_query_attention.rope_scaling import RopeScaling
from orchestrator.models.blocks.rules import by_family, by_tensor_parallel

if TYPE_CHECKING:
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.model_fields import GroupedQueryFields
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

HEADS, GROUPS = "model.num_attention_heads", "model.num_query_groups"
PERCENT, POSITIONS = "model.rotary_percent", "model.position_embedding_type"
SCALING = "model.rope_scaling"
LOCAL_BASE, NO_ROPE = "model.rotary_base_local", "model.no_rope_freq"
SECTIONS = "model.mrope_section"
TEMPERATURE, INTERVAL = "model.attention_temperature_scale", "model.attention_temperature_interval"
L2_NORM, CHUNK = "model.qk_l2_norm", "model.attention_chunk_size"
QK_NORM, SCOPE = "model.qk_layernorm", "model.qk_layernorm_scope"
GATE = "model.attention_output_gate"
SOFTMAX = "model.softmax_type"
WINDOW, SKIP = "model.sliding_window", "model.window_attn_skip_freq"
_ONLY_FOR = {
    "low_freq_factor": "llama3",
    "high_freq_factor": "llama3",
    "beta_fast": "yarn",
    "beta_slow": "yarn",
    "truncate": "yarn",
    "attention_factor": "yarn",
    "mscale": "yarn",
    "mscale_all_dim": "yarn",
}


def heads_by_tensor_parallel(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Each tensor-parallel rank holds whole query heads."""
    yield from by_tensor_parallel(job, "num_attention_heads", job.model.num_attention_heads, HEADS)


def query_groups_by_tensor_parallel(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Each tensor-parallel rank holds whole key/value heads, or equally many ranks share each of them."""
    groups, tp = job.model.num_query_groups, job.parallelism.tensor_model_parallel_size
    if groups is not None and groups % tp and tp % groups:
        message = f"num_query_groups / TP or TP / num_query_groups must be whole: {quotient(groups, tp)}"
        offers = (around(TP, tp), around(GROUPS, groups))
        yield Refusal(message, (TP, GROUPS), numbers=(groups, tp), offers=offers)


def heads_by_query_groups(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Each key/value head serves equally many query heads."""
    heads, groups = job.model.num_attention_heads, job.model.query_groups
    if heads % groups:
        message = f"num_attention_heads / num_query_groups must be whole: {quotient(heads, groups)}"
        offers = (divisors_of(heads, GROUPS, groups), multiples_of(groups, HEADS, heads))
        yield Refusal(message, (GROUPS, HEADS), numbers=(heads, groups), offers=offers)


def hidden_by_heads(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Heads share the hidden size, unless kv_channels says how wide they are."""
    model = job.model
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        hidden, heads = model.hidden_size, model.num_attention_heads
        message = f"hidden_size / num_attention_heads must be whole: {quotient(hidden, heads)}"
        offers = (divisors_of(hidden, HEADS, heads), multiples_of(heads, HIDDEN, hidden))
        yield Refusal(message, (HEADS, HIDDEN), "write kv_channels", numbers=(hidden, heads), offers=offers)


def rotary(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Rotary positions turn pairs of channels."""
    model = job.model
    kind, percent = model.position_embedding_type, model.rotary_percent
    if kind != "rope":
        if percent != GroupedQueryAttentionSpec.model_fields["rotary_percent"].default:
            message = f"is for rotary positions, but position_embedding_type is {kind}"
            yield Problem(message, (PERCENT, POSITIONS), "leave it out")
        return
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        raise Unavailable("head_dim")
    width = model.head_dim
    rotated = int(width * percent)
    if rotated % 2 or rotated == 0:
        message = (
            f"the rotated part of a head must be even: head width · rotary_percent = {width} · {percent:g} → {rotated}"
        )
        lower = rotated // 2 * 2
        offer = SuggestedValues(PERCENT, _shares((lower,), width), _shares((lower + 2,), width))
        paths = (PERCENT, "model.kv_channels", HEADS, HIDDEN)
        yield Refusal(message, paths, "write wider heads", numbers=(width, percent), offers=(offer,))


def _shares(parts: tuple[int, ...], width: int) -> tuple[float, ...]:
    """What to write for so many channels of a head: rounded up, as what is rotated is rounded down."""
    return tuple(ceil(part / width * 1e6) / 1e6 for part in parts if 0 < part <= width)


def rope_scaling(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Scaling is for rotary positions, and each kind has figures of its own."""
    model, scaling = job.model, job.model.rope_scaling
    if scaling is None:
        return
    if model.position_embedding_type != "rope":
        message = f"is for rotary positions, but position_embedding_type is {model.position_embedding_type}"
        yield Problem(message, (SCALING, POSITIONS), "leave it out")
    for name, kind in _ONLY_FOR.items():
        if scaling.type != kind and getattr(scaling, name) != RopeScaling.model_fields[name].default:
            message = f"is for type: {kind}, but type is {scaling.type}"
            yield Problem(message, (f"{SCALING}.{name}", f"{SCALING}.type"), "leave it out")
    if scaling.type == "linear":
        return
    if scaling.original_max_position_embeddings is None:
        message = f"{scaling.type} needs original_max_position_embeddings, the longest sequence before the scaling"
        yield Problem(message, (SCALING,), "write it; Llama 3.1's is 8192")
    low, high = ("low_freq_factor", "high_freq_factor") if scaling.type == "llama3" else ("beta_slow", "beta_fast")
    lower, upper = getattr(scaling, low), getattr(scaling, high)
    # Llama 4's are equal: nothing is blended.
    if lower > upper or (lower == upper and scaling.type == "yarn"):
        message = f"{low} must be less than {high}: {lower:g} ≥ {upper:g}"
        defaults = tuple(RopeScaling.model_fields[name].default for name in (low, high))
        yield Problem(
            message, (f"{SCALING}.{low}", f"{SCALING}.{high}"), f"{defaults[0]:g} and {defaults[1]:g} are usual"
        )


def yarn(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """YaRN counts turns by the logarithm of the base, and multiplies what is rotated."""
    model, scaling = job.model, job.model.rope_scaling
    if scaling is None or scaling.type != "yarn":
        return
    if model.rotary_percent < 1.0:
        yield from by_family(job, "positions_by_layer", "model.rotary_percent", "with yarn, a part of each head")
    if model.qk_l2_norm:
        message = "yarn multiplies rotated queries and keys, which qk_l2_norm undoes"
        yield Problem(message, (f"{SCALING}.type", L2_NORM), "write linear or llama3, or leave one out")
    if model.rotary_base == 1:
        yield Problem("yarn needs a rotary_base above 1", ("model.rotary_base", SCALING), "10000 is usual")


def window_of_some_layers(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Layers are taken out of a window that there is."""
    model = job.model
    if model.window_attn_skip_freq is None:
        return
    if model.sliding_window is None:
        message = "selects layers without a window, but there is no sliding_window"
        yield Problem(message, (SKIP, WINDOW), "leave it out, or write a sliding_window")
    elif model.window_attn_skip_freq == 1:
        message = "with 1, no layer has a window"
        yield Problem(message, (SKIP, WINDOW), "leave both out, or write 2 or more")
    elif isinstance(model.window_attn_skip_freq, list):
        count = len(model.window_attn_skip_freq)
        if count != model.num_layers:
            message = f"window_attn_skip_freq has {count} entries for num_layers {model.num_layers}"
            yield Problem(message, (SKIP, "model.num_layers"), "write one for each layer, or a number")
        elif 1 not in model.window_attn_skip_freq:
            yield Problem("no layer has a window", (SKIP, WINDOW), "leave both out, or write 1 for some layers")


def positions_by_layer(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Layers of a decoder may differ in their rotary positions."""
    model = job.model
    if not model.rotates_by_layer:
        return
    written = [path for path in (LOCAL_BASE, NO_ROPE) if getattr(model, path.removeprefix("model.")) is not None]
    for path in written:
        yield from by_family(job, "positions_by_layer", path)
        if model.position_embedding_type != "rope":
            message = f"is for rotary positions, but position_embedding_type is {model.position_embedding_type}"
            yield Problem(message, (path, POSITIONS), "leave it out")
    if model.rotary_base_local is not None and model.sliding_window is None:
        message = "is for layers with a window, but there is no sliding_window"
        yield Problem(message, (LOCAL_BASE, WINDOW), "leave it out, or write a sliding_window")
    if model.no_rope_freq == 1:
        yield Problem("with 1, no layer has positions", (NO_ROPE, POSITIONS), "write position_embedding_type: none")


def multimodal_positions(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Three parts of a head turn by the position in time, by row and by column, all of it together."""
    model, sections = job.model, job.model.mrope_section
    if sections is None:
        return
    yield from by_family(job, "positions_by_layer", SECTIONS)
    if model.position_embedding_type != "rope":
        message = f"is for rotary positions, but position_embedding_type is {model.position_embedding_type}"
        yield Problem(message, (SECTIONS, POSITIONS), "leave it out")
    for path, other in (
        (SCALING, model.rope_scaling),
        (LOCAL_BASE, model.rotary_base_local),
        (NO_ROPE, model.no_rope_freq),
    ):
        if other is not None:
            yield Problem("does not go with model.mrope_section", (path, SECTIONS), "leave one of them out")
    if model.kv_channels is None and model.hidden_size % model.num_attention_heads:
        raise Unavailable("head_dim")
    pairs = int(model.head_dim * model.rotary_percent) // 2
    if len(sections) != 3 or sum(sections) != pairs:
        message = (
            f"must be three numbers, of time, rows and columns, that add up to the {pairs} pairs of rotated channels "
            f"of a head: {' + '.join(map(str, sections))} = {sum(sections)}"
        )
        yield Problem(message, (SECTIONS, HEADS, HIDDEN), "Qwen2.5-VL's are [16, 24, 24], of 64 pairs")


def attention_sinks(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Sinks are of a decoder's attention."""
    if job.model.has_sinks:
        yield from by_family(job, "attention_sinks", SOFTMAX, job.model.softmax_type)


def temperature(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """The temperature is of layers without rotary positions, and counts tokens from the beginning of a sequence."""
    model = job.model
    if model.attention_temperature_scale is None:
        if model.attention_temperature_interval != GroupedQueryAttentionSpec.model_fields[_name(INTERVAL)].default:
            yield Problem("is for a temperature, but there is none", (INTERVAL, TEMPERATURE), "leave it out")
        return
    if model.no_rope_freq is None:
        message = "is for layers without rotary positions, but all have some"
        yield Problem(message, (TEMPERATURE, NO_ROPE), "write no_rope_freq, or leave it out")
    if job.parallelism.context_parallel_size > 1:
        message = "counts tokens from the beginning of a sequence, of which each rank has parts"
        yield Problem(message, (TEMPERATURE, CP), "write context_parallel_size: 1")
    if job.data.has_conversations:
        message = "counts tokens from the beginning of a sequence, in which there are several conversations"
        yield Problem(message, (TEMPERATURE, "data.chat"), "leave it out")


def normalised_rotation(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Rotated queries and keys of a decoder are normalised once."""
    model = job.model
    if not model.qk_l2_norm:
        return
    yield from by_family(job, "positions_by_layer", L2_NORM)
    if model.position_embedding_type != "rope":
        message = f"is for rotary positions, but position_embedding_type is {model.position_embedding_type}"
        yield Problem(message, (L2_NORM, POSITIONS), "leave it out")
    if model.qk_layernorm:
        yield Problem("queries and keys are normalised already", (L2_NORM, QK_NORM), "leave one of them out")


def attention_chunks(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Several chunks of a sequence are attended to one by one, each as a whole sequence."""
    model = job.model
    if model.attention_chunk_size is None:
        return
    yield from by_family(job, "attention_chunks", CHUNK)
    if not model.has_chunks:
        return
    if model.position_embedding_type != "rope":
        message = f"is for rotary positions, but position_embedding_type is {model.position_embedding_type}"
        yield Problem(message, (CHUNK, POSITIONS), "leave it out")
    others = {
        WINDOW: (model.sliding_window is not None, "a window within a chunk"),
        "model.attention_logit_softcapping": (model.attention_logit_softcapping is not None, "capped scores"),
        SOFTMAX: (model.has_sinks, "attention sinks"),
        CP: (job.parallelism.context_parallel_size > 1, "ranks that share a sequence"),
        "data.chat": (job.data.packs, "packed conversations"),
    }
    for path, (is_asked, what) in others.items():
        if is_asked:
            message = f"{what} and sequences of several chunks ({model.seq_length} > {model.attention_chunk_size})"
            yield Problem(f"{message} were not tried together", (path, CHUNK, "model.seq_length"), "leave one out")


def _name(path: str) -> str:
    return path.removeprefix("model.")


def norm_over_all_heads(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """One norm over the heads of all ranks is an RMSNorm."""
    yield from _norm_of_scope(job, "projection", "RMSNorm")


def norm_per_head(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """The norm of each head with weights of its own is a LayerNorm."""
    yield from _norm_of_scope(job, "per_head", "LayerNorm")


def _norm_of_scope(job: Job[GroupedQueryFields], scope: str, needed: str) -> Iterator[Problem]:
    model = job.model
    if model.qk_layernorm_scope != scope:
        return
    if not model.qk_layernorm:
        yield Problem("is what qk_layernorm normalises, but that is false", (SCOPE, QK_NORM), "leave it out")
        return
    if model.normalization != needed:
        message = f"{scope} needs {needed}, but normalization is {model.normalization}"
        yield Problem(message, (SCOPE, "model.normalization"), f"write head, or normalization: {needed}")
    if model.apply_layernorm_1p:
        message = f"{scope} multiplies by weight, but apply_layernorm_1p by 1 + weight"
        yield Problem(message, (SCOPE, "model.apply_layernorm_1p"), "write head, or leave apply_layernorm_1p out")


def output_gate(job: Job[GroupedQueryFields]) -> Iterator[Problem]:
    """Gates are for decoders, whose ranks have whole key/value heads: megatron-core shares out no gates otherwise."""
    model = job.model
    if not model.attention_output_gate:
        return
    yield from by_family(job, "output_gate", GATE)
    groups, tp = model.query_groups, job.parallelism.tensor_model_parallel_size
    if groups % tp:
        message = f"with gates num_query_groups / TP must be whole: {quotient(groups, tp)}"
        offers = (divisors_of(groups, TP, tp), multiples_of(tp, GROUPS, groups))
        yield Refusal(message, (TP, GROUPS, GATE), numbers=(groups, tp), offers=offers)


TENSOR_PARALLEL: tuple[Rule, ...] = (heads_by_tensor_parallel, query_groups_by_tensor_parallel, output_gate)
RULES: RulesByTopic = {
    "ranks": TENSOR_PARALLEL,
    "sizes": (heads_by_query_groups, hidden_by_heads),
    "positions": (rotary, positions_by_layer, multimodal_positions, temperature),
    "variants": (
        *(rope_scaling, yarn, window_of_some_layers, norm_over_all_heads, norm_per_head),
        *(attention_sinks, normalised_rotation, attention_chunks),
    ),
}
