"""The data: sources, split, tokenizer and vocabulary."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any

from orchestrator.data.tokenizers.vocabulary import BYTE_LEVEL_EOD, BYTE_LEVEL_TOKENS
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import MEGATRON, GivenFlags
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.spec.sections.data import BlendEntry

BLEND, VALIDATION, TEST, SPLIT = "data.blend", "data.validation", "data.test", "data.split"
TYPE, PATH, MERGES = "data.tokenizer.type", "data.tokenizer.path", "data.tokenizer.merges"
CASE = "data.tokenizer.lower_case"
VOCABULARY, RANDOM = "model.vocab_size", "data.random_tokens"
TRAINING_ALONE = "1,0,0"
_BYTES, _BYTE_LEVEL = BYTE_LEVEL_EOD, BYTE_LEVEL_EOD + 1 + len(BYTE_LEVEL_TOKENS)
"""The byte-level tokenizer's ids before its end of document, to Megatron-LM a NullTokenizer of that size, and all."""
_UNREAD = "this tokenizer ignores it"
_TYPES = {
    "GPT2BPETokenizer": "gpt2_bpe",
    "HuggingFaceTokenizer": "huggingface",
    "PretrainedFromHF": "huggingface",
    "SentencePieceTokenizer": "sentencepiece",
    "GPTSentencePieceTokenizer": "sentencepiece",
    "Llama2Tokenizer": "sentencepiece",
    "BertWordPieceLowerCase": "wordpiece",
    "BertWordPieceCase": "wordpiece",
}
_LOWER_CASE = {"BertWordPieceLowerCase": True, "BertWordPieceCase": False}
_WRITTEN_TYPES = {
    "gpt2_bpe": "GPT2BPETokenizer",
    "huggingface": "HuggingFaceTokenizer",
    "sentencepiece": "GPTSentencePieceTokenizer",  # in every release without tokens that the model lacks
}
_SOURCES = {
    "data-path": BLEND,
    "train-data-path": BLEND,
    "valid-data-path": VALIDATION,
    "test-data-path": TEST,
}


def sources(words: list[str]) -> list[dict[str, Any]]:
    """Megatron-LM's prefix, or weights and prefixes in turn, as a blend. Raises ValueError for what is none.

    Several prefixes without weights are read in proportion to how many samples each has, which no flag says.
    """
    weights = [_weight(word) for word in words[::2]]
    if _are_weighted(words):
        return [{"path": path, "weight": weight} for path, weight in zip(words[1::2], weights, strict=True)]
    if len(words) == 1:
        return [{"path": words[0]}]
    if weights[0] is not None or (len(words) % 2 == 0 and any(weight is not None for weight in weights)):
        raise ValueError("weights and prefixes do not alternate")
    raise ValueError("without weights Megatron-LM takes each in proportion to its samples: give each its weight")


def _are_weighted(words: list[str]) -> bool:
    return bool(words) and len(words) % 2 == 0 and all(_weight(word) is not None for word in words[::2])


