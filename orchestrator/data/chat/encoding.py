"""From a chunk of JSON lines to the tokens of conversations, the mask of what counts and images: a worker's work."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from orchestrator.data.chat.assistant_spans import squeezed
from orchestrator.data.chat.conversation_packing import COUNTS, PATCH
from orchestrator.data.chat.conversations import Message, parse_conversation
from orchestrator.data.chat.images import IMAGE
from orchestrator.data.chat.native_images import most_images, stored_image
from orchestrator.data.chat.stored_images import bytes_per_image
from orchestrator.data.chat.templates import (
    CHATML,
    VICUNA,
    ChatTemplate,
    JinjaTemplate,
    PlainTemplate,
    RenderedText,
    template_file,
)
from orchestrator.data.chat.tokens import between_images, tokens_of, with_text_around
from orchestrator.data.input.documents import MalformedRecord, read_records
from orchestrator.data.input.images import pixels
from orchestrator.data.input.json_values import read_json
from orchestrator.data.input.sources import Chunk
from orchestrator.data.tokenizers.encoding import EncodedChunk, EncodedKey
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.data.tokenizers.vocabulary import tokenizer_file
from orchestrator.errors import MissingDependency, UserError
from orchestrator.models.image_encoders import ImageEncoderKind
from orchestrator.spec.sections.chat import TEMPLATES_SAID
from orchestrator.spec.vision import MARK, VisionSpec

MASK_DTYPE = IMAGES_DTYPE = np.dtype("u1")
_LONGEST = 2**31 - 1
"""Bytes of a sequence: an index has 32 bits for its length."""
_CONFIG = "tokenizer_config.json"
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")


class EncodedConversation(NamedTuple):
    """A conversation as it is stored."""

    ids: list[int]
    mask: list[int]
    """Of each token: `COUNTS`, `PATCH`, or 0."""
    images: list[bytes]
    """The pixels of each image."""


class _StoredImage(NamedTuple):
    pixels: bytes
    """What is stored of it."""
    tokens: int
    """That stand for it."""


class _Read(NamedTuple):
    encoded: EncodedConversation
    is_unpictured: bool
    """Whether its text names an image that it does not have."""
    is_shortened: bool
    """Whether its template leaves out part of what counts."""


class ChatEncoder:
    """Encodes conversations with one tokenizer and template. Its chunks have two keys: the tokens and their mask. With
    `vision` they have a third, the images; without it a conversation with images is malformed."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate, vision: VisionSpec | None = None) -> None:
        """Raises UserError when the tokenizer has no token that can stand for a patch."""
        self._tokenizer, self._template, self._vision = tokenizer, template, vision
        if vision is not None:
            self._patch = patch_token(tokenizer, vision.kind)

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        """Encode a chunk."""
        encoded: list[EncodedConversation] = []
        malformed: list[MalformedRecord] = []
        unpictured = shortened = 0
        for block in chunk.blocks:
            for _, read in read_records(block, partial(self._read, folder=Path(block.path).parent)):
                if isinstance(read, MalformedRecord):
                    malformed.append(read)
                else:
                    encoded.append(read.encoded)
                    unpictured += read.is_unpictured
                    shortened += read.is_shortened
        lengths = array("i", (len(each.ids) for each in encoded)).tobytes()
        every = np.array([number for each in encoded for number in each.ids], dtype=self._tokenizer.dtype)
        mask = np.array([mark for each in encoded for mark in each.mask], dtype=MASK_DTYPE)
        tokens = EncodedKey(every.tobytes(), lengths, largest=int(every.max()) if len(every) else -1)
        tokens.counted = int(np.count_nonzero(mask == COUNTS))
        tokens.unpictured, tokens.shortened = unpictured, shortened
        keys = [tokens, EncodedKey(mask.tobytes(), lengths, largest=PATCH)]
        if self._vision is not None:
            sizes = array("i", (sum(map(len, each.images)) for each in encoded)).tobytes()
            every_image = [image for each in encoded for image in each.images]
            keys.append(EncodedKey(b"".join(every_image), sizes, largest=255))
            keys[-1].counted = len(every_image)
        return EncodedChunk(keys, malformed)

    def encode(self, line: bytes, folder: Path = Path()) -> EncodedConversation:
        """A line's conversation; paths of images lead from `folder`. Raises ValueError when there is nothing to learn,
        or an image cannot be read."""
        return self._read(line, folder).encoded

    def _read(self, line: bytes, folder: Path) -> _Read:
        """The same, and what a person should know of it."""
        messages, tools = parse_conversation(line)
        paths = [folder / path for message in messages for path in message.images]
        pieces, whole = self._template(messages, tools), self._template.is_whole
        images: list[_StoredImage] = []
        if paths:
            ids, mask, images = self._with_patches(pieces, paths)
        else:
            ids, mask = tokens_of(self._tokenizer, pieces, whole)
        if COUNTS not in mask[1:]:
            raise ValueError("the assistant says nothing: none of its tokens counts")
        is_unpictured = self._vision is not None and not paths and any(MARK in each.text for each in messages)
        encoded = EncodedConversation(ids, mask, [image.pixels for image in images])
        return _Read(encoded, is_unpictured, _is_shortened(messages, pieces))

    def _with_patches(
        self, pieces: Sequence[RenderedText], paths: Sequence[Path]
    ) -> tuple[list[int], list[int], list[_StoredImage]]:
        """The tokens of text in which `IMAGE` stands for each of some images: there are those of its patches."""
        images = len(paths)
        if self._vision is None:
            raise ValueError(
                "it has images, but their size is not known: name it with --image-size (in a job: model.vision), or "
                "leave the line out"
            )
        most = _LONGEST // bytes_per_image(self._vision.image_size)
        if images > (min(most, most_images(self._vision)) if self._vision.kind.keeps_shape else most):
            raise ValueError(f"it has {images} images, more than a data set can hold for a conversation")
        around, is_whole = self._vision.kind.around, self._template.is_whole
        parts = between_images(self._tokenizer, with_text_around(pieces, around), is_whole)
        if len(parts) != images + 1:
            raise ValueError(f"the chat template writes {len(parts) - 1} of its {images} images")
        found = [_stored(path, self._vision) for path in paths]
        ids, mask = parts[0]
        for image, (more_ids, more_mask) in zip(found, parts[1:], strict=True):
            ids = [*ids, *[self._patch] * image.tokens, *more_ids]
            mask = [*mask, *[PATCH] * image.tokens, *more_mask]
        return ids, mask, found


