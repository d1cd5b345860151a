"""What the model reads."""

from typing import Annotated, Any, Literal

from pydantic import Field, WithJsonSchema

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.formatting import show
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag, NoMegatronFlag
from orchestrator.fields.values import (
    After,
    Before,
    Fraction,
    Number,
    Plain,
    PluginName,
    Positive,
    PositiveNumber,
    Seed,
    Size,
    Text,
    empty_dict,
)
from orchestrator.models.registry import FAMILIES
from orchestrator.spec.sections.chat import ChatSpec


def _one_as_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise ValueError("expects a path, or a list of paths")
    return [value] if isinstance(value, str) else value


_PATH = {"type": "string", "minLength": 1}
TextPaths = Annotated[
    list[Annotated[Text, Field(min_length=1)]],
    Before(_one_as_list),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [_PATH, {"type": "array", "items": _PATH, "minItems": 1}]}),
]
"""Files and folders: one path, or a list of them."""


_FLAT = "a flat blend alternates weight and path: [0.7, path/a, 0.3, path/b]"

_SENTENCES = ("model.architecture", tuple(each.name for each in FAMILIES.values() if each.least_sentences))


class BlendEntry(Section):
    """One source of a blend."""

    path: Text
    """Prefix of an indexed data set: PREFIX.bin and PREFIX.idx."""
    weight: PositiveNumber = 1.0
    """Share of the samples drawn from this source, relative to the other weights."""
    text: TextPaths | None = None
    """Text to make it from if it does not exist: files and folders as `orchestrator data tokenize` reads them, one path
    or a list."""
    json_key: Text = "text"
    """Field of a JSON line, or column of a parquet file, that holds the text."""
    append_eod: bool = True
    """End each document with the tokenizer's end-of-document token when it is made from text. Ignored for BERT and T5,
    which put their own tokens between the parts of a sample."""


def _pairs(value: Any) -> Any:
    """Megatron's flat [w1, prefix1, w2, prefix2] as a list of entries; a bare string as the only entry."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not all(isinstance(item, str | int | float) for item in value):
        return value
    if not any(_is_number(item) for item in value):
        return value
    weights, paths = value[::2], value[1::2]
    for index, item in enumerate(value):
        if index % 2 == 0 and not _is_number(item):
            raise ValueError(f"{_FLAT}; {show(item)} is where a weight belongs")
        if index % 2 and not isinstance(item, str):
            raise ValueError(f"{_FLAT}; {show(item)} is where a path belongs")
    if len(weights) > len(paths):
        raise ValueError(f"{_FLAT}; no path follows the weight {show(weights[-1])}")
    return [{"weight": weight, "path": path} for weight, path in zip(weights, paths, strict=True)]


def _entry(value: Any) -> Any:
    """A path alone is an entry of weight 1."""
    if isinstance(value, str) and not _is_number(value):
        return {"path": value}
    if isinstance(value, dict | BlendEntry):
        return value
    raise ValueError(f"expects a path or a mapping, as in {{path: path/a, weight: 0.7}}, not {show(value)}")


def _is_number(item: Any) -> bool:
    if isinstance(item, bool):
        return False
    try:
        float(item)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


Blend = Annotated[list[Annotated[BlendEntry, Before(_entry)]], Before(_pairs), Field(min_length=1)]
"""Sources and weights: a list of {path, weight} and of paths, or Megatron's flat [w1, prefix1, w2, prefix2]."""


def _check_split(value: str) -> str:
    parts = value.split(",")
    try:
        weights = [float(part) for part in parts]
    except ValueError:
        weights = []
    if len(weights) != 3 or any(not 0 <= w < float("inf") for w in weights) or sum(weights) <= 0:
        raise ValueError("a split is three weights for train, validation and test, like 969,30,1")
    return ",".join(part.strip() for part in parts)


Split = Annotated[str, After(_check_split)]
"""Relative sizes of train, validation and test: `969,30,1`."""


class TokenizerSpec(Section):
    """How text becomes token ids. `byte_level` needs no file: ids 0 to 255 are bytes, 256 ends a document, and 257
    to 260 are [PAD], [CLS], [SEP] and [MASK] of masked language models."""

    type: Annotated[
        Literal["byte_level", "huggingface", "gpt2_bpe", "wordpiece", "sentencepiece"],
        resume.forbidden("token ids have another meaning"),
        AlsoCalled("tokenizer_type"),
    ] = "byte_level"
    """The kind of tokenizer. If only `path` is given, its name determines the kind."""
    path: Annotated[
        Text | None,
        resume.same_or(lambda job: resume.place(job.data.tokenizer.path), resume.TOKENS),
        AlsoCalled("tokenizer_model tokenizer_name tokenizer_name_or_path tokenizer_path vocab_file"),
    ] = None
    """huggingface: tokenizer.json or its folder; sentencepiece: the .model file; wordpiece: vocab.txt;
    gpt2_bpe: vocab.json."""
    merges: Annotated[
        Text | None,
        resume.same_or(lambda job: resume.place(job.data.tokenizer.merges), resume.TOKENS),
        AlsoCalled("merge_file merges_file"),
    ] = None
    """gpt2_bpe: merges.txt."""
    lower_case: Annotated[bool | None, resume.forbidden("text may become other tokens"), HashedIfChanged()] = None
    """wordpiece: lower-case the text; by default if no entry of the vocabulary has an upper-case letter."""
    vocab_extra_ids: Annotated[
        Size, resume.forbidden("the ids of T5's sentinels have another meaning"), MegatronFlag()
    ] = 0
    """Sentinels for T5's spans, added after the vocabulary. With 0 they are the tokenizer's own `<extra_id_0>`,
    `<extra_id_1>`, …"""


