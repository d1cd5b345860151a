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
    """Read the sources as conversations whose loss counts what the assistant says, and nothing else."""

    packing: Annotated[bool, resume.ORDER, AlsoCalled("sample_packing packed_sequence packed")] = True
    """Put several conversations into one sequence; none attends to another, and positions begin anew in each. `false`:
    one to a sequence, filled up with tokens that do not count."""
    long_conversations: Annotated[Literal["truncate", "drop"], resume.ORDER] = "truncate"
    """What happens to a conversation of more than seq_length + 1 tokens: its end is cut off, or it is left out."""
    template: Annotated[Text | None, resume.MISSING_DATA, AlsoCalled("chat_template")] = None
    """How conversations become text when a source is made: `chatml`, `plain`, `vicuna` (LLaVA 1.5's), or a file with a
    Jinja template. By default the tokenizer's own, else ChatML where the tokenizer has its tokens, else plain."""
    date: Annotated[Day | None, resume.MISSING_DATA, HashedIfChanged()] = None
    """The day that such a template takes for today when a source is made, like 2026-11-27. By default that on which the
    work begins, which the manifest of the data set keeps."""
