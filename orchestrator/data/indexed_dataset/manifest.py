"""PREFIX.manifest.json: where an indexed data set came from, read and written without numpy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchestrator.errors import DataError
from orchestrator.fields.values import Positive, empty_dict, empty_list
from orchestrator.models.image_encoders import ImageEncoderName
from orchestrator.spec.messages.validation import errors_in_words
from orchestrator.spec.sections.data import TokenizerSpec

VERSION = 1


class Source(BaseModel):
    """One file that was read."""

    path: str
    bytes: int
    modified: float
    """Seconds since the epoch."""


class LeftOutSource(BaseModel):
    """A link, a folder or a kind of files that was not read, and why."""

    path: str
    reason: str


class Manifest(BaseModel):
    """What tokenization did. Fields that a later version adds are ignored by this one."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    version: int = VERSION
    tokenizer: TokenizerSpec
    tokenizer_hash: str
    vocab_size: int
    largest_token_id: int
    """-1 in an empty data set."""
    dtype: str
    documents: int
    sentences: int | None = None
    """Of data made with `--split-sentences`, where each sentence is a sequence; None where a document is one."""
    cut_sentences: int = 0
    """Sentences that were stored in pieces: megatron-core takes up to 512 tokens."""
    tokens: int
    counted_tokens: int | None = None
    """Of conversations, the tokens that the loss counts (PREFIX.loss_mask); None where there are none."""
    images: int | None = None
    """Images of all conversations (PREFIX.images); None where none were asked for."""
    image_size: Positive | None = None
    """Pixels of their sides."""
    unpictured_conversations: int = 0
    """Those with `<image>` in their text and without an image, where images were asked for."""
    shortened_conversations: int = 0
    """Those of which the chat template leaves out part of the assistant's turns, such as an earlier reasoning."""
    patch_size: Positive | None = None
    """Pixels of the sides of the patches."""
    image_encoder: ImageEncoderName | None = None
    """`model.vision.type` of the models that they are for; `llava` when None."""
    pooled_tokens: Positive | None = None
    """gemma3: tokens of an image."""
    merge_size: Positive | None = None
    """qwen2.5: patches of the sides of the groups, each of which has a token."""
    smallest_image_size: Positive | None = None
    """qwen2.5: images have at least as many pixels as a square of this side."""
    text_bytes: int
    """Bytes of input that were read, after decompression."""
    empty_documents: int
    """Records without text; they are left out."""
    skipped_records: int
    """Records that could not be read (`--on-error skip`); PREFIX.skipped.jsonl lists them."""
    skipped_report: str | None = None
    options: dict[str, Any] = Field(default_factory=empty_dict)
    sources: list[Source] = Field(default_factory=empty_list)
    left_out: list[LeftOutSource] = Field(default_factory=empty_list)
    """Links, folders and kinds of files in the directories of the input that were not read."""
    created: float = 0.0
    index_crc32: int | None = None
    """`zlib.crc32` of PREFIX.idx; None in what earlier versions made."""


def manifest_path(prefix: Path) -> Path:
    """PREFIX.manifest.json."""
    return prefix.with_name(prefix.name + ".manifest.json")


def read_manifest(prefix: Path) -> Manifest | None:
    """The manifest of a data set; None for one that another tool made. Raises DataError when it is damaged."""
    path = manifest_path(prefix)
    try:
        return Manifest.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        said = errors_in_words(error) if isinstance(error, ValidationError) else error
        raise DataError(
            f"{path} is damaged or not a manifest: {said}. Remove it or tokenize again", code="damaged_manifest"
        ) from error
