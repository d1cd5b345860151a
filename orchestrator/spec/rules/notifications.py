"""What can be told of a webhook without asking it."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.spec.job_sections import JobSections


def webhook_address(job: JobSections) -> Iterator[Problem]:
    """It is posted to over HTTP; what a reference stands for is not known here."""
    webhook = job.notifications.webhook
    if webhook is not None and not webhook.startswith(("http://", "https://", "${")):
        hint = "write https://…, or ${env:NAME} for a variable with the whole address"
        yield Problem("is not a valid address", ("notifications.webhook",), hint)


RULES = (webhook_address,)