def _is_shortened(messages: Sequence[Message], pieces: Sequence[RenderedText]) -> bool:
    written = squeezed("".join(piece.text or "" for piece in pieces))
    for message in messages:
        if message.role == "assistant" and message.counts:
            said = [*message.text.split(IMAGE), message.reasoning]
            if any(squeezed(text) not in written for text in said if isinstance(text, str)):
                return True
    return False


def patch_token(tokenizer: Tokenizer, kind: ImageEncoderKind) -> int:
    """The token that stands for a patch of an image: its own, or that which ends a document. Raises UserError when the
    tokenizer has neither."""
    own = tokenizer.token_id(kind.token)
    return tokenizer.eod if own is None else own


def _stored(path: Path, vision: VisionSpec) -> _StoredImage:
    """That of a file. Raises ValueError where it is no image."""
    try:
        found = pixels(path, vision)
    except MissingDependency:
        raise
    except UserError as error:
        raise ValueError(str(error)) from error
    _, rows, columns = found.shape
    stored = found.tobytes()
    if vision.kind.keeps_shape:
        stored = stored_image(stored, rows, columns, vision)
    return _StoredImage(stored, vision.tokens_of(rows, columns))


def chat_template(tokenizer: Tokenizer, wanted: str | None, day: str | None = None) -> ChatTemplate:
    """The template that a person names, or the best for a tokenizer: its own, ChatML where it has the tokens for that,
    else plain. `day`: what it takes for today (2026-11-27), None for the clock's. Raises UserError when it cannot be
    had."""
    if wanted is None and (own := _own_template(tokenizer, day)) is not None:
        return own
    if wanted is None:
        has_tokens = all(tokenizer.token_id(token) is not None for token in _CHATML_TOKENS)
        wanted = "chatml" if has_tokens else "plain"
    if wanted == "plain":
        _ = tokenizer.eod  # says so now, when there is none
        return PlainTemplate()
    if wanted == "vicuna":
        return _vicuna(tokenizer)
    content = CHATML if wanted == "chatml" else _from_file(wanted)
    return _jinja(tokenizer, wanted, content, day)


