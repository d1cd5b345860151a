"""What a decoder that sees images goes with."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import TP
from orchestrator.fields.refusals import Refusal, divisors_of, multiples_of, quotient
from orchestrator.models.blocks.registry import FEATURES, ruled_out
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule

VISION, FROZEN = "model.vision", "model.vision.freeze"
_IMAGE, _PATCH = "model.vision.image_size", "model.vision.patch_size"
_WIDTH, _HEADS, _FFN = (f"model.vision.{name}" for name in ("hidden_size", "num_attention_heads", "ffn_hidden_size"))
_HIDDEN = "model.hidden_size"
_NOT_TRIED = {
    "runtime.train_step": "a custom step would not pass images to the model",
    "precision.fp8": "the image encoder was not tested in FP8",
    "precision.fp4": "the image encoder was not tested in FP4",
    "runtime.cpu_offloading_num_layers": "the encoder's activations would stay on the GPU",
}


def seeing_decoders(job: JobSections) -> Iterator[Problem]:
    """Images are a decoder's, and some things were not tried with them."""
    model = job.model
    if not model.has_vision:
        return
    if not FEATURES["images"].goes_with(model.family):
        message = f"images are for architecture gpt only, but architecture is {model.architecture}"
        yield Problem(message, (VISION, "model.architecture"), "leave vision out")
    for path, reason in ruled_out(job, "images"):
        yield Problem(f"does not go with model.vision: {reason}", (path, VISION), "leave it out")
    for path, reason in _NOT_TRIED.items():
        section, _, name = path.partition(".")
        if getattr(getattr(job, section), name) is not None:
            yield Problem(f"does not go with model.vision: {reason}", (path, VISION), "leave it out")
    cp = job.parallelism.context_parallel_size
    if cp > 1:
        message = f"context parallelism would cut images in two, and CP = {cp}"
        yield Problem(message, ("parallelism.context_parallel_size", VISION), "write context_parallel_size: 1")


def conversations_with_images(job: JobSections) -> Iterator[Problem]:
    """Images stand in conversations, each of which is a sequence of its own."""
    data = job.data
    if not job.model.has_vision or not FEATURES["images"].goes_with(job.model.family) or data.random_tokens:
        return
    if not data.has_conversations:
        yield Problem(
            "images need conversations, but data.chat is not set",
            (VISION, "data"),
            "write chat: {packing: false}",
        )
    elif data.conversations.packing:
        message = "a sequence with images has one conversation, but packing is on"
        yield Problem(message, ("data.chat.packing", "data.chat", VISION), "write packing: false in data.chat")


def frozen_encoder(job: JobSections) -> Iterator[Problem]:
    """An encoder that stays as it began tells nothing of an image; for a benchmark on random tokens it will do."""
    if job.model.has_frozen_encoder and job.checkpoint.pretrained is None and not job.data.random_tokens:
        message = "an encoder that is not trained needs weights, but there is no checkpoint.pretrained"
        yield Problem(message, (FROZEN, "checkpoint.pretrained"), "write checkpoint.pretrained: RUN, or freeze: false")


def patches(job: JobSections) -> Iterator[Problem]:
    """Patches fill an image, and images leave room for text."""
    model = job.model
    if not model.has_vision:
        return
    vision = model.image_encoder
    size, patch = vision.image_size, vision.patch_size
    if size % patch:
        message = f"patch_size {patch} does not divide image_size {size}: {quotient(size, patch)}"
        offers = (divisors_of(size, _PATCH, patch), multiples_of(patch, _IMAGE, size))
        yield Refusal(message, (_PATCH, _IMAGE), numbers=(size, patch), offers=offers)
        return
    images, tokens = vision.images_per_sequence, vision.tokens_per_image
    if images * tokens >= model.seq_length:
        what = "tokens" if vision.kind.pools else "patches"
        message = (
            f"{images} x {tokens} {what} leave no room for text in seq_length {model.seq_length}: "
            f"{images * tokens} >= {model.seq_length}"
        )
        paths = (f"{VISION}.images_per_sequence", "model.seq_length", VISION)
        yield Problem(message, paths, f"a seq_length of more than {images * tokens}, fewer images, or larger patches")


def encoder_shapes(job: JobSections) -> Iterator[Problem]:
    """Heads divide the encoder's width, and tensor parallelism its heads and MLPs."""
    if not job.model.has_vision:
        return
    vision, tp = job.model.image_encoder, job.parallelism.tensor_model_parallel_size
    width, heads = vision.hidden_size, vision.num_attention_heads
    if width % heads:
        message = f"num_attention_heads {heads} does not divide hidden_size {width}: {quotient(width, heads)}"
        offers = (divisors_of(width, _HEADS, heads), multiples_of(heads, _WIDTH, width))
        yield Refusal(message, (_HEADS, _WIDTH), numbers=(width, heads), offers=offers)
    shared = (
        (_HEADS, heads, "heads of the images' encoder"),
        (_FFN, vision.ffn_size, "units of its MLPs"),
        *(() if vision.kind.pools else ((_HIDDEN, job.model.hidden_size, "rows of the matrix behind it"),)),
    )
    for path, count, what in shared:
        if count % tp:
            message = f"TP {tp} does not divide the {count} {what}: {quotient(count, tp)}"
            yield Refusal(message, (TP, path, VISION), numbers=(count, tp), offers=(divisors_of(count, TP, tp),))


RULES: tuple[Rule, ...] = (seeing_decoders, conversations_with_images, frozen_encoder, patches, encoder_shapes)
