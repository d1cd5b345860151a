"""A decoder that sees: the encoder of its images."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import HashedIfChanged
from orchestrator.fields.values import Positive, PositiveNumber
from orchestrator.spec.native_resolution import IMAGE_PAD, NativeResolutionSpec

MARK = "<image>"
"""What stands for an image in a text."""
COLOUR_MEAN = (0.48145466, 0.4578275, 0.40821073)
COLOUR_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
"""Of the red, green and blue of the images that CLIP was trained on, of 1 (Radford et al. 2021)."""


class VisionSpec(Section):
    """A transformer that encodes images, CLIP's, and the two matrices that project its output to the decoder's
    embeddings, one for each patch: LLaVA's model. By default it is the part of CLIP ViT-L/14 at 336 pixels that
    LLaVA 1.5 uses."""

    image_size: Annotated[Positive, resume.SHAPE] = 336
    """Pixels of a side: images are scaled to cover a square of this size, and cropped to it."""
    patch_size: Annotated[Positive, resume.SHAPE] = 14
    """Pixels of a patch's side; the decoder gets a token for each patch."""
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
    """Keep the encoder fixed, and train only the two matrices and the decoder."""
    native_resolution: Annotated[NativeResolutionSpec | None, resume.SHAPE, HashedIfChanged()] = None
    """Images of any size, and the encoder of Qwen2.5-VL; `{}` for its own values. Other fields of `vision` say how many
    and how wide its layers are; `activation` does not apply."""

    @property
    def is_native(self) -> bool:
        """Whether each image has a grid of patches of its own."""
        return self.native_resolution is not None

    @property
    def native(self) -> NativeResolutionSpec:
        """What the encoder of images of any size has beyond other encoders."""
        assert self.native_resolution is not None, "the caller has asked `is_native`"
        return self.native_resolution

    @property
    def merge_size(self) -> int:
        """Patches of a side of the group that becomes one token of the decoder."""
        return self.native.merge_size if self.is_native else 1

    @property
    def unit(self) -> int:
        """Pixels of a side of what becomes one token of the decoder."""
        return self.patch_size * self.merge_size

    @property
    def ffn_size(self) -> int:
        """Width inside the encoder's MLPs."""
        return self.ffn_hidden_size or 4 * self.hidden_size

    @property
    def patches_per_image(self) -> int:
        """Patches of an image, of any size those of the largest."""
        return (self.image_size // self.patch_size) ** 2

    @property
    def tokens_per_image(self) -> int:
        """Tokens of the decoder's sequence that an image takes: its patches, or groups of them. Of images of any size
        it is the largest that takes so many."""
        return (self.image_size // self.unit) ** 2

    @property
    def least_tokens(self) -> int:
        """Tokens that an image takes at least."""
        return 1 if self.is_native else self.tokens_per_image

    @property
    def mark(self) -> str:
        """The special token of the vocabulary that stands for a token of an image."""
        return IMAGE_PAD if self.is_native else MARK

    @property
    def positions(self) -> int:
        """Length of the encoder's sequences: the patches, behind CLIP's token for the whole image."""
        return self.patches_per_image + (0 if self.is_native else 1)


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
