"""`orchestrator schema`."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.spec.presets import preset_names
from orchestrator.spec.schema.shape import leaf_paths


def _keys(schema: dict[str, Any], node: dict[str, Any], prefix: str) -> set[str]:
    found = set()
    for key, value in node.get("properties", {}).items():
        reference = value.get("$ref") or next((o["$ref"] for o in value.get("anyOf", []) if "$ref" in o), None)
        path = f"{prefix}{key}"
        found.add(path)
        if reference:
            found |= _keys(schema, schema["$defs"][reference.rpartition("/")[2]], f"{path}.")
    return found


def test_the_schema_knows_every_key(orchestrator: Any) -> None:
    schema = orchestrator("schema").json
    known = _keys(schema, schema, "")
    assert set(leaf_paths()) <= known
    assert "extends" in known
    assert schema == orchestrator("schema", "--json").json


def test_presets(orchestrator: Any) -> None:
    rows = {row["name"]: row for row in orchestrator("schema", "--presets", "--json").json}
    assert sorted(rows) == preset_names()
    assert rows["gpt2-large"]["num_layers"] == 36
    assert rows["gpt-1.7b"]["parameters"] == pytest.approx(1.7e9, rel=0.05)
    assert rows["gpt-462b"]["parameters"] == pytest.approx(462e9, rel=0.01)
    shown = orchestrator("schema", "--presets").out
    assert all(name in shown for name in rows)
