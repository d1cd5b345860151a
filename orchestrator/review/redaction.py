"""What pages and reports do not say: people see them who may not see every secret that a spec or a log holds."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping

from orchestrator.fields.formatting import shorten
from orchestrator.tracking.redaction import Redactor

_KEPT_BACK = ("launch.env.", "notifications.")
_LONGEST = 80
_HIDDEN = "(not shown)"
_EMPTY = ("", "null", "{}", "[]")
_ENV = "launch.env."
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 6
"""A value with fewer characters means something else in most places of a text."""


class Redaction:
    """Takes out of texts what the specs of some runs keep secret: values of ${env:NAME}, where this process has them,
    values of variables that are called like secrets, and credentials in addresses.
    """

    def __init__(self, specs: Iterable[Mapping[str, str]]) -> None:
        specs = list(specs)
        self._redact = Redactor("\n".join(value for spec in specs for value in spec.values()), _SHORTEST)
        found = {value for spec in specs for key, value in spec.items() if _is_secret(key)}
        written = {form for value in found if len(value) >= _SHORTEST for form in _written(value)}
        self._secrets = sorted(written, key=len, reverse=True)

    def text(self, text: str) -> str:
        """A text without them."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return self._redact(text)

    def field(self, key: str, value: str) -> str:
        """The value of a field of a spec; nothing of one that is called like a secret."""
        return _HIDDEN if _is_secret(key) and value not in _EMPTY else self.text(value)

    def value(self, key: str, value: str | None) -> str:
        """The value of a field for a report, shortened; nothing of fields that may hold a secret."""
        if value is None:
            return "\N{EN DASH}"
        if key.startswith(_KEPT_BACK) and value not in _EMPTY:
            return _HIDDEN
        return shorten(self.text(value), _LONGEST)


def _is_secret(key: str) -> bool:
    is_named_so = key.startswith(_ENV) and _SECRET_NAME.search(key.removeprefix(_ENV)) is not None
    return is_named_so or key == "notifications.webhook"


def _written(value: str) -> set[str]:
    """A value as it may stand in a spec in YAML, in a script or in JSON."""
    return {value, shlex.quote(value), value.replace("'", "''"), json.dumps(value)[1:-1]}
