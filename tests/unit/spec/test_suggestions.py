"""What a person may have meant."""

from __future__ import annotations

import re

import pytest

from orchestrator.spec.messages.document import JOB_SPEC
from orchestrator.spec.messages.suggestions import alike, closest, edit_distance, suggest
from orchestrator.spec.schema.shape import fields_of, sections, shape_at

FOREIGN_NAMES = JOB_SPEC.foreign_names


@pytest.mark.parametrize("name", FOREIGN_NAMES)
def test_every_foreign_name_leads_to_a_field(name: str) -> None:
    _, paths = suggest(name, (), ["name", "model"])
    assert paths
    for path in paths:
        assert shape_at(tuple(path.split("."))) is not None, path


def test_no_foreign_name_is_a_name_of_ours() -> None:
    ours = {name for section in sections().values() for name in fields_of(section)}
    assert ours & set(FOREIGN_NAMES) == set()
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in FOREIGN_NAMES)


@pytest.mark.parametrize(
    ("key", "place", "expected"),
    [
        ("tp", ("parallelism",), "parallelism.tensor_model_parallel_size"),
        ("TP", ("parallelism",), "parallelism.tensor_model_parallel_size"),
        ("tensor-model-parallel-size", ("parallelism",), "parallelism.tensor_model_parallel_size"),
        ("--num-layers", ("model",), "model.num_layers"),
        ("numLayers", ("model",), "model.num_layers"),
        ("hidden", ("optimizer",), None),
        ("lr", (), "optimizer.lr"),
        ("lerning_rate", (), "optimizer.lr"),
        ("tensor_model_paralel_size", ("parallelism",), "parallelism.tensor_model_parallel_size"),
        ("tensor_model_paralel_size", (), "parallelism.tensor_model_parallel_size"),
        ("virtual_pipeline_size", ("parallelism",), "parallelism.virtual_pipeline_model_parallel_size"),
        ("size_x", ("parallelism",), None),
        ("tokenizer", (), "data.tokenizer"),
        ("save_intervall", ("checkpoint",), "checkpoint.save_interval"),
        ("save_intervall", ("runtime",), "checkpoint.save_interval"),
        ("r", ("model", "lora"), "model.lora.rank"),
        ("lora_alpha", ("model", "lora"), "model.lora.alpha"),
        ("lora_target_modules", ("model", "lora"), "model.lora.target_modules"),
        ("peft_config", (), "model.lora"),
        ("x" * 1000, (), None),
    ],
)
def test_suggestion(key: str, place: tuple[str, ...], expected: str | None) -> None:
    section = sections()[place]
    _, paths = suggest(key, place, list(fields_of(section)))
    assert paths == ([expected] if expected else [])


@pytest.mark.parametrize("place", [(), ("checkpoint",), ("runtime",)])
def test_what_has_no_field_is_said_wherever_it_is_written(place: tuple[str, ...]) -> None:
    assert "checkpoint.pretrained" in (suggest("--load", place, [])[0] or "")
    assert "launch.runs_dir" in (suggest("save", place, [])[0] or "")
    assert "schedule.train_tokens" in (suggest("num_train_epochs", place, [])[0] or "")


def test_edit_distance() -> None:
    assert edit_distance("kitten", "sitting", 5) == 3
    assert edit_distance("ab", "ba", 3) == 1, "neighbours swapped are one slip"
    assert edit_distance("abc", "abc", 0) == 0
    assert edit_distance("abcdef", "uvwxyz", 2) == 3, "more than the limit is all that is said"


def test_closest_first() -> None:
    assert closest("bf61", ["fp32", "bf16", "fp16"]) == ["bf16"]
    assert closest("nothing", ["fp32", "bf16"]) == []


def test_parts_alike() -> None:
    names = ["tensor_model_parallel_size", "pipeline_model_parallel_size", "gpus_per_node"]
    assert alike("tensor_model_paralel_size", names) == ["tensor_model_parallel_size"]
    assert alike("parallel_size", names) == names[:2]
    assert alike("gpus_node", names) == ["gpus_per_node"]
    assert alike("gpu_node", names) == [], "short parts have no slips"
    assert alike("tensor", names) == []
