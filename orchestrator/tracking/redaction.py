"""Keeping out of logs and messages what must not be written down."""

from __future__ import annotations

import os
import re

from orchestrator.spec.values import environment_references

_CREDENTIAL_VARIABLES = ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN")
_ADDRESS_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]*@")


class Redactor:
    """Replaces the values of the references in an address, and of MLflow's credentials, by their names."""

    def __init__(self, uri: str | None) -> None:
        names = {*environment_references(uri or ""), *_CREDENTIAL_VARIABLES}
        values = [(os.environ[name], f"${{env:{name}}}") for name in names if os.environ.get(name)]
        self._values = sorted(values, key=lambda pair: len(pair[0]), reverse=True)

    def __call__(self, text: str) -> str:
        for value, reference in self._values:
            text = text.replace(value, reference)
        return _ADDRESS_CREDENTIALS.sub("***@", text)
