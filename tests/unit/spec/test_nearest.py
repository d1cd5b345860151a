"""A value that a message offers is one that is taken: of shapes, of experts, of a growing batch."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from pathlib import Path

import pytest

from orchestrator.errors import Problem, SpecError
from orchestrator.spec.loading import load_job
from orchestrator.spec.rules import shapes

OK = Path(__file__).parent / "wrong" / "bases" / "ok.yaml"
RAMP = "batch.rampup_batch_size"
PATHS = {
    "TP": shapes.TP,
    "EP": "parallelism.expert_model_parallel_size",
    "hidden_size": shapes.HIDDEN,
    "num_attention_heads": shapes.HEADS,
    "num_query_groups": shapes.GROUPS,
    "ffn_hidden_size": "model.ffn_hidden_size",
    "num_experts": "model.num_experts",
    "increment": f"{RAMP}.increment",
    "increments": f"{RAMP}.increment",
}
SHAPES = (
    "num_attention_heads / TP|ffn_hidden_size / TP|num_query_groups / TP|num_attention_heads / num_query|hidden_size /"
)
EXPERTS, GROWING = "num_experts / EP|experts are spread", r"\(global_batch_size - start|increment /"


def refused(values: Mapping[str, object], words: str) -> list[Problem]:
    """What is said of such things in a job with these values."""
    try:
        load_job([OK], [f"{path}={value}" for path, value in values.items()])
    except SpecError as error:
        return [problem for problem in error.problems if re.match(words, problem.message)]
    return []


def check_offers(written: Mapping[str, object], words: str) -> int:
    """Each value that is offered ends the problem, and brings its field no other. Returns how many there were."""
    found = refused(written, words)
    before, count = [problem.message for problem in found], 0
    for problem in found:
        for name, legal in re.findall(r"nearest (\w+): ([\d or]+)", problem.hint or ""):
            for value in legal.split(" or "):
                left = refused({**written, PATHS[name]: int(value)}, words)
                assert not [other for other in left if PATHS[name] in other.paths and other.message not in before]
                assert problem.message.split(":")[0] not in [other.message.split(":")[0] for other in left]
                count += 1
    return count


SIZES = [(hidden, heads) for hidden, heads in product((96, 128), (4, 8, 12)) if hidden % heads == 0]


@pytest.mark.parametrize(("hidden", "heads"), SIZES)
@pytest.mark.parametrize(("groups", "tp"), list(product((2, 4), (3, 5, 12))))
def test_shapes(hidden: int, heads: int, groups: int, tp: int) -> None:
    written = {"model.hidden_size": hidden, shapes.HEADS: heads, shapes.GROUPS: groups, shapes.TP: tp}
    check_offers(written, SHAPES)


@pytest.mark.parametrize("heads", [6, 7, 12])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_heads_of_a_hidden_size(heads: int, tp: int) -> None:
    assert check_offers({"model.hidden_size": 160, shapes.HEADS: heads, shapes.TP: tp}, SHAPES)


@pytest.mark.parametrize("groups", [3, 5, 6])
@pytest.mark.parametrize("tp", [1, 2, 4])
def test_groups_of_heads(groups: int, tp: int) -> None:
    assert check_offers({shapes.HEADS: 8, shapes.GROUPS: groups, shapes.TP: tp}, SHAPES)


@pytest.mark.parametrize(("experts", "gpus"), list(product((6, 8, 12), (1, 4, 8))))
@pytest.mark.parametrize("ep", [3, 5, 16])
def test_expert_parallel_sizes(experts: int, gpus: int, ep: int) -> None:
    """Of EP alone: more experts go with it, whatever the ranks are that they are spread over."""
    written = {"model.num_experts": experts, "model.add_bias_linear": "false", PATHS["EP"]: ep}
    assert check_offers({**written, "launch.gpus_per_node": gpus}, EXPERTS)


@pytest.mark.parametrize(("start", "increment", "full"), [(4, 6, 104), (4, 7, 100), (8, 10, 64), (2, 5, 50)])
@pytest.mark.parametrize("micro", [1, 2])
def test_increments_of_a_growing_batch(start: int, increment: int, full: int, micro: int) -> None:
    written = {f"{RAMP}.start_global_batch_size": start, PATHS["increment"]: increment, f"{RAMP}.samples": 1000}
    sizes = {"batch.global_batch_size": full, "batch.micro_batch_size": micro}
    assert check_offers({**written, **sizes}, GROWING)
