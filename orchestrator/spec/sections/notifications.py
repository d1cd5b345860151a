"""Who is told of a run's end."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields.base import Section
from orchestrator.fields.values import Duration, Plain, ReferringText, ShellLine, Text

Occasion = Literal["started", "requeued", "completed", "failed", "stopped"]


class NotificationsSpec(Section):
    """A command and a webhook of yours that are told how a run ended. They delay no run and make none fail."""

    when: list[Occasion] = Field(default=["completed", "failed"])
    """What to tell of: `completed`; `failed` (also: lost, or it stays where it is after a time limit or a preemption);
    `stopped` by a person, also while it waits in a queue; each `requeued`, back into a cluster's queue, and each
    `started`."""
    cells: list[Occasion] = Field(default=["failed"])
    """The same for each run that is a cell of a sweep. The sweep as a whole is told of once, by `when`."""
    command: Annotated[list[ShellLine], Field(min_length=1)] | None = None
    """A program and its arguments, run without a shell; facts come as JSON on its standard input and in variables
    ORCHESTRATOR_…"""
    webhook: ReferringText | None = None
    """An address that the same JSON is posted to, with `text` as Slack and Mattermost show it and `content` for
    Discord. It is a secret: write ${env:NAME}."""
    webhook_fields: dict[Text, Plain] = Field(default_factory=dict)
    """More keys of that JSON: {topic: my-runs} for ntfy, {chat_id: 12345} for Telegram."""
    timeout: Duration = 20
    """How long the command may take, and the webhook with its one further attempt."""

    @property
    def ways(self) -> tuple[str, ...]:
        """Which there are, of `command` and `webhook`."""
        there = {"command": self.command, "webhook": self.webhook}
        return tuple(name for name, value in there.items() if value is not None)
