"""What the data programs are asked to do. Light: the command line builds it, the program carries it out."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from pydantic import ValidationError

from orchestrator.errors import UserError
from orchestrator.files.file_types import COMPRESSIONS
from orchestrator.models.image_encoders import ImageEncoderName
from orchestrator.spec.messages.validation import errors_in_words
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import VisionSpec, vision_of_images

_ENDINGS = ("py", "md", "rst", "txt", "c", "h", "cc", "cpp", "hpp", "java", "js", "ts", "go", "rs", "sh", "tex", "html")
_CORPUS = ("jsonl", "ndjson", "txt")
_COMPRESSED = tuple(f"{ending}{packed}" for ending in _CORPUS for packed in COMPRESSIONS)
SOURCE_GLOBS = tuple(f"*.{ending}" for ending in (*_ENDINGS, "jsonl", "ndjson", "parquet", *_COMPRESSED))
"""Files of a directory that are read when no glob is given."""
CHAT_GLOBS = tuple(f"*.{ending}{packed}" for ending in ("jsonl", "ndjson", "json") for packed in ("", *COMPRESSIONS))
"""The same for conversations."""

OnError = Literal["fail", "skip"]
TextDocuments = Literal["file", "line", "paragraph"]


def tokenizer_spec(**given: str | bool | None) -> TokenizerSpec:
    """The tokenizer of some options of a command. Raises UserError where they name none."""
    try:
        return TokenizerSpec.model_validate(given)
    except ValidationError as error:
        raise UserError(f"the tokenizer: {errors_in_words(error)}", code="invalid_value") from error


@dataclass(frozen=True)
class TextRequest:
    """Which text to read, and how."""

    inputs: tuple[Path, ...]
    """Files (.jsonl, .json, .txt, .parquet, each but parquet also .gz, .bz2, .xz or .zst) and directories of source
    files."""
    json_keys: tuple[str, ...] = ("text",)
    """Fields of a JSON line, or columns of a parquet file, that hold text."""
    globs: tuple[str, ...] = ()
    """Names of the files to take from directories; the usual text and source files when empty."""
    excludes: tuple[str, ...] = ()
    """Names of files and folders to leave out of directories."""
    txt_documents: TextDocuments = "file"
    """What one document of a .txt file is."""
    on_error: OnError = "fail"
    """What to do if a record cannot be read."""


@dataclass(frozen=True)
class TokenizeRequest(TextRequest):
    """Turn text into an indexed data set."""

    output_prefix: Path = Path()
    """Where to write: PREFIX.bin, PREFIX.idx, PREFIX.manifest.json; PREFIX_KEY… with several keys."""
    tokenizer_type: str = "byte_level"
    tokenizer_path: str | None = None
    tokenizer_merges: str | None = None
    tokenizer_lower_case: bool | None = None
    append_eod: bool = False
    """End each document with the tokenizer's end-of-document token."""
    split_sentences: bool = False
    """Make each sentence a sequence, for BERT and T5."""
    chat: bool = False
    """Read each line as a conversation, and write a mask of the assistant's turns beside its tokens."""
    chat_template: str | None = None
    """chatml, plain, vicuna, or a file with a Jinja template; None for the tokenizer's own."""
    chat_date: str | None = None
    """The day that a chat template takes for today, such as 2026-11-27; that on which the work begins when None."""
    image_size: int | None = None
    """With `chat`: pixels of the sides of images, which are stored beside the tokens; None for text alone."""
    patch_size: int | None = None
    """Pixels of the sides of their patches; LLaVA's when None."""
    image_encoder: ImageEncoderName | None = None
    """`model.vision.type` of the job that they are made for; `llava` when None, which is all that a command makes."""
    pooled_tokens: int | None = None
    """gemma3: tokens of an image."""
    merge_size: int | None = None
    """qwen2.5: patches of the sides of the groups, each of which has a token."""
    smallest_image_size: int | None = None
    """qwen2.5: images have at least as many pixels as a square of this side."""
    workers: int | None = None
    """Processes that tokenize; one per available core when None."""
    shard_size: int = 64
    """MB of input after which what was done is made safe against a kill."""
    overwrite: bool = False

    @property
    def tokenizer(self) -> TokenizerSpec:
        """The tokenizer to use."""
        return tokenizer_spec(
            type=self.tokenizer_type,
            path=self.tokenizer_path,
            merges=self.tokenizer_merges,
            lower_case=self.tokenizer_lower_case,
        )

    @property
    def vision(self) -> VisionSpec | None:
        """How images are cut; None where none are asked for."""
        if self.image_size is None:
            return None
        return vision_of_images(
            self.image_size,
            self.patch_size,
            self.image_encoder,
            pooled_tokens=self.pooled_tokens,
            merge_size=self.merge_size,
            smallest_image_size=self.smallest_image_size,
        )

    def prefix(self, key: str) -> Path:
        """Where the text of one key goes."""
        if len(self.json_keys) == 1:
            return self.output_prefix
        return self.output_prefix.with_name(f"{self.output_prefix.name}_{key}")


@dataclass(frozen=True)
class TrainTokenizerRequest(TextRequest):
    """Learn a byte-level BPE."""

    output: Path = Path("tokenizer.json")
    vocab_size: int = 32000
    """Tokens at most, the end-of-document token included."""
    overwrite: bool = False


@dataclass(frozen=True)
class PrepareRequest:
    """Make the data sets of a job that are not there."""

    jobs: tuple[Path, ...]
    """Job specs, or one run directory."""
    overrides: tuple[str, ...] = ()
    workers: int | None = None


@dataclass(frozen=True)
class ShowRequest:
    """Decode the first documents of a data set."""

    prefix: Path
    show: int
    tokenizer_type: str | None = None
    tokenizer_path: str | None = None
    tokenizer_merges: str | None = None


_SINGULAR = {"json_keys": "json-key", "globs": "glob", "excludes": "exclude", "overrides": "set"}
_NEGATIVE = {"tokenizer_lower_case": "--tokenizer-keep-case"}
"""Options of fields of which False is another thing than None."""


def to_arguments(request: TextRequest | PrepareRequest | ShowRequest) -> list[str]:
    """The request as arguments of its command."""
    arguments: list[str] = []
    positional: list[str] = []
    for field in fields(request):
        value: Any = getattr(request, field.name)
        option = "--" + _SINGULAR.get(field.name, field.name.replace("_", "-"))
        if field.name in ("inputs", "jobs"):
            positional += [str(path) for path in value]
        elif field.name == "prefix":
            positional.append(str(value))
        elif isinstance(value, tuple):
            arguments += [f"{option}={item}" for item in value]
        elif value is True:
            arguments.append(option)
        elif value is False and field.name in _NEGATIVE:
            arguments.append(_NEGATIVE[field.name])
        elif value is not None and value is not False:
            arguments.append(f"{option}={value}")
    return [*arguments, "--", *positional]
