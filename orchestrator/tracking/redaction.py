"""Keeping out of logs and messages what must not be written down."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from typing import Any

from orchestrator.fields.values import environment_references

_CREDENTIAL_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "WANDB_API_KEY")
_ADDRESS_CREDENTIALS = re.compile(r"(?<=://)[^/\s]*@")
_SHORTEST_SECRET = 6


class Redactor:
    """Replaces the values of the references in a text (an address), and of the trackers' credentials, by their names.

    `shortest`: values with fewer characters are left alone; in a long text they mean something else.
    """

    def __init__(self, referring: str | None, shortest: int = 1) -> None:
        names = {*environment_references(referring or ""), *_CREDENTIAL_VARIABLES}
        known = [(os.environ.get(name, ""), f"${{env:{name}}}") for name in names]
        values = [(value, reference) for value, reference in known if len(value) >= shortest]
        self._values = sorted(values, key=lambda pair: len(pair[0]), reverse=True)

    @classmethod
    def of_spec(cls, spec: Mapping[str, Any]) -> Redactor:
        """For what programs print: by all references of a spec, as it is stored."""
        return cls(json.dumps(spec), shortest=_SHORTEST_SECRET)

    def __call__(self, text: str) -> str:
        for value, reference in self._values:
            text = text.replace(value, reference)
        return _ADDRESS_CREDENTIALS.sub("***@", text)
