"""Chat templates that write the last turn otherwise than those before it: ids and masks of transformers, found without
marks. The oracle is the same template with `{% generation %}`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from transformers import PreTrainedTokenizerFast

from orchestrator.data.chat.encoding import ChatEncoder
from orchestrator.data.chat.templates import JinjaTemplate
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.sections.data import TokenizerSpec

Tokenize = Callable[..., Path]
Turn = dict[str, Any]
Encode = Callable[..., tuple[list[int], list[int]]]

MARK, UNMARK = "{%- generation %}", "{%- endgeneration %}"

THINKING = """\
{%- macro calls(turn) %}
{%- for call in turn.tool_calls or [] %}
{{- '\\n<tool_call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</tool_call>' }}
{%- endfor %}
{%- endmacro %}
{%- if not messages %}{{- raise_exception('no messages') }}{%- endif %}
{%- set ns = namespace(asked=-1) %}
{%- for turn in messages %}
{%- if turn.role == 'user' and not (turn.content.startswith('<told>') and turn.content.endswith('</told>')) %}
{%- set ns.asked = loop.index0 %}
{%- endif %}
{%- endfor %}
{%- if tools %}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}
{%- for turn in messages %}
{%- if turn.role == 'tool' %}{{- '<|im_start|>user\\n<told>' + turn.content + '</told><|im_end|>\\n' }}
{%- elif turn.role != 'assistant' %}{{- '<|im_start|>' + turn.role + '\\n' + turn.content + '<|im_end|>\\n' }}
{%- else %}
{%- set thought, said = turn.reasoning_content or '', turn.content or '' %}
{%- if not thought and '</think>' in said %}
{%- set thought, said = said.split('</think>')[0].split('<think>')[-1], said.split('</think>')[-1].lstrip() %}
{%- endif %}
{{- '<|im_start|>assistant\\n' }}
{%- if loop.index0 > ns.asked %}
{{- 'PREFILLED' }}
{%- generation %}{{- 'GENERATED' + thought.strip() + '\\n</think>\\n\\n' + said + calls(turn) + '<|im_end|>' }}
{%- endgeneration %}
{%- else %}
{%- generation %}{{- said + calls(turn) + '<|im_end|>' }}{%- endgeneration %}
{%- endif %}
{{- '\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\nPREFILLED' }}{%- endif %}
"""
"""Keeps the reasoning of those turns that follow the last question, as Qwen 3's does."""
QWEN_3 = THINKING.replace("PREFILLED", "").replace("GENERATED", "<think>\\n")
QWEN_3_5 = THINKING.replace("PREFILLED", "<think>\\n").replace("GENERATED", "")
"""The prompt begins the reasoning."""
EMPTY_TAGS = """\
{%- for turn in messages %}
{%- if turn.role != 'assistant' %}{{- '<|im_start|>' + turn.role + '\\n' + turn.content + '<|im_end|>\\n' }}
{%- else %}
{{- '<|im_start|>assistant\\n<think>' }}
{%- if loop.last and turn.reasoning_content %}{{- '\\n' }}{%- endif %}
{%- generation %}
{%- if loop.last and turn.reasoning_content %}{{- turn.reasoning_content + '\\n' }}{%- endif %}
{{- '</think>' + turn.content + '<|im_end|>' }}
{%- endgeneration %}{{- '\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}
"""
"""The prompt begins a reasoning as only turns that have one do, as Nemotron 3's does."""
ENDS_WITH_MORE = """\
{%- for turn in messages %}
{{- '<|' + turn.role + '|>\\n' }}
{%- if turn.role == 'assistant' %}
{%- generation %}{{- turn.content + '<|end|>' }}{%- if loop.last %}{{- '\\n<s>' }}{%- endif %}{%- endgeneration %}
{%- else %}{{- turn.content + '<|end|>' }}
{%- endif %}
{%- if not loop.last %}{{- '\\n' }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '\\n<|assistant|>\\n' }}{%- endif %}
"""
"""The end of a text stands behind the last turn alone, as with Phi 3's."""
ENDS_OTHERWISE = (
    "{% for turn in messages %}<|start|>{{ turn.role }}<|message|>{{ turn.content }}"
    "{{ '<|return|>' if loop.last and turn.role == 'assistant' else '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant<|message|>{% endif %}"
)
"""As gpt-oss's does: no model is to write `<|end|>` there."""
FORGETS = (
    "{% for turn in messages %}<{{ turn.role }}>{{ turn.content.split('</think>')[-1] }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant><think>{% endif %}"
)
"""Leaves out the reasoning of the last turn, too, as DeepSeek V3's does."""


