"""Training programs of Megatron-LM, and how one is found among the words of a command."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath

from orchestrator.migration.shell.values import Value, known, shown

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
    architecture: str | None
    """`model.architecture` of the spec; None where this version does not have it."""
    tokenizer: str = "GPT2BPETokenizer"
    """What its program takes without --tokenizer-type."""
    flags: tuple[str, ...] = ()
    """Flags that only this family has a use for."""


GPT = Family("GPT", "gpt")
BERT = Family(
    "BERT",
    "bert",
    "BertWordPieceLowerCase",
    ("bert-no-binary-head", "mask-prob", "short-seq-prob", "output-bert-embeddings", "bert-embedder-type"),
)
T5 = Family(
    "T5",
    "t5",
    "BertWordPieceLowerCase",
    ("decoder-num-layers", "decoder-seq-length", "mask-prob", "short-seq-prob", "vocab-extra-ids"),
)
MAMBA = Family("Mamba", "mamba")
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


@dataclass(frozen=True)
class TrainingCommand:
    """A command that trains: what starts the program, the program, and its flags."""

    launcher: tuple[Value, ...]
    program: str
    words: tuple[Value, ...]

    @property
    def family(self) -> Family | None:
        """By the program's name, and a BERT where there is a task; None where that does not tell."""
        if _task(self.words) in TASKS:
            return BERT
        name = PurePath(self.program).name.lower()
        found = next((family for pattern, family in _FAMILIES if re.search(rf"(?:^|[^a-z])(?:{pattern})", name)), None)
        if found is None and _OF_HYBRIDS & {_text(word).lstrip("-").partition("=")[0] for word in self.words}:
            return MAMBA
        return found


def training_command(words: Sequence[Value]) -> TrainingCommand | None:
    """The training that a command starts; None where it is another command."""
    for number, word in enumerate(words):
        if not shown(word).endswith(".py"):
            continue
        behind = tuple(words[number + 1 :])
        names = {name.lstrip("-").replace("_", "-").partition("=")[0] for name in map(_text, behind)}
        name = PurePath(shown(word)).name
        pretrains = name.startswith("pretrain_")
        if _OTHERWISE.search(name) or ("task" in names and not pretrains and _task(behind) not in TASKS):
            continue
        if names & _TRAINS or (pretrains and any(each.startswith("--") for each in map(_text, behind))):
            return TrainingCommand(tuple(words[:number]), shown(word), behind)
    return None


def _task(words: Sequence[Value]) -> str | None:
    """The word behind --task, where it is given and known."""
    texts = [_text(word) for word in words]
    for number, text in enumerate(texts):
        name, _, value = text.partition("=")
        if name == "--task":
            return value or next(iter(texts[number + 1 :]), None)
    return None


def trains(words: Sequence[Value]) -> bool:
    """Whether flags without a program are those of a training."""
    return any(_text(word).lstrip("-").partition("=")[0] in _TRAINS for word in words)


def _text(word: Value) -> str:
    return known(word) or ""


def family_of_flag(name: str) -> Family | None:
    """The family, other than GPT, that a flag is for."""
    return next((family for _, family in _FAMILIES if name in family.flags), None)
