"""A decoder that sees: the encoder of its images."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import HashedIfChanged
from orchestrator.fields.values import Positive, PositiveNumber
from orchestrator.models.image_encoders import IMAGE_ENCODERS, ImageEncoderKind, ImageEncoderName
from orchestrator.spec.native_resolution import NativeResolutionSpec

MARK = "<image>"
"""What stands for an image in a text."""


@resume.OnResume
def _image_size(old: resume.JobSections, new: resume.JobSections) -> resume.Meaning:
    """An encoder of images of any size has no table of positions."""
    both = (old.model.vision, new.model.vision)
    any_size = all(vision is not None and vision.kind.keeps_shape for vision in both)
    return resume.LOGIC if any_size else resume.SHAPE


class VisionSpec(Section):
    """A transformer that encodes images, and what projects its output to the decoder's embeddings. By default it is the
    part of CLIP ViT-L/14 at 336 pixels that LLaVA 1.5 uses, with two matrices behind it."""

    type: Annotated[ImageEncoderName, resume.SHAPE, HashedIfChanged()] = "llava"
    """`llava`: CLIP's encoder, and two matrices that project each patch. `gemma3`: SigLIP's encoder; patches are
    averaged to `pooled_tokens` tokens, which one matrix projects, and in the decoder the tokens of an image attend to
    each other in both directions. `qwen2.5`: the encoder of Qwen2.5-VL, for images of any size; `activation` does not
    apply. It does not change the defaults of other fields; the presets of Gemma 3
    and Qwen2.5-VL set them."""
    image_size: Annotated[Positive, _image_size] = 336
    """Pixels of a side. For `llava` images are scaled to cover a square of this size, and cropped to it; for `gemma3`
    they are scaled to it in both directions; for `qwen2.5` they have at most as many pixels as such a square."""
    patch_size: Annotated[Positive, resume.SHAPE] = 14
    """Pixels of a patch's side; for `llava` the decoder gets a token for each patch."""
    pooled_tokens: Annotated[Positive | None, resume.LOGIC, HashedIfChanged()] = None
    """gemma3: tokens that the decoder gets for an image, each the mean of a square of patches; Gemma 3 has 256."""
    num_layers: Annotated[Positive, resume.SHAPE] = 23
    """Layers of the encoder. LLaVA omits CLIP's last one."""
    hidden_size: Annotated[Positive, resume.SHAPE] = 1024
    """Width of the encoder."""
    num_attention_heads: Annotated[Positive, resume.SHAPE] = 16
    """Its heads."""
    ffn_hidden_size: Annotated[
        Positive | None,
        resume.same_or(lambda job: job.model.image_encoder.ffn_size if job.model.has_vision else None, resume.SHAPE),
    ] = None
    """Width inside its MLPs; 4 times its own by default."""
    activation: Annotated[Literal["quick_gelu", "gelu", "gelu_tanh"], resume.LOGIC] = "quick_gelu"
    """Its MLPs' activation; `quick_gelu`, x · sigmoid(1.702 x), is CLIP's."""
    norm_epsilon: Annotated[PositiveNumber, resume.LOGIC] = 1e-5
    """Added to the variance in each of its norms."""
    images_per_sequence: Annotated[Positive, resume.ORDER] = 1
    """Maximum images per sequence. A sequence with fewer takes as long."""
    freeze: Annotated[bool, resume.PARAMETER_GROUPS] = False
    """Keep the encoder fixed, and train only what projects its output and the decoder."""
    native_resolution: Annotated[NativeResolutionSpec | None, resume.SHAPE, HashedIfChanged()] = None
    """`qwen2.5`: what its encoder has beyond the others, with Qwen2.5-VL's own values by default."""

    @property
    def kind(self) -> ImageEncoderKind:
        """What is true of all encoders of its type."""
        return IMAGE_ENCODERS[self.type]

    @property
    def native(self) -> NativeResolutionSpec:
        """What an encoder of images of any size has beyond other encoders."""
        assert self.kind.keeps_shape, "the caller has asked"
        return self.native_resolution or NativeResolutionSpec()

    @property
    def merge_size(self) -> int:
        """Patches of a side of the group that becomes one token of the decoder."""
        return self.native.merge_size if self.kind.keeps_shape else 1

    @property
    def unit(self) -> int:
        """Pixels of a side of what becomes one token of the decoder."""
        return self.patch_size * self.merge_size

    @property
    def ffn_size(self) -> int:
        """Width inside the encoder's MLPs."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def patches(self) -> int:
        """Patches of an image, of any size those of the largest."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens_per_image(self) -> int:
        """Tokens of the decoder's sequence that an image takes: its patches, means or groups of them. Of images of any
        size it is the largest that takes so many."""
        return (self.image_size // self.unit) ** 2 if self.pooled_tokens is None else self.pooled_tokens

    def tokens_of(self, rows: int, columns: int) -> int:
        """Tokens of an image of so many pixels, as the encoder takes it."""
        return rows * columns // self.unit**2 if self.kind.keeps_shape else self.tokens_per_image

    @property
    def least_tokens(self) -> int:
        """Tokens that an image takes at least."""
        if not self.kind.keeps_shape:
            return self.tokens_per_image
        return min(-(-(self.native.smallest_image_size**2) // self.unit**2), self.tokens_per_image)

    @property
    def positions(self) -> int:
        """Length of the encoder's sequences: the patches, behind CLIP's token for the whole image."""
        return self.patches + self.kind.class_token


def vision_of_images(
    image_size: int,
    patch_size: int | None,
    encoder: ImageEncoderName | None,
    *,
    pooled_tokens: int | None = None,
    merge_size: int | None = None,
    smallest_image_size: int | None = None,
) -> VisionSpec:
    """How images of a data set are cut, for which a manifest has these values; None stands for a default."""
    native = {"merge_size": merge_size, "smallest_image_size": smallest_image_size}
    given = {
        "patch_size": patch_size,
        "type": encoder,
        "pooled_tokens": pooled_tokens,
        "native_resolution": {name: value for name, value in native.items() if value is not None} or None,
    }
    said = {name: value for name, value in given.items() if value is not None}
    return VisionSpec.model_validate({"image_size": image_size, **said})


def marks_problem(marks: int, images: int, *, sees: bool, given_by: str | None = None) -> str | None:
    """What is wrong with a prompt that names so many images, and has so many, which are given by what `given_by` says;
    None where nothing is. To a model that sees none, a mark is text like any other."""
    if not sees:
        return f"has {_counted(images)}, but the model takes none: it has no model.vision" if images else None
    if marks == images:
        return None
    way_out = f"; give the others by {given_by}, or leave {MARK} out" if given_by is not None and marks > images else ""
    return f"has {marks} x {MARK} and {_counted(images)}: each image takes the place of one {MARK}{way_out}"


def _counted(images: int) -> str:
    return f"{images} image{'' if images == 1 else 's'}"
