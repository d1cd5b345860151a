"""Who is told of a run's end."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields.base import Section
from orchestrator.fields.values import Duration, Plain, ReferringText, ShellLine, Text, empty_dict

Occasion = Literal["started", "requeued", "completed", "failed", "stopped"]


class NotificationsSpec(Section):
    """A command and a webhook that are notified when a run ends. They never delay a run or make it fail."""

    when: list[Occasion] = Field(default=["completed", "failed"])
    """Events that send a notification: `completed`; `failed` (also if lost, or if it is not requeued after a time limit
    or a preemption); `stopped` by a person, also while waiting in a queue; each `requeued`, back into a cluster's
    queue, and each `started`."""
    cells: list[Occasion] = Field(default=["failed"])
    """The same for each run that is a cell of a sweep. The sweep as a whole sends one notification, according to
    `when`."""
    command: Annotated[list[ShellLine], Field(min_length=1)] | None = None
    """A program and its arguments, run without a shell; it gets the facts as JSON on standard input and in variables
    ORCHESTRATOR_…"""
    webhook: ReferringText | None = None
    """An address that the same JSON is posted to, with `text` as Slack and Mattermost show it and `content` for
    Discord. It is a secret: write ${env:NAME}."""
    webhook_fields: dict[Text, Plain] = Field(default_factory=empty_dict)
    """More keys for that JSON: {topic: my-runs} for ntfy, {chat_id: 12345} for Telegram."""
    timeout: Duration = 20
    """Time limit of the command, and of the webhook with its one retry."""

    @property
    def ways(self) -> tuple[str, ...]:
        """Which there are, of `command` and `webhook`."""
        there = {"command": self.command, "webhook": self.webhook}
        return tuple(name for name, value in there.items() if value is not None)
