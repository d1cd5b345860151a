"""Linear attention: which layers have it, how its heads divide, and what it was not tried with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from orchestrator.errors import Problem
from orchestrator.fields.paths import CP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient
from orchestrator.models.blocks.gated_delta_net.fields import GatedDeltaNetSpec
from orchestrator.models.blocks.registry import FEATURES
from orchestrator.models.blocks.rules import by_switch, by_tensor_parallel

if TYPE_CHECKING:
    from orchestrator.models.blocks.gated_delta_net.model_fields import DeltaFields
    from orchestrator.models.blocks.job_fields import Job
    from orchestrator.models.blocks.protocols import Rule, RulesByTopic

FREQ, LAYERS = "model.linear_attention_freq", "model.num_layers"
KEYS, VALUES = "model.linear_num_key_heads", "model.linear_num_value_heads"


def linear_attention_is_there(job: Job[DeltaFields]) -> Iterator[Problem]:
    """What is said of linear attention is said of a model that has some."""
    yield from by_switch(job, GatedDeltaNetSpec, "linear_attention_freq", "linear attention")


def layers_with_linear_attention(job: Job[DeltaFields]) -> Iterator[Problem]:
    """Some layers have linear attention, and others attention."""
    frequency, layers = job.model.linear_attention_freq, job.model.num_layers
    if frequency is None:
        return
    if isinstance(frequency, list) and len(frequency) != layers:
        message = f"linear_attention_freq has {len(frequency)} entries for num_layers {layers}"
        yield Problem(message, (FREQ, LAYERS), "write one for each layer, or a number")
    elif (linear := sum(job.model.linear_attention_layers)) in (0, layers):
        message = f"{'all' if linear else 'no'} layers have linear attention, and it is for some of them"
        yield Problem(message, (FREQ, LAYERS), "write a number from 2 to num_layers, or a list of 0 and 1")


def heads_of_linear_attention(job: Job[DeltaFields]) -> Iterator[Problem]:
    """Each key head serves equally many value heads, and each tensor-parallel rank has whole key heads."""
    model = job.model
    if not model.has_linear_attention:
        return
    keys, values = model.linear_num_key_heads, model.linear_num_value_heads
    if values % keys:
        message = f"linear_num_value_heads / linear_num_key_heads must be whole: {quotient(values, keys)}"
        offers = (divisors_of(values, KEYS, keys), multiples_of(keys, VALUES, values))
        yield Refusal(message, (KEYS, VALUES), numbers=(values, keys), offers=offers)


def key_heads_by_tensor_parallel(job: Job[DeltaFields]) -> Iterator[Problem]:
    """Each tensor-parallel rank has whole key heads, with their value heads."""
    if job.model.has_linear_attention:
        yield from by_tensor_parallel(job, "linear_num_key_heads", job.model.linear_num_key_heads, KEYS)


def key_heads_by_context_parallel(job: Job[DeltaFields]) -> Iterator[Problem]:
    """Ranks that share a sequence take whole key heads of a tensor-parallel rank's."""
    model, degrees = job.model, job.parallelism
    tp, cp = degrees.tensor_model_parallel_size, degrees.context_parallel_size
    heads = model.linear_num_key_heads
    if not model.has_linear_attention or cp == 1 or heads % tp or heads // tp % cp == 0:
        return
    message = f"linear_num_key_heads / (TP · CP) must be whole: {quotient(heads, tp * cp)}"
    yield Refusal(
        message,
        (CP, KEYS),
        numbers=(heads, tp, cp),
        offers=(divisors_of(heads // tp, CP, cp), multiples_of(tp * cp, KEYS, heads)),
    )


def untried_with_linear_attention(job: Job[DeltaFields]) -> Iterator[Problem]:
    """States pass from token to token, from layer to layer of grouped-query attention in a plain decoder."""
    model = job.model
    if not model.has_linear_attention:
        return
    others = {
        "model.architecture": (
            not FEATURES["linear_attention"].goes_with(model.family),
            "it is for architecture: gpt",
        ),
        "model.norm_bias": (not model.norm_bias, "it was not tried with it"),
        "model.transformer_block_type": (not model.normalizes_inputs, "its layers have norms before them"),
        "model.add_bias_linear": (model.add_bias_linear, "its projections have no biases"),
        "model.sliding_window": (model.sliding_window is not None, "its other layers attend to all tokens"),
        "model.attention_chunk_size": (model.has_chunks, "its other layers attend to all tokens"),
        "model.no_rope_freq": (model.no_rope_freq is not None, "its other layers have the same positions"),
        "model.parallel_residual": (model.parallel_residual is not None, "its MLPs follow on it"),
        "model.mtp_num_layers": (
            model.predicts_further and model.linear_attention_layers[-1:] == (True,),
            "its layers are like the last one, which has linear attention here",
        ),
        "model.vision": (model.has_vision, "images were not tried with it"),
        "precision.fp8": (job.precision.fp8 is not None, "it was not tried with it"),
        "precision.fp4": (job.precision.fp4 is not None, "it was not tried with it"),
        "runtime.cpu_offloading_num_layers": (
            job.runtime.cpu_offloading_num_layers is not None,
            "it needs layers that are alike",
        ),
    }
    for path, (is_asked, reason) in others.items():
        if is_asked:
            yield Problem(f"does not go with linear attention: {reason}", (path, FREQ), "leave one out")


TENSOR_PARALLEL: tuple[Rule, ...] = (key_heads_by_tensor_parallel,)
RULES: RulesByTopic = {
    "ranks": (*TENSOR_PARALLEL, key_heads_by_context_parallel),
    "sizes": (heads_of_linear_attention,),
    "variants": (linear_attention_is_there, layers_with_linear_attention, untried_with_linear_attention),
}
