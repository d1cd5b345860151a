"""What an encoder of images of any size goes with, and how its sizes fit each other."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, multiples_of, quotient
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.vision import VisionSpec

_VISION, _SECTIONS = "model.vision", "model.mrope_section"
_TYPE = f"{_VISION}.type"
_NATIVE, _ACTIVATION, _IMAGE = (f"{_VISION}.{name}" for name in ("native_resolution", "activation", "image_size"))
_SMALLEST, _WINDOW, _FULL = (
    f"{_NATIVE}.{name}" for name in ("smallest_image_size", "attention_window_size", "full_attention_layers")
)


def multimodal_positions(job: JobSections) -> Iterator[Problem]:
    """Positions by row and column are those of images of any size, and these have them."""
    model = job.model
    keeps_shape = model.has_vision and model.image_encoder.kind.keeps_shape
    if keeps_shape and model.mrope_section is None:
        message = "images of any size need positions by row and column, but there is no mrope_section"
        yield Problem(message, (_TYPE, _SECTIONS), "write mrope_section; Qwen2.5-VL's is [16, 24, 24]")
    if not keeps_shape and model.mrope_section is not None:
        message = "is for images of any size; without them all three positions are the same"
        yield Problem(message, (_SECTIONS, _TYPE), "leave it out, or write vision.type: qwen2.5")


def native_section(job: JobSections) -> Iterator[Problem]:
    """What describes an encoder of images of any size is refused beside another."""
    if not job.model.has_vision:
        return
    vision = job.model.image_encoder
    if vision.native_resolution is not None and not vision.kind.keeps_shape:
        message = f"is for encoders of images of any size, but type is {vision.type}"
        yield Problem(message, (_NATIVE, _TYPE), "write type: qwen2.5, or leave it out")


def native_sizes(job: JobSections) -> Iterator[Problem]:
    """Images and windows are whole groups of patches, and rotary positions turn pairs of channels by row and column."""
    if not job.model.has_vision or not job.model.image_encoder.kind.keeps_shape:
        return
    vision = job.model.image_encoder
    unit, native = vision.unit, vision.native
    for path, size in ((_IMAGE, vision.image_size), (_WINDOW, native.attention_window_size)):
        # What patches themselves do not fill is refused as that of any encoder.
        if size % unit and (path == _WINDOW or size % vision.patch_size == 0):
            message = (
                f"must be a multiple of patch_size · merge_size = {vision.patch_size} · {native.merge_size} = {unit}: "
                f"{quotient(size, unit)}"
            )
            yield Refusal(
                message,
                (path, f"{_NATIVE}.merge_size"),
                numbers=(size, vision.patch_size, native.merge_size),
                offers=(multiples_of(unit, path, size),),
            )
    if native.smallest_image_size > vision.image_size:
        message = f"is more than image_size: {native.smallest_image_size} > {vision.image_size}"
        yield Problem(message, (_SMALLEST, _IMAGE), f"at most {vision.image_size}")
    if beyond := [layer for layer in native.full_attention_layers if layer >= vision.num_layers]:
        message = f"there is no layer {', '.join(map(str, beyond))}: num_layers {vision.num_layers}, counted from 0"
        yield Problem(message, (_FULL, f"{_VISION}.num_layers"), "leave them out")
    width, heads = vision.hidden_size, vision.num_attention_heads
    if width % heads == 0 and (width // heads) % 4:
        message = f"the width of a head, {width} / {heads} = {width // heads}, must be a multiple of 4"
        yield Problem(message, (f"{_VISION}.num_attention_heads", _TYPE), "write another number of heads")
    if vision.activation != VisionSpec.model_fields["activation"].default:
        yield Problem("an encoder of images of any size has SwiGLU", (_ACTIVATION, _TYPE), "leave it out")


RULES: tuple[Rule, ...] = (multimodal_positions, native_section, native_sizes)
