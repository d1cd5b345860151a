"""The JSON schema for editors."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.shipped import SHIPPED

from orchestrator.spec.presets import preset_names
from orchestrator.spec.schema.json_schema import job_schema
from orchestrator.spec.schema.shape import fields_of, sections


def resolve(schema: dict[str, Any], part: dict[str, Any]) -> list[dict[str, Any]]:
    """The alternatives that a part of the schema allows."""
    if "$ref" in part:
        return resolve(schema, schema["$defs"][part["$ref"].rpartition("/")[2]])
    if "anyOf" in part:
        return [choice for option in part["anyOf"] for choice in resolve(schema, option)]
    return [part]


def accepts(schema: dict[str, Any], part: dict[str, Any], value: Any) -> bool:
    """As much of JSON schema as the schema uses for the structure of a spec."""
    names = {dict: "object", list: "array", str: "string", bool: "boolean", int: "integer", float: "number"}
    kind = "null" if value is None else names[type(value)]
    for choice in resolve(schema, part):
        allowed = choice.get("type", [kind])
        allowed = [allowed] if isinstance(allowed, str) else allowed
        if kind not in allowed and not (kind == "integer" and "number" in allowed):
            continue
        if value not in choice.get("enum", [value]) or value != choice.get("const", value):
            continue
        if kind == "object" and "properties" in choice:
            properties = choice["properties"]
            if all(key in properties and accepts(schema, properties[key], item) for key, item in value.items()):
                return True
        elif kind == "array":
            if all(accepts(schema, choice["items"], item) for item in value):
                return True
        else:
            return True
    return False


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return job_schema()


def test_every_field_is_described(schema: dict[str, Any]) -> None:
    for path, section in sections().items():
        definition = schema if not path else schema["$defs"][section.__name__]
        for name in fields_of(section):
            field = definition["properties"][name]
            described = field.get("description") or [choice.get("description") for choice in resolve(schema, field)]
            assert described, f"{path} {name}"
        assert definition["additionalProperties"] is False


def test_extends_and_presets_are_offered(schema: dict[str, Any]) -> None:
    assert schema["properties"]["extends"]["type"] == "string"
    assert {"type": "string", "enum": preset_names()} in schema["$defs"]["ModelSpec"]["properties"]["preset"]["anyOf"]


@pytest.mark.parametrize("path", SHIPPED.values(), ids=SHIPPED)
def test_shipped_jobs_match(schema: dict[str, Any], path: Path) -> None:
    text = re.sub(r"(?<![\d.])(\d+)e-", r"\1.0e-", path.read_text(encoding="utf-8"))  # a float in YAML 1.1 too
    assert accepts(schema, schema, yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        "extends: base.yaml",
        "model: {preset: gpt2, vocab_size: null}",
        "parallelism: null",
        "parallelism: {sequence_parallel: 2}",
        "data: {blend: [0.5, a, 0.5, b], validation: corpus}",
        "data: {blend: [a, {path: b, weight: 2}]}",
        "batch: {rampup_batch_size: [8, 8, 1M]}",
        "schedule: {train_tokens: 1.5B}",
        "checkpoint: {save_seconds: 4h}",
    ],
)
def test_what_people_write_matches(schema: dict[str, Any], text: str) -> None:
    assert accepts(schema, schema, yaml.safe_load(text))


@pytest.mark.parametrize(
    "text",
    [
        "modle: {}",
        "model: {preset: gpt3}",
        "model: {num_layers: many}",
        "precision: {dtype: int4}",
        "batch: 3",
        "extends: [a]",
    ],
)
def test_what_is_wrong_does_not(schema: dict[str, Any], text: str) -> None:
    assert not accepts(schema, schema, yaml.safe_load(text))
