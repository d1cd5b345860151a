"""How a model's conversations are written: by the template that it was trained with, where that can be had."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.data.chat.conversations import Message
from orchestrator.data.chat.encoding import chat_template
from orchestrator.data.chat.templates import ChatTemplate, JinjaTemplate
from orchestrator.data.chat.tokens import prompt_tokens
from orchestrator.data.tokenizers.tokenizer import Tokenizer
from orchestrator.errors import UserError
from orchestrator.inference.images import IMAGE
from orchestrator.inference.model import Model
from orchestrator.spec.sections.chat import BUILT_IN_TEMPLATES


@dataclass(frozen=True)
class Chat:
    """A way to write conversations."""

    tokenizer: Tokenizer
    template: ChatTemplate
    turn_end: str = ""
    """What the model has learned to write behind its answer; empty where that is not known, or a token of its own."""
    around: tuple[str, str] = ("", "")
    """The text before and behind an image."""

    def __call__(self, messages: Sequence[Message]) -> list[int]:
        """The tokens that the assistant's next turn goes on from, `IMAGE` for each image. Raises ValueError for a
        conversation that the template does not take."""
        return prompt_tokens(self.tokenizer, self.template, messages, IMAGE, self.around)


def chat_of(model: Model) -> Chat | None:
    """As the model was trained on conversations; else as the tokenizer says, or ChatML where it has its tokens. None
    where there is none of these: texts can be continued without. A template that cannot be used is warned of."""
    found, network = _found(model), model.job.model
    if found is None or not network.has_vision:
        return found
    return replace(found, around=network.image_encoder.kind.around)


def _found(model: Model) -> Chat | None:
    data, tokenizer = model.job.data, model.tokenizer
    try:
        return _as_trained(tokenizer, data.conversations.template) if data.has_conversations else _own(tokenizer)
    except UserError as error:
        found, said = None, str(error)
    if data.has_conversations and data.conversations.template is not None:
        said = f"it was trained with data.chat.template {data.conversations.template}: {said}"
        with suppress(UserError):
            found = _own(tokenizer)
    instead = "no conversations, /v1/completions only" if found is None else f"the chat template {found.template.name}"
    print(f"warning: {instead}: {' '.join(said.split())}", file=sys.stderr, flush=True)
    return found


def _as_trained(tokenizer: Tokenizer, wanted: str | None) -> Chat:
    if wanted is not None and wanted not in BUILT_IN_TEMPLATES and not Path(wanted).is_file():
        raise UserError(
            "there is no such file on this machine; put it there and start again", code="missing_chat_template"
        )
    template = chat_template(tokenizer, wanted)
    return Chat(tokenizer, template, template.turn_end if isinstance(template, JinjaTemplate) else "")


def _own(tokenizer: Tokenizer) -> Chat | None:
    template = chat_template(tokenizer, None)
    # Nothing says that a model knows roles in plain text.
    return Chat(tokenizer, template) if isinstance(template, JinjaTemplate) else None
