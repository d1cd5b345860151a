"""Conversations as training data."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged
from orchestrator.fields.values import Day, Text

BUILT_IN_TEMPLATES = ("chatml", "plain", "vicuna")
"""Chat templates that need no file."""
TEMPLATES_SAID = f"{', '.join(BUILT_IN_TEMPLATES)}, or a file with a Jinja template"


class ChatSpec(Section):
    """Read the sources as conversations in which only the assistant's turns count in the loss."""

    packing: Annotated[bool, resume.ORDER, AlsoCalled("sample_packing packed_sequence packed")] = True
    """Put several conversations into one sequence; none attends to another, and positions restart in each. `false`: one
    per sequence, padded with tokens that do not count."""
    long_conversations: Annotated[Literal["truncate", "drop"], resume.ORDER] = "truncate"
    """What happens to a conversation of more than seq_length + 1 tokens: its end is cut off, or it is skipped."""
    template: Annotated[Text | None, resume.MISSING_DATA, AlsoCalled("chat_template")] = None
    """How conversations become text when a source is made: `chatml`, `plain`, `vicuna` (LLaVA 1.5's), or a file with a
    Jinja template. By default the tokenizer's own, or else ChatML if the tokenizer has its tokens, or else plain."""
    date: Annotated[Day | None, resume.MISSING_DATA, HashedIfChanged()] = None
    """Date that such a template takes as today when a source is made, like 2026-11-27. By default the day on which
    tokenization starts, which the manifest of the data set records."""
