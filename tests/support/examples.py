"""Made-up files of MNLI and RACE, with a rule that a tiny network finds."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

from orchestrator.data.tasks.mnli import LABELS
from orchestrator.data.tasks.race import OPTIONS

MNLI_COLUMNS = (
    *("index", "promptID", "pairID", "genre", "sentence1_binary_parse", "sentence2_binary_parse", "sentence1_parse"),
    *("sentence2_parse", "sentence1", "sentence2", "label1", "gold_label"),
)
"""As GLUE's train.tsv has them."""
_SIGNS = {"contradiction": "no", "entailment": "yes", "neutral": "hm"}


def mnli_row(index: int, premise: str, hypothesis: str, label: str) -> str:
    """One line of a TSV file."""
    return "\t".join([str(index), "p", "q", "fiction", "(", "(", "(", "(", premise, hypothesis, label, label])


def write_mnli(path: Path, examples: int, seed: int = 1) -> Path:
    """A TSV file of so many examples; the hypothesis tells the label. Every fifth row has none, and does not count."""
    chance = random.Random(seed)
    rows = ["\t".join(MNLI_COLUMNS)]
    for index in range(examples):
        label = chance.choice(LABELS)
        rows.append(mnli_row(index, _words(chance, 2), f"{_SIGNS[label]} {_words(chance, 1)}", label))
        if index % 5 == 0:
            rows.append(mnli_row(index, "nobody", "agrees", "-"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows) + "\n")
    return path


def write_race(folder: Path, articles: int, seed: int = 1) -> Path:
    """A folder of so many articles of two questions each, one with a blank; the right option is yes."""
    chance = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(articles):
        answers = [chance.choice(OPTIONS) for _ in range(2)]
        record = {
            "article": _words(chance, 4),
            "questions": ["is _ it?", "What?"],
            "options": [["yes" if option == answer else f"no{option}" for option in OPTIONS] for answer in answers],
            "answers": answers,
            "id": f"{number}.txt",
        }
        (folder / f"{number}.txt").write_text(json.dumps(record) + "\n")
    return folder


def _words(chance: random.Random, count: int, vocabulary: Sequence[str] = ("ab", "ba", "aab", "abb")) -> str:
    return " ".join(chance.choice(vocabulary) for _ in range(count))