class DataSourceSpec(Section):
    """Plugin that writes a file of text."""

    plugin: PluginName
    """The name of another package's entry point in the group `orchestrator.data_sources`."""
    options: dict[str, Plain] = Field(default_factory=empty_dict)
    """Its options."""


MaskedPart = Annotated[float, Number(gt=0.0, lt=1.0)]
"""Some of the tokens, not all."""


class DataSpec(Section):
    """The blend of indexed data sets, and how it is split and shuffled."""

    blend: Annotated[
        Blend | None,
        resume.sources,
        AlsoCalled("data_path train_data_path train_data dataset dataset_path data_prefix"),
    ] = None
    """Sources for training; `split` cuts validation and test from them unless those have their own."""
    validation: Annotated[Blend | None, resume.training_part, AlsoCalled("valid_data_path validation_data")] = None
    """Sources used only for validation, completely (no split); each is also evaluated separately."""
    test: Annotated[Blend | None, resume.training_part, AlsoCalled("test_data_path")] = None
    """Sources used only for test, completely (no split). They are not evaluated during training."""
    prepare: Annotated[
        Literal["auto", "never"],
        resume.safe("only what happens when a data set is missing changes"),
        NoMegatronFlag("Megatron-LM reads data sets that are there"),
    ] = "auto"
    """Missing sources that name the `text` they are made from: `auto` makes them before the training starts, on a
    cluster in a separate job without GPUs; `never` refuses to start without them."""
    sources: Annotated[
        dict[Text, DataSourceSpec],
        resume.safe("only what happens when a file of text is missing changes"),
        HashedIfChanged(),
        NoMegatronFlag("Megatron-LM reads data sets that are there"),
    ] = Field(default_factory=empty_dict)
    """Plugins that write missing files of `text`, by file: `{wiki.jsonl: {plugin: wiki}}`. The names end in .jsonl."""
    split: Annotated[Split, resume.training_part, AlsoCalled("splits_string train_val_test_split")] = "969,30,1"
    """Relative sizes of train, validation and test, cut by document from each source of `blend`. The test part is
    excluded from training and not evaluated during it."""
    random_tokens: Annotated[bool, resume.ORDER, AlsoCalled("mock_data")] = False
    """Random token ids of the model's vocabulary instead of data: for benchmarks."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    """The tokenizer that made the data."""
    chat: Annotated[ChatSpec | None, AlsoCalled("sft")] = None
    """Read the sources as conversations, for instruction tuning; `{}` for the usual settings."""
    cache_dir: Annotated[
        Text | None,
        resume.safe("the order of samples does not depend on where it is cached"),
        AlsoCalled("data_cache_path index_mapping_dir"),
        MegatronFlag("data-cache-path"),
    ] = None
    """Where sample indices are cached; `<runs_dir>/.cache/index` by default."""
    seed: Annotated[Seed, resume.ORDER] = 1234
    """Seed of the shuffle: the order of samples depends only on this."""
    num_workers: Annotated[
        Size | None,
        resume.safe("the order of samples does not depend on who loads them"),
        AlsoCalled("dataloader_num_workers"),
        MegatronFlag(),
    ] = None
    """Loader processes per rank; 2 on a GPU and 0 on the CPU by default."""
    reset_position_ids: Annotated[bool, resume.LOGIC, MegatronFlag()] = False
    """Restart positions after each end of document."""
    eod_mask_loss: Annotated[bool, resume.trajectory("the loss is taken over other tokens"), MegatronFlag()] = False
    """Leave the end-of-document token out of the loss."""
    mask_prob: Annotated[
        MaskedPart,
        resume.ORDER,
        AlsoCalled("mlm_probability masked_lm_prob masked_lm_probability"),
        MegatronFlag(only=_SENTENCES),
    ] = 0.15
    """BERT, T5: fraction of a sample's tokens to predict."""
    short_seq_prob: Annotated[Fraction, resume.ORDER, MegatronFlag(only=_SENTENCES)] = 0.1
    """BERT, T5: fraction of samples that are made shorter than possible."""
    bert_order: Annotated[
        Literal["sentence_order", "next_sentence"], resume.ORDER, NoMegatronFlag("Megatron-LM always swaps the parts")
    ] = "sentence_order"
    """What BERT's binary head learns. A sample has two parts; `sentence_order`: in half of the samples they are swapped
    (as Megatron-LM does); `next_sentence`: in half of them the second is from another document (as in the original
    BERT)."""
    num_dataset_builder_threads: Annotated[
        Positive, resume.safe("the order of samples does not depend on who builds it"), MegatronFlag()
    ] = 1
    """Threads that build the sample indices."""

    @property
    def split_weights(self) -> tuple[float, float, float]:
        """Weights of train, validation and test within `blend`: 0 for those that have sources of their own."""
        train, validation, test = (float(weight) for weight in self.split.split(","))
        return train, 0.0 if self.validation else validation, 0.0 if self.test else test

    @property
    def training_share(self) -> float:
        """Part of each source of `blend` that is for training: its first documents."""
        return self.split_weights[0] / (sum(self.split_weights) or 1.0)

    @property
    def has_conversations(self) -> bool:
        """Whether its sources are read as conversations."""
        return self.chat is not None

    @property
    def conversations(self) -> ChatSpec:
        """How conversations are read, of data that are some."""
        assert self.chat is not None, "the caller has asked `has_conversations`"
        return self.chat

    @property
    def masks_loss(self) -> bool:
        """Whether the loss leaves out some of the tokens, more in one sequence than in another."""
        return self.eod_mask_loss or self.has_conversations

    @property
    def packs(self) -> bool:
        """Whether a sequence holds several conversations that must not see each other."""
        return self.chat is not None and self.chat.packing
