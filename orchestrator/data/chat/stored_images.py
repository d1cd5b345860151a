"""PREFIX.images: the pixels of the images that a data set of conversations has. Light.

It is an indexed data set of uint8 with a sequence for each conversation, of no length where that has no image: the
images one after another, each [3, size, size], as red, green and blue; those of any size as `native_images` has them.
"""

from __future__ import annotations

from array import array
from pathlib import Path

from orchestrator.data.chat.native_images import count_of, is_count
from orchestrator.data.indexed_dataset.header import HEADER, IndexHeader, bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import Manifest, manifest_path, read_manifest
from orchestrator.errors import UserError
from orchestrator.spec.vision import VisionSpec, vision_of_images


def images_prefix(prefix: Path) -> Path:
    """Where the images of a data set of conversations lie."""
    return prefix.with_name(prefix.name + ".images")


def bytes_per_image(image_size: int) -> int:
    """What an image takes in PREFIX.images."""
    return 3 * image_size * image_size


def has_images(prefix: Path) -> bool:
    """Whether a data set of conversations has images: as its manifest says, whatever lies beside it. One that another
    tool made has them where a file of them is there. Raises DataError for a manifest that is damaged."""
    manifest = read_manifest(prefix)
    return bool(manifest.images) if manifest is not None else len(_absent(prefix)) < 2


def _absent(prefix: Path) -> list[Path]:
    """The files of a data set's images that are not there."""
    images = images_prefix(prefix)
    return [path for path in (idx_path(images), bin_path(images)) if not path.is_file()]


def image_counts(prefix: Path, first: int, stop: int, vision: VisionSpec) -> array[int]:
    """How many images each of the conversations `first` to `stop` has; nothing where the data set has none."""
    sizes = array("i")
    path = idx_path(images_prefix(prefix))
    if has_images(prefix) and path.exists():
        with open(path, "rb") as file:
            file.seek(HEADER.size + 4 * first)
            sizes.frombytes(file.read(4 * (stop - first)))
    if vision.kind.keeps_shape:
        return array("i", (count_of(size, vision) for size in sizes))
    each = bytes_per_image(vision.image_size)
    return array("i", (size // each for size in sizes))


def vision_of(manifest: Manifest | None) -> VisionSpec | None:
    """How the images of a data set are cut; None where it has none, or says nothing of it."""
    if manifest is None or manifest.image_size is None or manifest.patch_size is None:
        return None
    return vision_of_images(
        manifest.image_size,
        manifest.patch_size,
        manifest.image_encoder,
        pooled_tokens=manifest.pooled_tokens,
        merge_size=manifest.merge_size,
        smallest_image_size=manifest.smallest_image_size,
    )


def _cut_as(vision: VisionSpec) -> str:
    """All that the pixels and the tokens of an image depend on, in words."""
    if vision.kind.keeps_shape:
        return (
            f"any size from {vision.native.smallest_image_size} to {vision.image_size} pixels, in patches of "
            f"{vision.patch_size}, {vision.merge_size} x {vision.merge_size} to a token"
        )
    said = f"{vision.image_size} pixels in patches of {vision.patch_size}"
    if not vision.kind.pools:
        return said
    return f"{said}, {vision.tokens_per_image} tokens each, for type {vision.type}"


def images_problem(path: str, header: IndexHeader, vision: VisionSpec | None) -> str | None:
    """Why the images of a data set of conversations are not such as the job's model sees; None where they are, and
    where it has none. Raises DataError for a manifest that is damaged."""
    if not has_images(Path(path)):
        return None
    manifest, prefix, absent = read_manifest(Path(path)), images_prefix(Path(path)), _absent(Path(path))
    if manifest is None and absent:
        return _half(path, absent)
    stored = None
    if not absent:
        try:
            stored = read_index(prefix)
        except UserError as error:
            return str(error)
        if manifest is None and stored.tokens == 0:
            return None
    if vision is None:
        return (
            f"{path} contains conversations with images, but the job's model takes none: write model.vision, or use "
            "data without images"
        )
    if stored is None:
        claimed = manifest.images if manifest is not None else 0
        missing = f"{' and '.join(map(str, absent))} {'is' if len(absent) == 1 else 'are'} not there"
        return f"{path} has {claimed} images, and {missing}: copy all its files, or make it again"
    if not _belong_together(stored, header, manifest):
        return f"{path} and {prefix} do not belong together: copy all files again, or make the data set again"
    wanted, own = _cut_as(vision), vision_of(manifest)
    if manifest is None:
        if vision.kind.keeps_shape:  # only this program writes such images, and a manifest beside them
            return (
                f"{path} has images, and {manifest_path(Path(path))} is not there: copy all its files, or make it again"
            )
        fits = stored.tokens % bytes_per_image(vision.image_size) == 0
        made = "another size"
    else:
        made = "unknown size" if own is None else _cut_as(own)
        fits = made == wanted
    if fits:
        return None
    return (
        f"{path} has images of {made}, but model.vision has {wanted}: write its sizes, or make it again at another path"
    )


def images_damage(path: str, header: IndexHeader) -> str | None:
    """Why the images of a data set of conversations are not whole, whatever job they are for; None where they are, and
    where it has none. Raises DataError for a manifest that is damaged."""
    manifest, absent = read_manifest(Path(path)), _absent(Path(path))
    if manifest is None:
        return _half(path, absent) if len(absent) == 1 else None
    own = vision_of(manifest)
    return None if own is None else images_problem(path, header, own)


def _half(path: str, absent: list[Path]) -> str:
    return (
        f"{path} has images in one file of two: {absent[0]} is not there. Copy it next to the other, or remove that "
        "one if the data set has no images"
    )


def _belong_together(stored: IndexHeader, header: IndexHeader, manifest: Manifest | None) -> bool:
    if stored.dtype != "uint8" or stored.sequences != header.sequences:
        return False
    own = vision_of(manifest)
    if manifest is None or own is None:
        return True
    images = manifest.images or 0
    return (
        is_count(stored.tokens, images, own)
        if own.kind.keeps_shape
        else stored.tokens == images * bytes_per_image(own.image_size)
    )
