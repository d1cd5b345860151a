"""Requests of the HTTP interface, without a server: each field at each depth is checked, and every refusal names it."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.inference.serving.protocol import ChatRequest, CompletionRequest, RequestError, parsed, usage
from orchestrator.inference.texts import Continuation

TURN = {"role": "user", "content": "hi"}
PART = {"type": "text", "text": "hi"}
IMAGE = {"url": "data:image/png;base64,aGk="}
NO_WORDS = ("Input should", "Field required", "instance of", "Value error", "List should", "_Turn", "Request")
"""Of pydantic, and of classes of ours."""


def refused(kind: type[ChatRequest] | type[CompletionRequest], body: Any) -> str:
    with pytest.raises(RequestError) as caught:
        parsed(kind, body)
    assert caught.value.status == 400
    assert not [words for words in NO_WORDS if words in caught.value.message]
    return caught.value.message


def chat(**turn: Any) -> dict[str, Any]:
    return {"messages": [{**TURN, **turn}]}


@pytest.mark.parametrize(
    ("body", "where", "meant"),
    [
        ({**chat(), "stream_options": {"include_usages": True}}, "stream_options.include_usages ", "include_usage?"),
        ({"messages": [{"role": "user", "contents": "hi"}]}, "messages.0.contents ", "content?"),
        ({"messages": [TURN, {**TURN, "rol": "user"}]}, "messages.1.rol ", "role?"),
        (chat(content=[{**PART, "txt": 1}]), "messages.0.content: part 0: txt ", "text?"),
        (
            chat(content=[PART, {"type": "image_url", "image_url": {**IMAGE, "ulr": 1}}]),
            "part 1: image_url.ulr ",
            "url?",
        ),
        (chat(content=[{"type": "image_url", "image_url": IMAGE, "imageurl": 1}]), "part 0: imageurl ", "image_url?"),
        ({**chat(), "temprature": 1}, "temprature ", "temperature?"),
    ],
)
def test_a_field_that_is_not_known_leads_to_the_one_that_was_meant(body: Any, where: str, meant: str) -> None:
    message = refused(ChatRequest, body)
    assert where in message
    assert f"did you mean {meant}" in message


@pytest.mark.parametrize("body", [{**chat(), "": 1}, {**chat(), "x": 1}, chat(**{"": 1}), {**chat(), "qwertyuiop": 1}])
def test_a_name_that_is_near_to_none_leads_to_none(body: Any) -> None:
    message = refused(ChatRequest, body)
    assert "did you mean" not in message
    assert "there are " in message


@pytest.mark.parametrize(
    ("nothing", "something"),
    [
        ({"stream_options": {"include_obfuscation": False}}, {"stream_options": {"include_obfuscation": True}}),
        (chat(tool_calls=[]), chat(tool_calls=[{"function": {"name": "f"}}])),
        (chat(refusal=None), chat(refusal="no")),
        (chat(function_call=None), chat(function_call={"name": "f"})),
        (chat(annotations=[]), chat(annotations=[{"type": "url_citation"}])),
        (chat(audio=None), chat(audio={"id": "a"})),
        (
            chat(content=[{"type": "image_url", "image_url": {**IMAGE, "detail": "auto"}}]),
            chat(content=[{"type": "image_url", "image_url": {**IMAGE, "detail": "low"}}]),
        ),
        ({"logprobs": False}, {"logprobs": True}),
        ({"presence_penalty": 0}, {"presence_penalty": 1}),
    ],
)
def test_what_openai_has_beside_this_is_taken_where_it_asks_for_nothing(nothing: Any, something: Any) -> None:
    """As a client sends back the turns that it was answered, with each of their fields."""
    assert parsed(ChatRequest, {**chat(), **nothing}).length > 0
    assert "is not supported" in refused(ChatRequest, {**chat(), **something})


def test_the_name_of_who_speaks_is_taken() -> None:
    assert parsed(ChatRequest, chat(name="ada")).length == 2


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize("body", [[1], [], None, "x", 1, 1.5, True])
def test_a_body_that_is_no_object(kind: type[ChatRequest] | type[CompletionRequest], body: Any) -> None:
    assert refused(kind, body).startswith("the request: ")


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
@pytest.mark.parametrize(
    "value", [1, -1, 1.5, 10**400, "x", "x" * 5000, [1], [None], [], {"a": 1}, True, None], ids=range(12)
)
def test_a_value_of_another_kind_is_refused_in_our_words(
    kind: type[ChatRequest] | type[CompletionRequest], value: Any
) -> None:
    """At every field that does not take it."""
    turns = [{"messages": [{**TURN, name: value}]} for name in ("role", "content", "name")]
    nested = [{"stream_options": value}, {"stream_options": {"include_usage": value}}, {"messages": value}]
    nested += [{"messages": [value]}, {"messages": [TURN] * 5000}, *turns]
    for changed in [*({name: value} for name in kind.model_fields), *(nested if kind is ChatRequest else [])]:
        body = {**(chat() if kind is ChatRequest else {}), **changed}
        try:
            parsed(kind, body)
        except RequestError:
            assert next(iter(changed)) in refused(kind, body)


@pytest.mark.parametrize("at", ["top", "stream_options", "turn", "part", "image"])
def test_of_very_many_fields_none_is_listed(at: str) -> None:
    many: dict[str, Any] = {f"k{number}": 1 for number in range(80_000)}
    bodies = {
        "top": {**chat(), **many},
        "stream_options": {**chat(), "stream_options": many},
        "turn": chat(**many),
        "part": chat(content=[{**PART, **many}]),
        "image": chat(content=[{"type": "image_url", "image_url": {**IMAGE, **many}}]),
    }
    assert "k5" not in refused(ChatRequest, bodies[at])


def test_usage_tells_drafts_as_openai_tells_predictions() -> None:
    plain = Continuation([1], [2, 3], "", "length")
    counts = {"prompt_tokens": 1, "completion_tokens": 4, "total_tokens": 5}
    assert usage(1, [plain, plain]) == counts
    drafted = Continuation([1], [2, 3], "", "length", draft_tokens=3, accepted_tokens=1)
    details = {"accepted_prediction_tokens": 2, "rejected_prediction_tokens": 4}
    assert usage(1, [drafted, drafted]) == {**counts, "completion_tokens_details": details}
