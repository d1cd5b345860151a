"""The spec's own defaults, by dotted path."""

from __future__ import annotations

from functools import cache
from typing import Any

from orchestrator.spec.schema.shape import field_at


@cache
def default_of(path: str) -> Any:
    """The default of a field, REQUIRED where it has none."""
    return field_at(path).get_default(call_default_factory=True)


def is_free_text(path: str) -> bool:
    """Whether a field takes any text, so that nothing but its absence shows that it has to be written."""
    return path in _FREE_TEXT


def is_about_speed(path: str) -> bool:
    """Whether a field says how fast or in how much memory something is computed, and not what."""
    return path.startswith("runtime.") or path == "model.moe_token_dispatcher_type"


def is_optional(path: str) -> bool:
    """Whether a job means the same without a value of this field."""
    return path in _OPTIONAL


_OPTIONAL = frozenset(
    (
        *("data.cache_dir", "launch.partition", "launch.account", "launch.qos", "name"),
        *("tracking.wandb.project", "tracking.wandb.entity"),
    )
)
_FREE_TEXT = frozenset(
    (
        *("data.blend", "data.validation", "data.test", "data.tokenizer.path", "data.tokenizer.merges"),
        *_OPTIONAL,
    )
)
