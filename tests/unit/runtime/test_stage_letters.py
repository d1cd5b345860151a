"""Layouts of pipelines in letters mean what megatron-core takes them for."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
from support.training import layout, tiny_job

from orchestrator.inference.loading import without_training
from orchestrator.spec.layout.stage_letters import chunks_of, evenly, layers_in_letters
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.rules import check

TERMS = st.builds("{}{}".format, st.sampled_from("t|EL"), st.sampled_from(["", "", "*1", "*2", "*13"]))
PARTS = st.builds("({})*{}".format, st.lists(TERMS, min_size=1, max_size=4).map("".join), st.integers(1, 12))
TEXTS = st.lists(TERMS | PARTS | st.just(","), max_size=8).map("".join)


def of_megatron(text: str) -> tuple[str, ...]:
    letters = {"embedding": "E", "decoder": "t", "loss": "L"}
    parsed: Any = PipelineParallelLayerLayout.parse_str_to_list(text)
    return tuple("".join(letters[each.name] for each in chunk) for chunk in parsed)


@given(TEXTS)
def test_chunks_are_megatron_cores(text: str) -> None:
    assert chunks_of(text) == of_megatron(text)


@given(st.text("Et|L()*,12m ", max_size=12))
def test_what_is_taken_means_the_same(text: str) -> None:
    try:
        ours = chunks_of(text)
    except ValueError:
        return
    assert ours == of_megatron(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Et(tt", "'(tt' is not"),
        ("Et((t|)*2t)*2L", "'((t|)*2t)*2L' is not"),
        ("E(tt)|L", "'(tt)|L' is not"),
        ("Et*0|L", "'t*0' is none"),
        ("Et|()*2tL", "'()*2tL' is not"),
        ("Et|tx", "'x' is not"),
        ("E(t*9999|)*9999L", "more than a pipeline holds"),
        ("Et|t,m|L", "multi-token prediction"),
    ],
)
def test_what_is_wrong_is_shown(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        chunks_of(text)


def test_stages() -> None:
    assert layers_in_letters("Et*3|(tt|)*2L", 2) == ((3, 2), (2, 0))
    assert layers_in_letters("Et|t|L", 2) is None
    assert evenly(7, 3) == "Ettt|tt|ttL"


def test_generation_has_one_chunk_per_stage() -> None:
    """Whatever a training's chunks are; the checkpoint is read at any layout."""
    letters = {"pipeline_model_parallel_layout": "Et|t|t*3|L"}
    job = tiny_job("job", model={"num_layers": 5}, parallelism=layout(pp=2, vp=2, **letters))
    assert layers_of_chunks(5, job.parallelism) == ((1, 3), (1, 0))
    alone = without_training(job)
    assert check(alone) == []
    assert layers_of_chunks(5, alone.parallelism) == ((3,), (2,))
