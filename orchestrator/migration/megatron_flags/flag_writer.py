"""The flags that are written for a job, and what of the job they do not say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from orchestrator.kernel_selection.layers import may_have_engine
from orchestrator.migration.defaults import default_of
from orchestrator.spec.job import JobSpec


@dataclass(frozen=True)
class UnwrittenField:
    """A field that the flags do not say, or say as another one."""

    path: str
    value: Any
    reason: str


@dataclass
class FlagWriter:
    """Flags of a job by group, in order."""

    job: JobSpec
    groups: dict[str, list[list[str]]] = field(default_factory=dict)
    """Name of a group -> flags, each with its words."""
    unsaid: list[UnwrittenField] = field(default_factory=list)
    """What Megatron-LM is not told."""
    otherwise: list[UnwrittenField] = field(default_factory=list)
    """What it is told in other words: read back, it is the other field."""

    def value(self, path: str) -> Any:
        """The value of a field of the job."""
        value: Any = self.job
        for name in path.split("."):
            value = getattr(value, name)
        return value

    def default(self, path: str) -> Any:
        """The default of a field."""
        return default_of(path)

    @property
    def may_have_engine(self) -> bool:
        """Whether Transformer Engine's layers may compute the job."""
        return may_have_engine(self.job)

    def add(self, group: str, flag: str, *words: object) -> None:
        """Write a flag. A value with a dash in front is written behind `=`: argparse takes it for a flag else."""
        texts = [str(word) for word in words]
        if len(texts) == 1 and texts[0].startswith("-"):
            texts = [f"--{flag}={texts[0]}"]
        else:
            texts.insert(0, f"--{flag}")
        self.groups.setdefault(group, []).append(texts)

    def take_back(self, flag: str) -> None:
        """Do not write a flag after all."""
        for flags in self.groups.values():
            flags[:] = [each for each in flags if each[0] != f"--{flag}"]

    def leave(self, path: str, reason: str) -> None:
        """Say that a field has no flag, where it has not the value that it has without one."""
        if self.value(path) != default_of(path):
            self.unsaid_value(path, reason)

    def unsaid_value(self, path: str, reason: str) -> None:
        """Say that a field has no flag, or not with this value."""
        self.unsaid.append(UnwrittenField(path, self.value(path), reason))

    def say_otherwise(self, path: str, reason: str) -> None:
        """Say that a field is written as another one."""
        self.otherwise.append(UnwrittenField(path, self.value(path), reason))
