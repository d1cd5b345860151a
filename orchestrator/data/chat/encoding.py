"""From a chunk of JSON lines to the tokens of conversations and the mask of what counts: what a worker does."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from orchestrator.data.chat.conversations import parse_conversation
from orchestrator.data.chat.templates import CHATML, ChatTemplate, JinjaTemplate, Piece, PlainTemplate, template_file
from orchestrator.data.documents import Malformed, read_records
from orchestrator.data.encoding import EncodedChunk, EncodedKey
from orchestrator.data.sources import Chunk
from orchestrator.data.tokenizers import Tokenizer
from orchestrator.data.vocabulary import tokenizer_file
from orchestrator.errors import UserError

MASK_DTYPE = np.dtype("u1")
_CHATML_TOKENS = ("<|im_start|>", "<|im_end|>")


class ChatEncoder:
    """Encodes conversations with one tokenizer and template. Its chunks have two keys: the tokens and their mask."""

    def __init__(self, tokenizer: Tokenizer, template: ChatTemplate) -> None:
        self._tokenizer, self._template = tokenizer, template

    def __call__(self, chunk: Chunk) -> EncodedChunk:
        """Encode a chunk."""
        encoded: list[tuple[list[int], list[bool]]] = []
        malformed: list[Malformed] = []
        for block in chunk.blocks:
            for _, read in read_records(block, self.encode):
                if isinstance(read, Malformed):
                    malformed.append(read)
                else:
                    encoded.append(read)
        lengths = array("i", (len(ids) for ids, _ in encoded)).tobytes()
        every = np.array([number for ids, _ in encoded for number in ids], dtype=self._tokenizer.dtype)
        mask = np.array([counts for _, counted in encoded for counts in counted], dtype=MASK_DTYPE)
        tokens = EncodedKey(every.tobytes(), lengths, largest=int(every.max()) if len(every) else -1)
        tokens.counted = int(mask.sum())
        return EncodedChunk([tokens, EncodedKey(mask.tobytes(), lengths, largest=1)], malformed)

    def encode(self, line: bytes) -> tuple[list[int], list[bool]]:
        """The tokens of a line's conversation, and which count. Raises ValueError when there is nothing to learn."""
        pieces = self._template(parse_conversation(line))
        ids, counts = self._as_one(pieces) if self._template.is_whole else self._piece_by_piece(pieces)
        if not any(counts[1:]):
            raise ValueError("the assistant says nothing: none of its tokens counts")
        return ids, counts

    def _as_one(self, pieces: Sequence[Piece]) -> tuple[list[int], list[bool]]:
        """A token counts when it begins within what counts."""
        ids, starts = self._tokenizer.encode_with_starts("".join(piece.text or "" for piece in pieces))
        ends = np.cumsum([len(piece.text or "") for piece in pieces])
        which = np.searchsorted(ends, np.array(starts, dtype=np.int64), side="right")
        return ids, [pieces[min(number, len(pieces) - 1)].counts for number in which.tolist()]

    def _piece_by_piece(self, pieces: Sequence[Piece]) -> tuple[list[int], list[bool]]:
        ids: list[int] = []
        counts: list[bool] = []
        for piece in pieces:
            part = [self._tokenizer.eod] if piece.text is None else self._tokenizer.encode(piece.text)
            ids += part
            counts += [piece.counts] * len(part)
        return ids, counts


def chat_template(tokenizer: Tokenizer, wanted: str | None) -> ChatTemplate:
    """The template that a person names, or the best for a tokenizer: its own, ChatML where it has the tokens for that,
    else plain. Raises UserError when it cannot be had."""
    if wanted is None and (own := _own_template(tokenizer)) is not None:
        return own
    if wanted is None:
        has_tokens = all(tokenizer.token_id(token) is not None for token in _CHATML_TOKENS)
        wanted = "chatml" if has_tokens else "plain"
    if wanted == "plain":
        _ = tokenizer.eod  # says so now, when there is none
        return PlainTemplate()
    content = CHATML if wanted == "chatml" else _from_file(wanted)
    return _jinja(tokenizer, wanted, content)


def _jinja(tokenizer: Tokenizer, name: str, content: str) -> JinjaTemplate:
    _ = tokenizer.encode_with_starts("")  # says so now, when it cannot
    return JinjaTemplate(name, content, _special_tokens(tokenizer))


def _from_file(name: str) -> str:
    path = Path(name)
    if not path.is_file():
        raise UserError(f"chat template {name} is not a file; write chatml, plain, or a file with a Jinja template")
    return template_file(path)


def _own_template(tokenizer: Tokenizer) -> JinjaTemplate | None:
    """What lies beside the tokenizer.json: chat_template.jinja, or chat_template of the tokenizer_config.json."""
    if tokenizer.spec.type != "huggingface":
        return None
    beside = tokenizer_file(tokenizer.spec).with_name("chat_template.jinja")
    if beside.is_file():
        return _jinja(tokenizer, str(beside), template_file(beside))
    found = _config(tokenizer).get("chat_template")
    if isinstance(found, list):  # several, by name
        named = (each for each in found if isinstance(each, dict))
        found = next((each.get("template") for each in named if each.get("name") == "default"), None)
    if not isinstance(found, str):
        return None
    return _jinja(tokenizer, f"of {tokenizer_file(tokenizer.spec).with_name('tokenizer_config.json')}", found)


def _special_tokens(tokenizer: Tokenizer) -> dict[str, str]:
    """bos_token, eos_token and the like, which templates read."""
    if tokenizer.spec.type != "huggingface":
        return {}
    tokens = {}
    for name, value in _config(tokenizer).items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            tokens[name] = text
    return tokens


def _config(tokenizer: Tokenizer) -> dict[str, Any]:
    path = tokenizer_file(tokenizer.spec).with_name("tokenizer_config.json")
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}") from error
    return config if isinstance(config, dict) else {}