def _weight(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


def read_sources(given: GivenFlags) -> None:
    for name, path in _SOURCES.items():
        if not given.has(name):
            continue
        words = given.words(name)
        if words is not None and len(words) == 1 and _are_weighted(together := words[0].split()):
            words = together
        if not words or not all(words):
            given.write_it(name, path)
            continue
        try:
            given.carry(name, path, sources(words))
        except ValueError as error:
            given.write_it(name, path, str(error))
    if given.has("mock-data"):
        given.carry("mock-data", RANDOM, True)


def read_split(given: GivenFlags) -> None:
    if given.has("train-data-path"):
        given.no_effect("split", "each part has its own sources")
        given.default(SPLIT, TRAINING_ALONE, "--train-data-path is read whole")
        return
    if not given.has("split"):
        return
    text = given.text("split")
    if text is None:
        given.write_it("split", SPLIT)
        return
    weights = re.findall(r"[.0-9]+", text)
    try:
        written = ",".join(f"{float(weight):g}" if "." in weight else weight for weight in [*weights, "0", "0"][:3])
    except ValueError:
        weights = []
    if 1 <= len(weights) <= 3:
        given.carry("split", SPLIT, written)
    else:
        given.write_it("split", SPLIT, "a split is three weights")


def write_sources(writer: FlagWriter) -> None:
    data = writer.job.data
    if data.random_tokens:
        writer.add("DATA", "mock-data")
        writer.add("DATA", "split", data.split)
        return
    parts = {"data-path": data.blend, "valid-data-path": data.validation, "test-data-path": data.test}
    apart = data.validation is not None or data.test is not None
    if apart:
        parts["train-data-path"] = parts.pop("data-path")
        if data.split != TRAINING_ALONE:
            writer.unsaid_value(SPLIT, "Megatron-LM reads each part whole where one has sources of its own")
    for name, entries in parts.items():
        if entries is not None:
            _write_blend(writer, name, entries)
    if not apart:
        writer.add("DATA", "split", data.split)


def _write_blend(writer: FlagWriter, name: str, entries: list[BlendEntry]) -> None:
    path = _SOURCES[name]
    words: list[str] = []
    for entry in entries:
        if len(entries) > 1 or entry.weight != 1.0:
            words.append(repr(entry.weight))
        words.append(f"./{entry.path}" if entry.path.startswith("-") else entry.path)
    writer.add("DATA", name, *words)
    if any(entry.text is not None for entry in entries):
        writer.unsaid_value(
            path, "Megatron-LM makes no data set from text while it starts: tools/preprocess_data.py does"
        )
    elif len(words) == 1 and _are_weighted(words[0].split()):
        writer.say_otherwise(path, "a prefix with blanks that reads like weights and prefixes")
    elif any(entry.path.startswith("-") for entry in entries):
        writer.say_otherwise(path, "a prefix with a dash in front reads like a flag: ./ is written before it")


def read_tokenizer(given: GivenFlags) -> None:
    kind = given.text("tokenizer-type") if given.has("tokenizer-type") else given.family.tokenizer
    is_random = given.get(RANDOM) is True
    if kind is None:
        given.write_it("tokenizer-type", TYPE)
    elif kind == "NullTokenizer":
        _read_null(given, is_random)
    elif kind in _TYPES:
        _read_files(given, kind, is_random)
    else:
        given.refuse_value("tokenizer-type", TYPE, f"this version has the tokenizers {', '.join(sorted(_TYPES))}")
        given.require(PATH, f"a supported tokenizer type instead of {kind}")
    if given.family.trains.is_encoder_decoder and given.has("legacy-tokenizer") and kind in _LOWER_CASE:
        given.migration.notes.append(
            "--legacy-tokenizer adds [BOS] and [EOS] to word pieces, and a T5's decoder begins and ends with them, not "
            "with [CLS] and [SEP]: for the same append both, a line each, to a copy of the vocabulary"
        )
    _read_vocabulary(given, kind, is_random)
    given.no_effect(("vocab-file", "merge-file", "tokenizer-model"), _UNREAD)
    if kind != "TikTokenizer":
        given.no_effect(("tiktoken-pattern", "tiktoken-num-special-tokens"), _UNREAD)


def _read_null(given: GivenFlags, is_random: bool) -> None:
    if is_random or given.number("vocab-size") == _BYTES:
        reason = "random tokens need no tokenizer" if is_random else "256 ids and an end of document: byte_level"
        given.settle("tokenizer-type", "carried", TYPE, "byte_level", reason)
        return
    given.settle("tokenizer-type", "no_counterpart", TYPE, reason="write the tokenizer that made the data")
    given.migration.notes.append("NullTokenizer does not name the tokenizer that made the data: set data.tokenizer")


def _read_files(given: GivenFlags, kind: str, is_random: bool) -> None:
    found = _TYPES[kind]
    if given.has("tokenizer-type"):
        given.carry("tokenizer-type", TYPE, found)
    elif is_random:
        return
    else:
        given.default(TYPE, found, f"{MEGATRON}: {kind}")
    if kind in _LOWER_CASE:
        given.put(CASE, _LOWER_CASE[kind], f"--tokenizer-type {kind}", not given.has("tokenizer-type"))
    files = {PATH: "vocab-file" if found in ("gpt2_bpe", "wordpiece") else "tokenizer-model"}
    if found == "gpt2_bpe":
        files[MERGES] = "merge-file"
    for path, name in files.items():
        if given.text(name) is not None:
            given.carry(name, path, given.text(name))
        elif given.has(name):
            given.write_it(name, path)
        elif not is_random:
            given.require(path, f"{kind} needs --{name}, which is not given")


def _read_vocabulary(given: GivenFlags, kind: str | None, is_random: bool) -> None:
    name = "padded-vocab-size" if given.has("padded-vocab-size") else "vocab-size"
    size = given.number(name)
    if name == "vocab-size" and kind != "NullTokenizer" and not is_random:
        given.no_effect(name, "the tokenizer's files determine the size of the vocabulary")
    elif given.has(name) and size is None:
        given.write_it(name, VOCABULARY)
    elif size is not None and name == "vocab-size" and size == _BYTES and not is_random:
        _read_bytes(given)
    elif size is not None and name == "vocab-size" and kind == "NullTokenizer":
        given.carry(name, VOCABULARY, size + 1, f"--vocab-size {size}, and an end of document")
    elif size is not None:
        given.carry(name, VOCABULARY, size)
        unit = given.get("model.make_vocab_size_divisible_by")
        tp = given.get("parallelism.tensor_model_parallel_size")
        if name == "padded-vocab-size" and isinstance(unit, int) and isinstance(tp, int) and size % (unit * tp):
            given.migration.notes.append(
                f"--padded-vocab-size {size} is no multiple of {unit} · TP {tp}: here it is padded up to one"
            )
    given.no_effect("vocab-size", "--padded-vocab-size says it")
    if is_random and given.get(VOCABULARY) is None and VOCABULARY not in given.migration.missing:
        given.require(VOCABULARY, "random tokens need it; GPT-2's vocabulary has 50257")


def _read_bytes(given: GivenFlags) -> None:
    """The tokens of bytes: the byte-level tokenizer has a few more, which padding may make up for."""
    name, own = "vocab-size", _BYTE_LEVEL
    unit, tp, more = (
        given.get(path)
        for path in (
            "model.make_vocab_size_divisible_by",
            "parallelism.tensor_model_parallel_size",
            "data.tokenizer.vocab_extra_ids",
        )
    )
    if all(isinstance(each, int) for each in (unit, tp, more)):
        own, multiple = own + more, max(unit * tp, 1)
        if _padded(_BYTES + 1, multiple) == _padded(own, multiple):
            reason = f"byte_level has {own}, and both are padded to {_padded(own, multiple)}"
            given.settle(name, "default", VOCABULARY, None, reason)
            return
    reason = (
        f"the script's network has {_BYTES + 1} entries before they are padded, and byte_level's {own}, which is "
        f"another network: write {own} to train that, or the tokenizer that made the data and {_BYTES + 1}"
    )
    given.settle(name, "not_known", VOCABULARY, None, reason)
    given.require(VOCABULARY, f"{given.flags[name].shown} ({reason})")


def _padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def write_tokenizer(writer: FlagWriter) -> None:
    tokenizer, size = writer.job.data.tokenizer, writer.job.model.vocab_size
    if tokenizer.type == "byte_level":
        writer.add("DATA", "tokenizer-type", "NullTokenizer")
        if size is not None and writer.job.data.random_tokens:
            writer.add("DATA", "vocab-size", size - 1)
            return
        writer.add("DATA", "vocab-size", _BYTES)
        model, degrees = writer.job.model, writer.job.parallelism
        multiple = model.make_vocab_size_divisible_by * degrees.tensor_model_parallel_size
        rows = _padded(size or _BYTE_LEVEL + tokenizer.vocab_extra_ids, multiple)
        if rows != _padded(_BYTES + 1, multiple):
            writer.add("DATA", "padded-vocab-size", rows)
            if size != rows:
                writer.say_otherwise(VOCABULARY, f"--padded-vocab-size {rows}")
        elif size is not None:
            writer.unsaid_value(VOCABULARY, f"it is that of the bytes: {_BYTES + 1}")
        return
    writer.add("DATA", "tokenizer-type", _WRITTEN_TYPES.get(tokenizer.type) or _wordpiece(writer))
    if tokenizer.path is not None:
        by_vocabulary = tokenizer.type in ("gpt2_bpe", "wordpiece")
        path, folder = tokenizer.path, PurePath(tokenizer.path).parent
        if tokenizer.type == "huggingface" and PurePath(path).name == "tokenizer.json":
            path = str(folder)
            writer.say_otherwise(PATH, "Megatron-LM takes the folder that it is in")
        writer.add("DATA", "vocab-file" if by_vocabulary else "tokenizer-model", path)
    if tokenizer.merges is not None:
        writer.add("DATA", "merge-file", tokenizer.merges)
    if size is not None:
        writer.unsaid_value(VOCABULARY, "Megatron-LM takes it from the tokenizer's files")


def _wordpiece(writer: FlagWriter) -> str:
    """Its name says whether text is lower-cased, which here the vocabulary says where the job does not."""
    is_lower = writer.job.data.tokenizer.lower_case
    if is_lower is None:
        writer.say_otherwise(CASE, "BertWordPieceLowerCase: for a vocabulary with capitals write BertWordPieceCase")
    return next(name for name, lowers in _LOWER_CASE.items() if lowers == (is_lower is not False))


def read_seed(given: GivenFlags) -> None:
    if not given.has("seed"):
        return
    seed = given.number("seed")
    if seed is None:
        given.write_it("seed", "runtime.seed")
        given.require("data.seed", given.flags["seed"].shown)
        return
    given.carry("seed", "runtime.seed", seed)
    given.put("data.seed", seed, given.flags["seed"].shown)


def write_seed(writer: FlagWriter) -> None:
    seed = writer.job.runtime.seed
    writer.add("TRAINING", "seed", seed)
    if writer.job.data.seed != seed:
        writer.unsaid_value("data.seed", "Megatron-LM has one seed for the data and the weights")


def read_conversations(given: GivenFlags) -> None:
    """Megatron-LM's own flag for them, --sft, reads conversations as text."""


def write_conversations(writer: FlagWriter) -> None:
    if writer.job.data.has_conversations:
        writer.unsaid_value("data.chat", "Megatron-LM reads conversations as text (--sft), and these are tokens")


DATA = (
    FlagGroup(
        {"data-path": None, "train-data-path": None, "valid-data-path": None, "test-data-path": None, "mock-data": 0},
        read_sources,
        write_sources,
        (BLEND, VALIDATION, TEST, RANDOM),
    ),
    FlagGroup({"split": 1}, read_split, lambda writer: None, (SPLIT,)),
    FlagGroup(
        {
            **{"tokenizer-type": 1, "tokenizer-model": 1, "vocab-file": 1, "merge-file": 1},
            **{"vocab-size": 1, "padded-vocab-size": 1},
        },
        read_tokenizer,
        write_tokenizer,
        (TYPE, PATH, MERGES, CASE, VOCABULARY),
    ),
    FlagGroup({}, read_conversations, write_conversations, ("data.chat",)),
    FlagGroup({"seed": 1}, read_seed, write_seed, ("runtime.seed", "data.seed")),
)