def _vicuna(tokenizer: Tokenizer) -> JinjaTemplate:
    """Raises UserError for a tokenizer of which no text becomes the token that ends a document."""
    _ = tokenizer.encode_with_spans("")
    end = tokenizer.tokens().get(tokenizer.eod, "")
    if tokenizer.encode(end) != [tokenizer.eod]:
        raise UserError(
            f"chat template vicuna: no text becomes the token with which the {tokenizer.spec.type} tokenizer ends a "
            "document, so that an answer could not be ended; write plain, or name another tokenizer",
            code="no_end_of_answer_token",
        )
    return JinjaTemplate("vicuna", VICUNA, {"begin": tokenizer.begins, "end": end}, tokenizer.begins)


def _jinja(
    tokenizer: Tokenizer, name: str, content: str, day: str | None, with_tools: str | None = None
) -> JinjaTemplate:
    _ = tokenizer.encode_with_spans("")  # says so now, when it cannot
    return JinjaTemplate(name, content, _special_tokens(tokenizer), tokenizer.begins, with_tools, day)


def _from_file(name: str) -> str:
    path = Path(name)
    if not path.is_file():
        raise UserError(f"chat template {name} is not a file; write {TEMPLATES_SAID}", code="unknown_chat_template")
    return template_file(path)


def _own_template(tokenizer: Tokenizer, day: str | None) -> JinjaTemplate | None:
    """What lies beside the tokenizer.json: chat_template.jinja, or chat_template of the tokenizer_config.json, or of
    the chat_template.json that older processors have. Of several, by name, `default`, and `tool_use` with tools."""
    if tokenizer.spec.type != "huggingface":
        return None
    beside = tokenizer_file(tokenizer.spec).with_name("chat_template.jinja")
    if beside.is_file():
        with_tools = beside.with_name("additional_chat_templates") / "tool_use.jinja"
        for_tools = template_file(with_tools) if with_tools.is_file() else None
        return _jinja(tokenizer, str(beside), template_file(beside), day, for_tools)
    for name in (_CONFIG, "chat_template.json"):
        found = _beside(tokenizer, name).get("chat_template")
        named: dict[object, object] = {"default": found}
        if isinstance(found, list):
            named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        own, other = named.get("default"), named.get("tool_use")
        if isinstance(own, str):
            return _jinja(
                tokenizer, f"of {beside.with_name(name)}", own, day, other if isinstance(other, str) else None
            )
    return None


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """bos_token, eos_token and the like, which templates read."""
    if tokenizer.spec.type != "huggingface":
        return {}
    tokens = {}
    for name, value in _beside(tokenizer, _CONFIG).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _beside(tokenizer: Tokenizer, name: str) -> dict[str, Any]:
    """What a file of JSON beside the tokenizer.json says; nothing where there is none."""
    path = tokenizer_file(tokenizer.spec).with_name(name)
    if not path.is_file():
        return {}
    try:
        config = read_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", code="not_json") from error
    return config if isinstance(config, dict) else {}
