"""What a migration says: every flag accounted for, the values of the job, and where each came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from orchestrator.fields.values import TO_BE_WRITTEN

Outcome = Literal["carried", "default", "no_effect", "changes_training", "not_supported", "no_counterpart", "not_known"]

HEADINGS: dict[Outcome, str] = {
    "carried": "carried over",
    "default": "equal to the default",
    "no_effect": "without effect here",
    "changes_training": "ANOTHER TRAINING without these, which this version does not have",
    "not_supported": "NOT SUPPORTED by this version: the job goes without",
    "no_counterpart": "WITHOUT COUNTERPART",
    "not_known": "WRITE IT: the script does not say it, or says what is no value of the field",
}
LOUD: tuple[Outcome, ...] = ("changes_training", "not_supported", "no_counterpart", "not_known")
"""What a person has to look at: also at the top of the written job."""

WRITE_IT = TO_BE_WRITTEN


@dataclass(frozen=True)
class FlagOutcome:
    """What became of one flag, or of one key."""

    outcome: Outcome
    flag: str
    """As it is written, with its values."""
    path: str | None = None
    """The field of the spec that it is about."""
    value: Any = None
    reason: str | None = None


@dataclass(frozen=True)
class Source:
    """Where a value of the job came from, as its comment says."""

    comment: str
    is_default: bool = False
    """It is the other tool's default, which is not ours."""


@dataclass
class Migration:
    """A job of another tool, as a job spec."""

    source: str
    """What it was read from, for people."""
    values: dict[str, Any] = field(default_factory=dict)
    """By dotted path."""
    sources: dict[str, Source] = field(default_factory=dict)
    accounts: list[FlagOutcome] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What was assumed."""
    missing: dict[str, str] = field(default_factory=dict)
    """Fields that have to be written, and why; they have no value, or WRITE_IT."""
    refused: str | None = None
    """Why there is no job spec of this at all."""

    def drop(self, path: str) -> None:
        """Take back what is said of a field and of those in it."""
        for held in (self.values, self.missing, self.sources):
            for other in [other for other in held if other == path or other.startswith(f"{path}.")]:
                del held[other]

    def is_open(self, path: str) -> bool:
        """Whether a person has to write a field."""
        return path in self.missing

    @property
    def is_complete(self) -> bool:
        """Whether the job is all that was migrated: nothing has to be written, and it trains nothing else."""
        return not self.missing and not self.of("changes_training")

    def of(self, outcome: Outcome) -> list[FlagOutcome]:
        """The accounts with an outcome, in the order of the source."""
        return [account for account in self.accounts if account.outcome == outcome]
