"""What a tokenizer's files say, read without a tokenizer library: vocabulary size, special tokens, content hash."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.data.input.json_values import read_json
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import TokenizerSpec

UNREADABLE_TOKENIZER = "unreadable_tokenizer"
"""The code of that problem, which both a plan and a look at the data meet."""
BYTE_LEVEL_EOD = 256
"""byte_level: the id that ends a document; the ids below are bytes."""
MASKED_LM_TOKENS = {"pad": "[PAD]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
"""What a masked language model puts into its samples, by megatron-core's names."""
BYTE_LEVEL_TOKENS = {token: BYTE_LEVEL_EOD + 1 + number for number, token in enumerate(MASKED_LM_TOKENS.values())}
"""byte_level: the ids above the end of a document. No text holds them."""
WORDPIECE_BOS, WORDPIECE_EOD = "[CLS]", "[SEP]"
WORDPIECE_OWN_BOS, WORDPIECE_OWN_EOD = "[BOS]", "[EOS]"
"""Of a vocabulary that has both, as Megatron-LM's legacy tokenizer makes one of any."""
GPT2_EOD = "<|endoftext|>"
_USUAL_EOS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
_USUAL_BOS = ("<|begin_of_text|>", "<s>", "<bos>")
_NEEDS = {
    "huggingface": "a tokenizer.json or its folder",
    "gpt2_bpe": "a vocab.json",
    "wordpiece": "a vocab.txt",
    "sentencepiece": "a .model file",
}


class SpecialTokens(NamedTuple):
    """Text of the tokens that begin and end a document; None where a tokenizer has none."""

    eos: str | None
    bos: str | None


def vocabulary_size(tokenizer: TokenizerSpec) -> int:
    """Number of token ids: the largest id plus one, and the sentinels added after it. Raises UserError as below."""
    return own_vocabulary_size(tokenizer) + tokenizer.vocab_extra_ids


def own_vocabulary_size(tokenizer: TokenizerSpec) -> int:
    """Number of token ids without added sentinels.

    Raises UserError when a file is missing or is not what the tokenizer's type needs.
    """
    if tokenizer.type == "byte_level":
        return BYTE_LEVEL_EOD + 1 + len(BYTE_LEVEL_TOKENS)
    path = tokenizer_file(tokenizer)
    if tokenizer.type == "huggingface":
        return _size_of_tokenizer_json(path)
    if tokenizer.type == "gpt2_bpe":
        return _largest_id(path, _read_json(path)) + 1
    if tokenizer.type == "wordpiece":
        return len(wordpiece_vocabulary(path))
    return _sentencepiece_pieces(path)


def content_hash(tokenizer: TokenizerSpec) -> str:
    """SHA-256 of what decides the tokenizer's output, hex: the same for the same files wherever they lie."""
    digest = hashlib.sha256(tokenizer.type.encode())
    if tokenizer.type == "byte_level":
        return digest.hexdigest()
    for path in _files(tokenizer):
        digest.update(hashlib.sha256(_read(path)).digest())
    if tokenizer.type == "huggingface":
        special = special_tokens(tokenizer_file(tokenizer))
        digest.update(repr((special.eos, special.bos)).encode())
    if tokenizer.lower_case is not None and tokenizer.lower_case != _has_no_capitals(tokenizer):
        digest.update(f"lower_case {tokenizer.lower_case}".encode())
    return digest.hexdigest()


def tokenizer_file(tokenizer: TokenizerSpec) -> Path:
    """The main file of a tokenizer that has one; a folder stands for the tokenizer.json in it."""
    if tokenizer.path is None:
        raise UserError(
            f"a {tokenizer.type} tokenizer needs a path: {_NEEDS[tokenizer.type]}", code="tokenizer_path_needed"
        )
    path = Path(tokenizer.path)
    if tokenizer.type == "huggingface" and path.is_dir():
        if not (path / "tokenizer.json").is_file():
            raise UserError(
                f"tokenizer {path} is a folder without a tokenizer.json; a slow tokenizer is converted with "
                "transformers: AutoTokenizer.from_pretrained(…).save_pretrained(…)",
                code="missing_tokenizer_json",
            )
        path = path / "tokenizer.json"
    if not path.is_file():
        reason = "is a folder" if path.is_dir() else f"does not exist{looked_for(path)}"
        raise UserError(
            f"tokenizer {path} {reason}; {tokenizer.type} needs {_NEEDS[tokenizer.type]}", code="missing_tokenizer"
        )
    return path


def merges_file(tokenizer: TokenizerSpec) -> Path:
    """gpt2_bpe: the merges; the merges.txt beside the vocabulary where none is named."""
    path = Path(tokenizer.merges) if tokenizer.merges else tokenizer_file(tokenizer).with_name("merges.txt")
    if not path.is_file():
        way_out = "gpt2_bpe needs a vocab.json and a merges.txt"
        raise UserError(
            f"tokenizer merges {path} do not exist{looked_for(path)}; {way_out}", code="missing_tokenizer_merges"
        )
    return path


def looked_for(path: Path) -> str:
    """Behind a relative path that is not there: where it led, from the folder in which the command was started."""
    return "" if path.is_absolute() else f" (looked for as {path.absolute()})"


