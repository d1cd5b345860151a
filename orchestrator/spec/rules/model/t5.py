"""T5: an encoder and a decoder, their pipeline, and the spans that they learn from."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from orchestrator.errors import Problem
from orchestrator.fields.base import Section
from orchestrator.fields.paths import PP, TP, VP
from orchestrator.fields.refusals import Refusal, Unavailable, around, divisors_of, multiples_of, quotient
from orchestrator.spec.encoder_decoder import HALVES, layers_of, layers_of_stage, stages_of
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.parallelism import ParallelismSpec
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.sections.data import DataSpec
from orchestrator.spec.sections.runtime import RuntimeSpec

FAMILY, SPLIT = "model.architecture", "parallelism.pipeline_model_parallel_split_rank"
POSITIONS, ENCODER, DECODER = "model.position_embedding_type", "model.seq_length", "model.decoder_seq_length"
BUCKETS, DISTANCE = "model.relative_attention_num_buckets", "model.relative_attention_max_distance"
SHORTEST = 8
"""Begin and end, and a few tokens between them."""
_ITS_OWN = (
    ("model", "encoder_num_layers"),
    ("model", "decoder_num_layers"),
    ("model", "decoder_seq_length"),
    ("model", "add_output_bias"),
    ("model", "scale_decoder_outputs"),
    ("model", "relative_attention_num_buckets"),
    ("model", "relative_attention_max_distance"),
    ("parallelism", "pipeline_model_parallel_split_rank"),
)
_NOT_ITS = {
    "model": {
        "rope_scaling": "it is not designed for longer sequences",
        "sliding_window": "windows only look back, but its encoder attends both ways",
        "window_attn_skip_freq": "windows only look back, but its encoder attends both ways",
        "attention_logit_softcapping": "capped scores are for causal attention",
        "final_logit_softcapping": "caps a decoder's logits",
        "scale_embeddings": "scales a decoder's embeddings",
        "qk_layernorm": "megatron-core's cross attention does not normalise queries and keys",
    },
    "parallelism": {
        "num_layers_in_first_pipeline_stage": "pipeline_model_parallel_split_rank assigns the stages",
        "num_layers_in_last_pipeline_stage": "pipeline_model_parallel_split_rank assigns the stages",
        "account_for_embedding_in_pipeline_split": "pipeline_model_parallel_split_rank assigns the stages",
        "account_for_loss_in_pipeline_split": "pipeline_model_parallel_split_rank assigns the stages",
        "pipeline_model_parallel_layout": "pipeline_model_parallel_split_rank assigns the stages",
    },
    "data": {
        "reset_position_ids": "a sample comes from one document: its positions never restart",
        "eod_mask_loss": "the loss counts the decoder's tokens",
    },
    "runtime": {
        "cpu_offloading_num_layers": "megatron-core counts the layers of one block, but there are two",
    },
}


_SECTIONS: dict[str, type[Section]] = {
    "model": ModelSpec,
    "parallelism": ParallelismSpec,
    "data": DataSpec,
    "runtime": RuntimeSpec,
}


def _differs(job: JobSections, section: str, name: str) -> bool:
    return bool(getattr(getattr(job, section), name) != _SECTIONS[section].model_fields[name].default)


def of_t5_alone(job: JobSections) -> Iterator[Problem]:
    """What only T5 has."""
    family = job.model.architecture
    if family == "t5":
        return
    for section, name in _ITS_OWN:
        if _differs(job, section, name):
            message = f"is for architecture: t5, but architecture is {family}"
            yield Problem(message, (f"{section}.{name}", FAMILY), "leave it out")
    if job.model.position_embedding_type == "relative":
        message = f"relative positions are for architecture: t5, but architecture is {family}"
        yield Problem(message, (POSITIONS, FAMILY), "write rope, learned_absolute or alibi")


def not_of_t5(job: JobSections) -> Iterator[Problem]:
    """What T5 does not have, and why."""
    model = job.model
    if model.architecture != "t5":
        return
    for section, names in _NOT_ITS.items():
        for name, reason in names.items():
            if _differs(job, section, name):
                yield Problem(f"is not for architecture: t5: {reason}", (f"{section}.{name}", FAMILY), "leave it out")
    if model.position_embedding_type == "alibi":
        message = "alibi positions are not for architecture: t5: they only know the distance to previous tokens"
        yield Problem(message, (POSITIONS, FAMILY), "write relative, learned_absolute or rope")
    if model.query_groups != model.num_attention_heads:
        message = f"megatron-core's cross attention has no grouped queries: {model.query_groups} ≠ "
        message += f"{model.num_attention_heads}"
        paths = ("model.num_query_groups", "model.num_attention_heads", FAMILY)
        yield Problem(message, paths, "leave num_query_groups out")
    if model.add_output_bias and model.untie_embeddings_and_output_weights:
        message = "an untied output layer has no bias, as in Megatron-LM: the bias is for a tied one"
        both = ("model.add_output_bias", "model.untie_embeddings_and_output_weights")
        yield Problem(message, both, "leave out one of them")
    if job.parallelism.num_model_chunks > 1:
        message = (
            "T5 has no interleaved pipeline: encoder and decoder follow each other once, so a stage has one chunk: "
            f"VP = {job.parallelism.num_model_chunks}"
        )
        yield Problem(message, (VP, FAMILY), "leave it out; more micro-batches also make the bubble smaller")


def lengths(job: JobSections) -> Iterator[Problem]:
    """Both halves have a length, in which their inputs and positions have room."""
    model, tp = job.model, job.parallelism.tensor_model_parallel_size
    if model.architecture != "t5":
        return
    length = model.decoder_seq_length
    if length is None:
        yield Problem(
            "T5 needs decoder_seq_length, the tokens of its decoder",
            (FAMILY,),
            "write decoder_seq_length: 128 in the model section",
        )
        return
    if min(model.seq_length, length) < SHORTEST:
        path = ENCODER if model.seq_length < SHORTEST else DECODER
        message = f"is too short for spans between a begin and an end: {min(model.seq_length, length)} < {SHORTEST}"
        yield Problem(message, (path, FAMILY), f"write at least {SHORTEST}")
    if job.parallelism.uses_sequence_parallel and length % tp:
        message = f"with sequence parallelism decoder_seq_length / TP must be whole: {quotient(length, tp)}"
        yield Refusal(message, (DECODER, TP), numbers=(length, tp), offers=(multiples_of(tp, DECODER, length),))
    if model.position_embedding_type == "learned_absolute" and length > model.positions >= model.seq_length:
        message = f"learned positions cover {model.positions} tokens: decoder_seq_length {length} > {model.positions}"
        yield Problem(message, (DECODER, "model.max_position_embeddings"), "raise max_position_embeddings")


def relative_positions(job: JobSections) -> Iterator[Problem]:
    """Half of the buckets are single distances, the others grow up to the largest; the encoder has two of each."""
    model = job.model
    if model.architecture != "t5" or model.position_embedding_type != "relative":
        return
    buckets, most = model.relative_attention_num_buckets, model.relative_attention_max_distance
    if buckets % 4:
        message = f"the encoder's buckets are halved twice: relative_attention_num_buckets / 4 = {buckets / 4:g}"
        yield Refusal(message, (BUCKETS,), numbers=(buckets,), offers=(multiples_of(4, BUCKETS, buckets),))
    elif most <= buckets // 2:
        message = (
            f"half of the buckets are single distances, and the others continue from there: {most} ≤ {buckets} / 2"
        )
        yield Problem(message, (DISTANCE, BUCKETS), f"write at least {buckets // 2 + 1}; 128 is usual")


def halves_of_the_pipeline(job: JobSections) -> Iterator[Problem]:
    """The encoder has the stages before the split, the decoder those from it on; each deals its layers out evenly."""
    model, degrees = job.model, job.parallelism
    if model.architecture != "t5":
        return
    split, stages = degrees.pipeline_model_parallel_split_rank, degrees.pipeline_model_parallel_size
    if split is not None and stages == 1:
        hint = "leave it out, or write a pipeline_model_parallel_size of 2 or more"
        yield Problem("one pipeline stage holds both halves: PP = 1", (SPLIT, PP), hint)
        return
    if split is not None and split >= stages:
        message = f"the decoder begins on stage {split}, and the stages are 0 to {stages - 1}: PP = {stages}"
        yield Problem(message, (SPLIT, PP), f"write at most {stages - 1}")
        return
    for half in HALVES:
        held, layers = len(stages_of(half, degrees)), layers_of(half, model)
        if layers % held:
            message = f"the {half}'s layers / its stages must be whole: {quotient(layers, held)}"
            own = f"model.{half}_num_layers"
            offers = (around(SPLIT, split or stages // 2), around(PP, stages), multiples_of(held, own, layers))
            yield Refusal(message, (SPLIT, PP, own, "model.num_layers"), numbers=(layers, held), offers=offers)


def recomputed_layers(job: JobSections) -> Iterator[Problem]:
    """No more layers can be recomputed at a time than the half of a stage holds that holds fewer, and groups of them
    make up each half.
    """
    model, degrees, count = job.model, job.parallelism, job.runtime.recompute_num_layers
    if model.architecture != "t5" or count is None:
        return
    stages = range(degrees.pipeline_model_parallel_size)
    held = [layers_of_stage(half, stage, model, degrees) for half in HALVES for stage in stages]
    held = sorted({each for each in held if each})
    least = min(held, default=0)
    if least == 0:
        raise Unavailable("layers of a stage")
    if count > least:
        message = f"is more than the layers of the encoder or the decoder on a stage: {count} > {least}"
        yield Problem(message, ("runtime.recompute_num_layers", "model.num_layers", PP), f"at most {least}")
    elif job.runtime.recompute_method == "uniform" and (odd := [each for each in held if each % count]):
        message = f"the layers of a half are recomputed in groups of {count}: {quotient(odd[0], count)} is not whole"
        paths = ("runtime.recompute_num_layers", "model.num_layers", PP)
        offers = (divisors_of(gcd(*held), paths[0], count),)
        yield Refusal(message, paths, "write 1, which saves the most memory", numbers=(odd[0], count), offers=offers)


def spans(job: JobSections) -> Iterator[Problem]:
    """The decoder's input has room for what is taken out of the encoder's, and there are sentinels in its place."""
    model, data = job.model, job.data
    if model.architecture != "t5":
        return
    masked = round(data.mask_prob * (model.seq_length - 2))
    if model.decoder_seq_length is not None and masked + 2 > model.decoder_seq_length:
        message = (
            f"the decoder has no room for the masked tokens: mask_prob · (seq_length - 2) = {data.mask_prob:g} · "
            f"{model.seq_length - 2} → {masked} tokens, a sentinel and the begin > {model.decoder_seq_length}"
        )
        hint = f"write at least {masked + 2} and some more for sentinels, or a lower mask_prob"
        yield Problem(message, (DECODER, "data.mask_prob", ENCODER), hint)
    kind = data.tokenizer.type
    if data.random_tokens or data.tokenizer.vocab_extra_ids or kind in ("huggingface", "sentencepiece"):
        return
    message = f"T5 puts sentinels in place of spans, and a {kind} tokenizer has none"
    yield Problem(
        message,
        ("data.tokenizer.vocab_extra_ids", "data.tokenizer.type", FAMILY),
        "write data.tokenizer.vocab_extra_ids: 100",
    )


def seed_of_sentences(job: JobSections) -> Iterator[Problem]:
    """megatron-core's index of samples of sentences takes no seed of 0."""
    if job.model.reads_sentences and job.data.seed == 0 and not job.data.random_tokens:
        message = f"the samples of {job.model.architecture} are drawn with a seed of 1 or more"
        yield Problem(message, ("data.seed", FAMILY), "write 1, or leave it out")


RULES: tuple[Rule, ...] = (
    of_t5_alone,
    not_of_t5,
    lengths,
    relative_positions,
    halves_of_the_pipeline,
    recomputed_layers,
    spans,
    seed_of_sentences,
)
