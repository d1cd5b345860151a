"""Training programs of Megatron-LM, and how one is found among the words of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from orchestrator.migration.shell.values import Value, known, shown
from orchestrator.models import registry
from orchestrator.models.registry import FamilyTable, ModelFamily

_TRAINS = frozenset(
    (
        *("num-layers", "encoder-num-layers", "hidden-size", "num-attention-heads"),
        *("micro-batch-size", "train-iters", "train-samples"),
    )
)
"""A program that takes one of these trains a model, unless its name says otherwise."""
_OF_HYBRIDS = frozenset(("hybrid-override-pattern", "hybrid-layer-pattern", "is-hybrid-model"))
"""Flags by which a training is a hybrid's where no program's name says what it is."""
TASKS = ("MNLI", "RACE")
"""What tasks/main.py fine-tunes a BERT on that this version has; its other tasks are no trainings here."""
_OTHERWISE = re.compile(r"^eval|generat|server|inference|merge|convert|preprocess")


@dataclass(frozen=True)
class Family:
    """A kind of model."""

    name: str
    model: ModelFamily | None
    """What its program trains; None where this version does not have it."""
    tokenizer: str = "GPT2BPETokenizer"
    """What its program takes without --tokenizer-type."""
    flags: tuple[str, ...] = ()
    """Flags that only this family has a use for."""
    scales_positions: bool = True
    """Its program takes the flags that scale rotary positions."""
    averages_micro_batches: bool = False
    """Its program averages the loss of each micro-batch by itself, whatever the flags say."""
    biases_tied_output: bool = False
    """Its output layer has a bias wherever it is tied to the embedding."""

    @property
    def trains(self) -> ModelFamily:
        """What a job of it is taken for: a GPT where this version does not have it."""
        return self.model or registry.GPT


GPT = Family("GPT", registry.GPT)
BERT = Family(
    "BERT",
    registry.BERT,
    "BertWordPieceLowerCase",
    ("bert-no-binary-head", "mask-prob", "short-seq-prob", "output-bert-embeddings", "bert-embedder-type"),
    scales_positions=False,
    averages_micro_batches=True,
)
T5 = Family(
    "T5",
    registry.T5,
    "BertWordPieceLowerCase",
    ("decoder-num-layers", "decoder-seq-length", "mask-prob", "short-seq-prob", "vocab-extra-ids"),
    scales_positions=False,
    biases_tied_output=True,
)
MAMBA = Family("Mamba", registry.MAMBA)
PROGRAMS = FamilyTable[Family](gpt=GPT, bert=BERT, t5=T5, mamba=MAMBA)
"""What Megatron-LM's program for a family of this version does."""
_FAMILIES: tuple[tuple[str, Family], ...] = (
    (r"bert", BERT),
    (r"t5", T5),
    (r"mamba|hybrid", MAMBA),
    (r"vlm|vision|multimodal|mimo|llava", Family("multimodal", None)),
    (r"retro", Family("RETRO", None)),
    (r"ict|biencoder|realm", Family("retriever", None)),
    (r"vit|dino|inpaint|classify", Family("vision", None)),
    (r"prefix", Family("prefix language", None)),
    (r"gpt", GPT),
)
"""(part of a program's name, family); the first that fits."""
_PROVIDERS = {"gpt": GPT, "mamba": MAMBA, "hybrid": MAMBA}


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains: what starts the program, the program, and its flags."""

    launcher: tuple[Value, ...]
    program: str
    words: tuple[Value, ...]

    @property
    def provider(self) -> str | None:
        """The model that forks and the programs beside pretraining choose by a flag."""
        return _value_of(self.words, "model-provider")

    @property
    def family(self) -> Family | None:
        """By --task, --model-provider, the program's name, or a pattern of layers; None where none of them tells."""
        if _value_of(self.words, "task") in TASKS:
            return BERT
        if self.provider is not None:
            return _PROVIDERS.get(self.provider) or Family(self.provider, None)
        if (found := self._family_of_program) is None and self._is_hybrid:
            return MAMBA
        return found

    @property
    def family_told_by(self) -> str:
        """What tells the family, in words."""
        if self.provider is not None:
            return f"--model-provider {self.provider}"
        if self._family_of_program is None and self._is_hybrid:
            return "its pattern of layers"
        return PurePath(self.program).name

    @property
    def _family_of_program(self) -> Family | None:
        name = PurePath(self.program).name.lower()
        return next((family for pattern, family in _FAMILIES if re.search(rf"(?:^|[^a-z])(?:{pattern})", name)), None)

    @property
    def _is_hybrid(self) -> bool:
        return bool(_OF_HYBRIDS & {_name_of(word) for word in self.words})


def training_command(words: Sequence[Value]) -> TrainingCommand | None:
    """The training that a command starts; None where it is another command."""
    for number, word in enumerate(words):
        if not shown(word).endswith(".py"):
            continue
        behind = tuple(words[number + 1 :])
        names = {_name_of(word) for word in behind}
        name = PurePath(shown(word)).name
        pretrains = name.startswith("pretrain_")
        if _OTHERWISE.search(name) or ("task" in names and not pretrains and _value_of(behind, "task") not in TASKS):
            continue
        if names & _TRAINS or (pretrains and any(each.startswith("--") for each in map(_text, behind))):
            return TrainingCommand(tuple(words[:number]), shown(word), behind)
    return None


def _value_of(words: Sequence[Value], wanted: str) -> str | None:
    """The word behind a flag, where it is given and known."""
    for number, word in enumerate(words):
        if _name_of(word) == wanted:
            value = _text(word).partition("=")[2]
            return value or next(iter(map(_text, words[number + 1 :])), None)
    return None


def trains(words: Sequence[Value]) -> bool:
    """Whether flags without a program are those of a training."""
    return any(_name_of(word) in _TRAINS for word in words)


def _name_of(word: Value) -> str:
    """Of a flag; of another word something that no flag is called."""
    text = _text(word)
    return text.lstrip("-").partition("=")[0].replace("_", "-") if text.startswith("-") else ""


def _text(word: Value) -> str:
    return known(word) or ""


def family_of_flag(name: str) -> Family | None:
    """The family, other than GPT, that a flag is for."""
    return next((family for _, family in _FAMILIES if name in family.flags), None)
