"""Conversations with images as a server is asked: their text by a chat template, and what is refused."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from support.pictures import OF_PARTS
from support.refused import refused

from orchestrator.data.chat.templates import CHATML, JinjaTemplate
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.inference.images import IMAGE, tokens_and_marks
from orchestrator.inference.serving.chat_template_choice import Chat
from orchestrator.inference.serving.protocol import ChatRequest, RequestError, parsed
from orchestrator.spec.sections.data import TokenizerSpec

BYTES = load_tokenizer(TokenizerSpec(type="byte_level"))


def chat(content: str) -> Chat:
    return Chat(BYTES, JinjaTemplate("test", content, {}))


def image(content: bytes) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(content).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def asked(*contents: Any) -> ChatRequest:
    turns = [
        {"role": "user" if number % 2 == 0 else "assistant", "content": each} for number, each in enumerate(contents)
    ]
    return parsed(ChatRequest, {"messages": turns})


PROMPTS = [
    (
        [[image(b"1"), text("\nWhat?")]],
        "<|im_start|>user\n<image>\nWhat?<|im_end|>\n<|im_start|>assistant\n",
        "USER: <image>\nWhat? ASSISTANT:",
    ),
    (
        [[text("This"), image(b"1"), text("or "), text("that"), image(b"2")], "The first.", "Why?"],
        "<|im_start|>user\nThis<image>or that<image><|im_end|>\n<|im_start|>assistant\nThe first.<|im_end|>\n"
        "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
        "USER: <image>\n<image>\nThis or that ASSISTANT: The first. USER: Why? ASSISTANT:",
    ),
    (["Hi"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "USER: Hi ASSISTANT:"),
]


@pytest.mark.parametrize(("contents", "of_text", "of_parts"), PROMPTS)
def test_a_conversation_is_what_its_template_writes(contents: list[Any], of_text: str, of_parts: str) -> None:
    request = asked(*contents)
    assert request.prompt(chat(CHATML)) == tokens_and_marks(BYTES, of_text)
    assert request.prompt(chat(OF_PARTS)) == tokens_and_marks(BYTES, of_parts)
    assert request.images == [b"1", b"2"][: of_text.count("<image>")]


def test_a_template_that_loses_an_image_is_told_of() -> None:
    """Though a text holds the name of the mark."""
    forgetful = chat(CHATML.replace("in messages", "in messages[1:]"))
    request = asked([image(b"1")], "<image>")
    with refused("images_left_out", "0 of 1"):
        request.prompt(forgetful)
    forgetful = chat(OF_PARTS.replace("in messages", "in messages[1:]"))
    with refused("failing_chat_template", "0 <image>", "1 images"):
        request.prompt(forgetful)


def test_the_name_of_the_mark_is_text() -> None:
    """With images and without, to templates of text and of parts."""
    text_alone, written = asked("<image>?"), "<|im_start|>user\n<image>?<|im_end|>\n<|im_start|>assistant\n"
    assert text_alone.prompt(chat(CHATML)) == BYTES.encode(written)
    assert text_alone.prompt(chat(OF_PARTS)) == BYTES.encode("USER: <image>? ASSISTANT:")
    beside = asked([text("<image>: "), image(b"1"), text("\n<image>?")])
    before, behind = "<|im_start|>user\n<image>: ", "\n<image>?<|im_end|>\n<|im_start|>assistant\n"
    assert beside.prompt(chat(CHATML)) == [*BYTES.encode(before), IMAGE, *BYTES.encode(behind)]
    before, behind = "USER: ", "\n<image>:  <image>? ASSISTANT:"
    assert beside.prompt(chat(OF_PARTS)) == [*BYTES.encode(before), IMAGE, *BYTES.encode(behind)]


def test_an_answer_ends_where_the_template_ends_a_turn() -> None:
    request = parsed(ChatRequest, {"messages": [{"role": "user", "content": "?"}], "stop": ["x"], "n": 2})
    assert [each.stop for each in request.options()] == [("x",)] * 2
    assert [each.stop for each in request.options("<|im_end|>")] == [("x", "<|im_end|>")] * 2
    on_and_on = parsed(ChatRequest, {"messages": [{"role": "user", "content": "?"}], "ignore_end": True})
    assert [each.stop for each in on_and_on.options("<|im_end|>")] == [()]


@pytest.mark.parametrize("sent", ["?", "aGk", "aGkä", "\u4e2d"])
def test_what_is_not_base64(sent: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{sent}"}}
    with pytest.raises(RequestError, match="part 1: its image is not base64: ") as caught:
        asked([text("x"), part])
    assert caught.value.status == 400


@pytest.mark.parametrize("content", ["a\ufdd2b", [text("a\ufdd2b")]])
def test_our_own_mark_is_no_text(content: Any) -> None:
    with pytest.raises(RequestError, match=r"content: its text holds a noncharacter of Unicode, U\+FDD2"):
        asked(content)


def test_calls_of_tools_are_refused_by_name() -> None:
    """Left out in silence, the conversation would be another."""
    turn = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}
    with pytest.raises(RequestError, match=r"messages\.1: tool_calls is not supported"):
        parsed(ChatRequest, {"messages": [{"role": "user", "content": "x"}, turn]})
    assert parsed(ChatRequest, {"messages": [{**turn, "tool_calls": []}]}).length == 0
