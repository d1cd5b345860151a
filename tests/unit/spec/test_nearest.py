"""A value that a message of the shapes offers is one that they take."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.loading import load_job
from orchestrator.spec.rules import shapes

OK = Path(__file__).parent / "wrong" / "bases" / "ok.yaml"
PATHS = {
    "TP": shapes.TP,
    "num_attention_heads": shapes.HEADS,
    "num_query_groups": shapes.GROUPS,
    "ffn_hidden_size": "model.ffn_hidden_size",
}
WORDS = (
    "num_attention_heads / TP|ffn_hidden_size / TP|num_query_groups / TP|num_attention_heads / num_query|hidden_size /"
)


def refused(values: dict[str, int]) -> list[Problem]:
    try:
        load_job([OK], [f"{path}={value}" for path, value in values.items()])
    except SpecError as error:
        return [problem for problem in error.problems if re.match(WORDS, problem.message)]
    return []


@pytest.mark.parametrize(("hidden", "heads", "groups", "tp"), list(product((96, 128), (4, 8, 12), (2, 4), (3, 5, 12))))
def test_what_is_offered_is_taken(hidden: int, heads: int, groups: int, tp: int) -> None:
    if hidden % heads:
        pytest.skip("wrong without a TP")
    written = {"model.hidden_size": hidden, shapes.HEADS: heads, shapes.GROUPS: groups, shapes.TP: tp}
    found = refused(written)
    before = [problem.message for problem in found]
    for problem in found:
        for name, legal in re.findall(r"nearest (\w+): ([\d or]+)", problem.hint or ""):
            for value in legal.split(" or "):
                left = refused({**written, PATHS[name]: int(value)})
                assert not [other for other in left if PATHS[name] in other.paths and other.message not in before]
                assert problem.message.split(":")[0] not in [other.message.split(":")[0] for other in left]