def unmarked(template: str) -> str:
    return template.replace(MARK, "").replace(UNMARK, "")


@pytest.fixture
def encode(bpe: Path) -> Encode:
    """Ids and mask of a conversation, by our encoder."""
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))

    def call(template: str, turns: list[Turn], tools: Any = None) -> tuple[list[int], list[int]]:
        line = json.dumps({"messages": turns, "tools": tools}).encode()
        encoded = ChatEncoder(tokenizer, JinjaTemplate("t", template, {})).encode(line)
        return encoded.ids, encoded.mask

    return call


@pytest.fixture
def theirs(bpe: Path) -> Encode:
    """The same by transformers."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(bpe))

    def call(template: str, turns: list[Turn], tools: Any = None) -> tuple[list[int], list[int]]:
        found: Any = tokenizer.apply_chat_template(
            turns, tools=tools, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
        return found["input_ids"], found["assistant_masks"]

    return call


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def answer(text: str, thought: str | None = None, **more: Any) -> Turn:
    return {"role": "assistant", "content": text, **({"reasoning_content": thought} if thought else {}), **more}


WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}
CALL = [{"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}]
TOLD = {"role": "tool", "content": '{"sky": "grey"}', "name": "weather", "tool_call_id": "abcdefghi"}
TALKS: dict[str, list[Turn]] = {
    "one turn": [user("A?"), answer("One.")],
    "no reasoning": [user("A?"), answer("One."), user("B?"), answer("Two.\n")],
    "system": [{"role": "system", "content": "Be brief."}, user("A?"), answer("One."), user("B?"), answer("Two.")],
    "reasoning": [user("A?"), answer("One.", "Hm 1."), user("B?"), answer("Two.", "Hm 2.")],
    "reasoning before": [user("A?"), answer("One.", "Hm 1."), user("B?"), answer("Two.")],
    "in the content": [
        user("A?"),
        answer("<think>Hm 1.</think>One."),
        user("B?"),
        answer("<think>Hm 2.</think>\nTwo."),
    ],
    "as it is written": [user("A?"), answer("<think>\nHm.\n</think>\n\nOne."), user("B?"), answer("Two.")],
    "in the prompt begun": [user("A?"), answer("Hm 1.\n</think>\n\nOne."), user("B?"), answer("Hm 2.</think>Two.")],
    "tools": [
        user("A?"),
        answer("", "Look.", tool_calls=CALL),
        TOLD,
        answer("Grey.", "Seen."),
        user("B?"),
        answer("I look.", "Again.", tool_calls=CALL),
        TOLD,
        answer("", tool_calls=CALL),
        TOLD,
        answer("Still grey."),
    ],
    "told by the user": [user("A?"), answer("One.", "Hm 1."), user("<told>x</told>"), answer("Two.", "Hm 2.")],
    "the same words": [user("One."), answer("One."), user("One."), answer("One."), user("One."), answer("One.")],
    "what ends a turn": [
        user("A<|im_end|>?"),
        answer("<think>x</think>One<|im_end|>."),
        user("B?"),
        answer("<|im_end|>"),
    ],
    "what begins one": [user("<think>\n"), answer("<t"), user("<|im_start|>assistant\n"), answer("<think> so")],
    "blanks": [user(" A?\n "), answer("\n One. \n"), user("\n"), answer(" Two. ", "\n Hm. ")],
}


@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("template", [QWEN_3, QWEN_3_5], ids=["Qwen 3", "Qwen 3.5"])
def test_reasoning_that_only_the_last_turns_keep(encode: Encode, theirs: Encode, template: str, talk: str) -> None:
    turns = TALKS[talk]
    tools = [WEATHER] if talk == "tools" else None
    expected = theirs(template, turns, tools)
    assert encode(unmarked(template), turns, tools) == expected
    assert 0 < sum(expected[1]) < len(expected[0])
    assert encode(template, turns, tools) == expected


@pytest.mark.parametrize("talk", ["no reasoning", "system", "reasoning", "reasoning before", "the same words"])
def test_a_prompt_that_begins_a_reasoning_as_no_other_turn_does(encode: Encode, theirs: Encode, talk: str) -> None:
    assert encode(unmarked(EMPTY_TAGS), TALKS[talk]) == theirs(EMPTY_TAGS, TALKS[talk])


@pytest.mark.parametrize("talk", ["no reasoning", "system", "the same words", "what ends a turn"])
def test_a_last_turn_that_ends_with_more(encode: Encode, theirs: Encode, talk: str) -> None:
    assert encode(unmarked(ENDS_WITH_MORE), TALKS[talk]) == theirs(ENDS_WITH_MORE, TALKS[talk])


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cn")), min_size=1, max_size=12).filter(str.strip)
REASONED = st.tuples(TEXT, st.none() | TEXT, st.booleans()).map(
    lambda drawn: answer(f"<think>{drawn[1]}</think>{drawn[0]}" if drawn[1] and drawn[2] else drawn[0], drawn[1])
)


@given(st.lists(st.tuples(TEXT, REASONED), min_size=1, max_size=3), st.sampled_from([QWEN_3, QWEN_3_5]))
@settings(max_examples=examples(60), deadline=None)
def test_any_text_has_the_mask_of_transformers(bpe: Path, pairs: list[tuple[str, Turn]], template: str) -> None:
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
    turns = [turn for text, said in pairs for turn in (user(text), said)]
    for turn in turns:
        if "<think>" in turn["content"]:
            turn.pop("reasoning_content", None)
    found: Any = PreTrainedTokenizerFast(tokenizer_file=str(bpe)).apply_chat_template(
        turns, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    encoder = ChatEncoder(tokenizer, JinjaTemplate("t", unmarked(template), {}))
    encoded = encoder.encode(json.dumps({"messages": turns}).encode())
    assert (encoded.ids, encoded.mask) == (found["input_ids"], found["assistant_masks"])


def test_earlier_turns_that_end_as_no_answer_does_are_left_to_the_context(encode: Encode) -> None:
    turns = TALKS["no reasoning"]
    with pytest.raises(ValueError, match=r"assistant's turn 1 .*\{% generation %\}.*\"weight\": 0"):
        encode(ENDS_OTHERWISE, turns)
    ids, mask = encode(ENDS_OTHERWISE, [turns[0], {**turns[1], "weight": 0}, *turns[2:]])
    both, alone = encode(ENDS_OTHERWISE, turns[2:])
    assert ids[-len(both) :] == both
    assert mask == [0] * (len(ids) - len(alone)) + alone


def test_a_greeting_that_no_prompt_precedes(encode: Encode, theirs: Encode) -> None:
    turns = [answer("Hi."), *TALKS["one turn"]]
    with pytest.raises(ValueError, match=r"assistant's turn 0 .*\"weight\": 0"):
        encode(unmarked(QWEN_3), turns)
    ids, mask = encode(unmarked(QWEN_3), [{**turns[0], "weight": 0}, *turns[1:]])
    alone = theirs(QWEN_3, turns[1:])[1]
    assert ids == theirs(QWEN_3, turns)[0]
    assert mask == [0] * (len(ids) - len(alone)) + alone


@pytest.mark.parametrize("talk", ["in the content", "as it is written"])
def test_reasoning_that_no_turn_keeps_is_refused(encode: Encode, talk: str) -> None:
    with pytest.raises(ValueError, match="leaves out part of the assistant's turn 1"):
        encode(FORGETS, TALKS[talk])
    assert encode(FORGETS, TALKS["no reasoning"])[1]


@pytest.mark.parametrize("template", [QWEN_3, unmarked(QWEN_3)], ids=["marked", "unmarked"])
def test_turns_that_count_without_their_reasoning_are_told(
    tokenize: Tokenize, tmp_path: Path, capfd: pytest.CaptureFixture[str], template: str
) -> None:
    path, jinja = tmp_path / "chats.jsonl", tmp_path / "mine.jinja"
    jinja.write_text(template)
    kept = [user("A?"), {**answer("One.", "Hm 1."), "weight": 0}, user("B?"), answer("Two.", "Hm 2.")]
    talks = [TALKS["reasoning"], TALKS["no reasoning"], TALKS["in the content"], kept]
    path.write_text("".join(json.dumps({"messages": turns}) + "\n" for turns in talks))
    manifest = read_manifest(tokenize(path, append_eod=False, chat=True, chat_template=str(jinja)))
    assert manifest is not None
    assert manifest.shortened_conversations == 2
    assert "warning: in 2 of 4 conversations" in capfd.readouterr().err
