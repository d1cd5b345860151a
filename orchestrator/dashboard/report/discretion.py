"""What a report does not say: it is sent to people who may not see every secret that a spec or a log holds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from orchestrator.spec.words import shorten
from orchestrator.tracking.redaction import Redactor

_KEPT_BACK = ("launch.env.", "notifications.")
_LONGEST = 80
_HIDDEN = "(not shown)"
_SECRET_NAME = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_SHORTEST = 6
"""A value with fewer characters means something else in most places of a text."""


class Discretion:
    """Takes out of texts what the specs of some runs keep secret: values of ${env:NAME}, where this process has them,
    values of variables that are called like secrets, and credentials in addresses.
    """

    def __init__(self, specs: Iterable[Mapping[str, str]]) -> None:
        specs = list(specs)
        self._redact = Redactor("\n".join(value for spec in specs for value in spec.values()), _SHORTEST)
        env = "launch.env."
        found = {
            value
            for spec in specs
            for key, value in spec.items()
            if (key.startswith(env) and _SECRET_NAME.search(key.removeprefix(env))) or key == "notifications.webhook"
        }
        self._secrets = sorted((value for value in found if len(value) >= _SHORTEST), key=len, reverse=True)

    def text(self, text: str) -> str:
        """A text without them."""
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        return self._redact(text)

    def value(self, key: str, value: str | None) -> str:
        """The value of a field of a spec, shortened; nothing of fields that may hold a secret."""
        if value is None:
            return "\N{EN DASH}"
        if key.startswith(_KEPT_BACK) and value not in ("", "null", "{}", "[]"):
            return _HIDDEN
        return shorten(self.text(value), _LONGEST)