def special_tokens(path: Path) -> SpecialTokens:
    """Begin and end tokens of a tokenizer.json: as the files beside it say, else by their usual names."""
    eos, bos = None, None
    if path.name == "tokenizer.json":
        for name in ("tokenizer_config.json", "special_tokens_map.json"):
            beside = path.with_name(name)
            if beside.is_file():
                config = _read_json(beside)
                eos = eos or _token_text(config.get("eos_token"))
                bos = bos or _token_text(config.get("bos_token"))
    known = _tokens_of_tokenizer_json(path)
    return SpecialTokens(
        eos if eos in known else next((token for token in _USUAL_EOS if token in known), None),
        bos if bos in known else next((token for token in _USUAL_BOS if token in known), None),
    )


def missing_masked_lm_tokens(tokenizer: TokenizerSpec) -> list[str]:
    """Which of the tokens that a masked language model needs a tokenizer does not have.

    Raises UserError when its files cannot be read.
    """
    if tokenizer.type == "byte_level":
        return []
    known: Container[str] = ()
    if tokenizer.type == "wordpiece":
        known = wordpiece_vocabulary(tokenizer_file(tokenizer))
    elif tokenizer.type == "huggingface":
        known = _tokens_of_tokenizer_json(tokenizer_file(tokenizer))
    return [token for token in MASKED_LM_TOKENS.values() if token not in known]


def _tokens_of_tokenizer_json(path: Path) -> set[str]:
    content = _read_json(path)
    return set(_vocabulary_of(content)) | {str(token.get("content")) for token in _added_tokens(content)}


def wordpiece_vocabulary(path: Path) -> dict[str, int]:
    """token -> id of a vocab.txt: one token a line, blank lines at the end left out."""
    try:
        lines = _read(path).decode().rstrip().splitlines()
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a WordPiece vocabulary: {error}", code="not_a_wordpiece_vocabulary") from error
    vocabulary = {line.strip(): number for number, line in enumerate(lines)}
    if len(vocabulary) != len(lines) or "[UNK]" not in vocabulary:
        raise UserError(
            f"{path} is not a WordPiece vocabulary: it needs [UNK], and each token once, one a line",
            code="not_a_wordpiece_vocabulary",
        )
    return vocabulary


def lower_cases(tokenizer: TokenizerSpec) -> bool:
    """Whether a wordpiece tokenizer lower-cases the text."""
    return _has_no_capitals(tokenizer) if tokenizer.lower_case is None else tokenizer.lower_case


def _has_no_capitals(tokenizer: TokenizerSpec) -> bool:
    """Special tokens apart."""
    words = wordpiece_vocabulary(tokenizer_file(tokenizer))
    return all(word == word.lower() for word in words if not is_special_wordpiece(word))


def is_special_wordpiece(token: str) -> bool:
    """Whether a token stands for no text: `[CLS]`, `[unused0]`."""
    return token.startswith("[") and token.endswith("]") and len(token) > 2


def _files(tokenizer: TokenizerSpec) -> Iterator[Path]:
    yield tokenizer_file(tokenizer)
    if tokenizer.type == "gpt2_bpe":
        yield merges_file(tokenizer)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"tokenizer {path} cannot be read: {error.strerror}", code="unreadable_file") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = read_json(_read(path))
    except (ValueError, RecursionError) as error:
        raise UserError(f"tokenizer {path} is not JSON: {error}", code="not_json") from error
    if not isinstance(value, dict):
        raise UserError(f"tokenizer {path} is not a JSON object", code="not_a_json_object")
    return value


def _token_text(value: object) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _vocabulary_of(content: dict[str, Any]) -> dict[str, Any]:
    """token -> id of the model; the ids of a unigram's list are its positions."""
    model = content.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, list):
        return {str(entry[0]): i for i, entry in enumerate(vocabulary) if isinstance(entry, list) and entry}
    return vocabulary if isinstance(vocabulary, dict) else {}


def _added_tokens(content: dict[str, Any]) -> list[dict[str, Any]]:
    tokens = content.get("added_tokens") or []
    return [token for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []


def _size_of_tokenizer_json(path: Path) -> int:
    content = _read_json(path)
    ids = dict(_vocabulary_of(content))
    if not ids:
        raise UserError(f"{path} is not a tokenizer.json: it has no model.vocab", code="not_a_tokenizer_json")
    ids.update({f"added {number}": token.get("id") for number, token in enumerate(_added_tokens(content))})
    return _largest_id(path, ids) + 1


def _largest_id(path: Path, ids: dict[str, Any]) -> int:
    if not ids or not all(type(number) is int and number >= 0 for number in ids.values()):
        raise UserError(f"{path} is not a vocabulary: it should map tokens to ids", code="not_a_vocabulary")
    return int(max(ids.values()))


def _sentencepiece_pieces(path: Path) -> int:
    """Entries of the repeated field 1 (`pieces`) of the ModelProto."""
    data = _read(path)
    position, pieces = 0, 0
    try:
        while position < len(data):
            tag, position = _varint(data, position)
            number, wire_type = tag >> 3, tag & 7
            if wire_type == 0:
                _, position = _varint(data, position)
                continue
            length = {1: 8, 5: 4}.get(wire_type)
            if wire_type == 2:
                length, position = _varint(data, position)
            if length is None or number == 0 or position + length > len(data):
                raise ValueError
            position += length
            pieces += number == 1 and wire_type == 2
    except (IndexError, ValueError) as error:
        raise UserError(
            f"{path} is not a SentencePiece model, or is torn at byte {position}", code="not_a_sentencepiece_model"
        ) from error
    if pieces == 0:
        raise UserError(f"{path} is not a SentencePiece model: it has no pieces", code="not_a_sentencepiece_model")
    return pieces


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A protobuf varint and the position after it."""
    value, shift = 0, 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7
        if shift > 63:
            raise ValueError("varint too long")
