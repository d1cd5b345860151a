"""How a dashboard was started, and what its pages share."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, cast

from fastapi import Depends, Request

from orchestrator.review.index import RunIndex
from orchestrator.review.series_cache import SeriesCache
from orchestrator.review.usage import UsageLog


@dataclass(frozen=True)
class Settings:
    """`token`: what a visitor must show, None where only this machine reaches the server. `hosts`: names by which it
    may be called; None for any. `secret` makes the marks of forms, and dies with the process.
    """

    runs_dir: Path
    token: str | None = None
    hosts: frozenset[str] | None = None
    allows_actions: bool = False
    secret: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)


@dataclass(frozen=True)
class Shared:
    """What every page works with."""

    settings: Settings
    index: RunIndex
    beside: SeriesCache
    usage: UsageLog = field(default_factory=UsageLog)


def shared(request: Request) -> Shared:
    """What the application was made with; a dependency of the pages."""
    return cast(Shared, request.app.state.shared)


Its = Annotated[Shared, Depends(shared)]
