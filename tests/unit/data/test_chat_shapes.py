"""Conversations in the shapes that people have, with tools, reasoning and weights: tokens and masks of transformers."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.refused import refused
from transformers import PreTrainedTokenizerFast

from orchestrator.data.chat.encoding import ChatEncoder, chat_template
from orchestrator.data.chat.templates import CHATML, VICUNA, JinjaTemplate
from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.sections.data import TokenizerSpec

Tokenize = Callable[..., Path]
Turn = dict[str, Any]

SYSTEM, USER, ANSWER = (
    {"role": role, "content": text}
    for role, text in (("system", "Be brief."), ("user", "Ünits?"), ("assistant", "Me."))
)
WEATHER = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln"}}}
CALLS = [
    SYSTEM,
    {"role": "user", "content": "How is it in Köln?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "I look."},
    {"role": "tool", "content": '{"sky": "grey"}', "name": "weather", "tool_call_id": "abcdefghi"},
    {"role": "assistant", "content": "Grey.", "reasoning_content": None, "tool_calls": None},
]
QWEN_LIKE = """\
{%- if tools is none and documents is none %}{{- '.' }}{%- endif %}
{%- if tools %}{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
{{- '# Tools\\n<tools>' }}{%- for tool in tools %}{{- '\\n' }}{{- tool | tojson }}{%- endfor %}{{- '</tools>' }}
{{- '<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{- '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{- '<|im_start|>assistant\\n' }}
{%- generation %}
{%- if message.reasoning_content is defined %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}
{%- if message.content %}{{- message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>' }}{{- {"name": call.function.name, "arguments": call.function.arguments} | tojson(sort_keys=True) }}
{{- '</tool_call>' }}{%- endfor %}{{- '<|im_end|>' }}
{%- endgeneration %}{{- '\\n' }}
{%- elif message.role == 'tool' %}{{- '<|im_start|>user\\n<tool_response>' + message.content }}
{{- '</tool_response><|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
UNMARKED = QWEN_LIKE.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
TEXT_ALONE = "{% for m in messages %}{{ m.role }}:{% generation %} {{ m.content }}{% endgeneration %}{% endfor %}"


@pytest.fixture
def encode(bpe: Path) -> Callable[..., tuple[list[int], list[int]]]:
    """Ids and mask of a line, by our encoder."""
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))

    def call(line: object, template: str = QWEN_LIKE) -> tuple[list[int], list[int]]:
        encoded = ChatEncoder(tokenizer, JinjaTemplate("t", template, {})).encode(json.dumps(line).encode())
        return encoded.ids, encoded.mask

    return call


@pytest.fixture
def theirs(bpe: Path) -> Callable[..., tuple[list[int], list[int]]]:
    """The same of a conversation, by transformers."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(bpe))

    def call(turns: list[Turn], tools: Any = None, template: str = QWEN_LIKE) -> tuple[list[int], list[int]]:
        found: Any = tokenizer.apply_chat_template(
            turns, tools=tools, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
        return found["input_ids"], found["assistant_masks"]

    return call


ASKED = {"role": "user", "content": "Add.\n\n1 and 2"}
THREE = {"role": "assistant", "content": "3"}
SHAPES: dict[str, tuple[dict[str, Any], list[Turn]]] = {
    "messages": ({"messages": [USER, ANSWER], "prompt": "x", "id": 1}, [USER, ANSWER]),
    "conversations": ({"conversations": [SYSTEM, USER, ANSWER]}, [SYSTEM, USER, ANSWER]),
    "sharegpt": (
        {
            "conversations": [{"from": "human", "value": "Ünits?"}, {"from": "gpt", "value": "Me."}],
            "system": "Be brief.",
        },
        [SYSTEM, USER, ANSWER],
    ),
    "observation": (
        {
            "conversations": [
                {"from": "human", "value": "Ünits?"},
                {"from": "observation", "value": "x"},
                {"from": "gpt", "value": "Me."},
            ]
        },
        [USER, {"role": "tool", "content": "x"}, ANSWER],
    ),
    "texts": ({"prompt": "Ünits?", "completion": "Me."}, [USER, ANSWER]),
    "messages of both": ({"prompt": [SYSTEM, USER], "completion": [ANSWER]}, [SYSTEM, USER, ANSWER]),
    "text and messages": ({"prompt": "Ünits?", "completion": [ANSWER]}, [USER, ANSWER]),
    "Alpaca": ({"instruction": "Add.", "input": "1 and 2", "output": "3", "text": "Below …"}, [ASKED, THREE]),
    "Alpaca without input": ({"instruction": "Ünits?", "input": "", "output": "Me."}, [USER, ANSWER]),
    "Alpaca with history": (
        {
            "instruction": "Add.",
            "input": "1 and 2",
            "output": "3",
            "system": "Be brief.",
            "history": [["Ünits?", "Me."]],
        },
        [SYSTEM, USER, ANSWER, ASKED, THREE],
    ),
    "Dolly": (
        {"instruction": "Add.", "context": "1 and 2", "response": "3", "category": "closed_qa"},
        [ASKED, THREE],
    ),
    "Dolly without context": ({"instruction": "Ünits?", "response": "Me.", "category": "open_qa"}, [USER, ANSWER]),
    "nulls of a table": ({"messages": None, "instruction": "Ünits?", "input": None, "output": "Me."}, [USER, ANSWER]),
    "tools": ({"messages": CALLS, "tools": [WEATHER]}, CALLS),
    "tools as a text": ({"messages": CALLS, "tools": json.dumps([WEATHER])}, CALLS),
    "calls as a text": (
        {"messages": [*CALLS[:2], {**CALLS[2], "tool_calls": json.dumps([CALL])}, *CALLS[3:]], "tools": [WEATHER]},
        CALLS,
    ),
    "calls without content": (
        {"messages": [*CALLS[:2], {"role": "assistant", "tool_calls": [CALL], "reasoning": "I look."}, *CALLS[3:]]},
        CALLS,
    ),
    "roles of other makes": (
        {
            "conversation": [
                {"role": "developer", "content": "Be brief."},
                {"role": "User", "content": "Ünits?"},
                {"role": "tool_response", "content": "x"},
                {"role": "chatgpt", "content": "Me."},
            ]
        },
        [SYSTEM, USER, {"role": "tool", "content": "x"}, ANSWER],
    ),
    "calls as turns": (
        {
            "conversations": [
                {"from": "human", "value": "How is it in Köln?"},
                {"from": "function_call", "value": json.dumps(CALL["function"])},
                {"from": "observation", "value": "grey"},
                {"from": "bing", "value": "Grey."},
            ],
            "tools": json.dumps([WEATHER]),
        },
        [
            CALLS[1],
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "content": "grey"},
            {"role": "assistant", "content": "Grey."},
        ],
    ),
    "several calls in a turn": (
        {"messages": [USER, {"role": "function_call", "content": json.dumps([CALL["function"]] * 2)}]},
        [USER, {"role": "assistant", "tool_calls": [CALL, CALL]}],
    ),
    "messages as a text": ({"messages": json.dumps(CALLS), "tools": json.dumps([WEATHER])}, CALLS),
    "question and answer": ({"question": "Ünits?", "answer": "Me.", "id": 1}, [USER, ANSWER]),
    "OpenOrca": (
        {"system_prompt": "Be brief.", "question": "Ünits?", "response": "Me.", "id": "niv.1"},
        [SYSTEM, USER, ANSWER],
    ),
    "prompt and response": ({"prompt": "Ünits?", "response": "Me."}, [USER, ANSWER]),
    "query, response and history": (
        {"query": "Add.\n\n1 and 2", "response": "3", "history": [["Ünits?", "Me."]], "system": "Be brief."},
        [SYSTEM, USER, ANSWER, ASKED, THREE],
    ),
    "input and output": ({"input": "Ünits?", "output": "Me."}, [USER, ANSWER]),
    "Dolly with Alpaca's input": ({"instruction": "Add.", "input": "1 and 2", "response": "3"}, [ASKED, THREE]),
    "Alpaca with Dolly's context": ({"instruction": "Add.", "context": "1 and 2", "output": "3"}, [ASKED, THREE]),
    "marks that change nothing": (
        {
            "messages": [{**USER, "train": False, "weight": 1, "loss": None}, {**ANSWER, "train": True, "weight": 1.0}],
            "label": True,
            "mask": "User",
            "train_on_input": False,
            "rejected": None,
            "videos": [],
            "score": 3,
        },
        [USER, ANSWER],
    ),
    "prompt and completion with tools": ({"prompt": CALLS[:2], "completion": CALLS[2:], "tools": [WEATHER]}, CALLS),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_has_the_tokens_and_the_mask_of_transformers(shape: str, encode: Any, theirs: Any) -> None:
    line, turns = SHAPES[shape]
    expected = theirs(turns, [WEATHER] if "tools" in line else None)
    assert encode(line) == expected
    assert 0 < sum(expected[1]) < len(expected[0])


def test_lines_of_a_file_may_have_any_shapes(tokenize: Tokenize, tmp_path: Path) -> None:
    path, template = tmp_path / "mixed.jsonl", tmp_path / "template.jinja"
    path.write_text("".join(json.dumps(line) + "\n" for line, _ in SHAPES.values()))
    template.write_text(QWEN_LIKE)
    prefix = tokenize(path, append_eod=False, chat=True, chat_template=str(template))
    assert read_index(prefix).documents == len(SHAPES)


def test_unmarked_templates_count_calls_and_reasoning_too(encode: Any, theirs: Any) -> None:
    """Found by prefixes, what counts is what the marked template marks."""
    assert encode({"messages": CALLS, "tools": [WEATHER]}, UNMARKED) == theirs(CALLS, [WEATHER])


def test_unmarked_calls_in_a_template_that_writes_the_last_turn_otherwise(encode: Any) -> None:
    """As Qwen 3's does, which begins a last turn without reasoning with an empty one."""
    start = "{%- if message.reasoning_content is defined %}"
    last = (
        "{%- if loop.last and message.reasoning_content is not defined %}{{- '<think></think>' }}{%- endif %}" + start
    )
    turns = [*CALLS[:2], {"role": "assistant", "tool_calls": [CALL]}, *CALLS[3:]]
    ids, mask = encode({"messages": turns, "tools": [WEATHER]}, UNMARKED.replace(start, last))
    marked, expected = encode({"messages": turns, "tools": [WEATHER]}, QWEN_LIKE.replace(start, last))
    assert (ids, mask) == (marked, expected)


@pytest.mark.parametrize("template", [QWEN_LIKE, UNMARKED], ids=["marked", "unmarked"])
@pytest.mark.parametrize("mark", [{"weight": 0}, {"train": False}, {"loss": False}, {"weight": 0.0, "train": 0}])
def test_a_turn_marked_so_is_read_and_does_not_count(
    encode: Any, theirs: Any, template: str, mark: dict[str, Any]
) -> None:
    twice = [USER, {**ANSWER, **mark}, USER, {**ANSWER, **dict.fromkeys(mark, 1)}]
    ids, mask = encode({"messages": twice}, template)
    expected, both = theirs(twice)
    assert ids == expected
    half = sum(both) // 2
    assert sum(mask) == half
    assert mask[both.index(1) :][:half] == [0] * half
    # What is said before a completion is given, too.
    assert encode({"prompt": twice[:3], "completion": [ANSWER]}, template) == (ids, mask)


def test_marks_that_do_not_tell_whose_turn_they_mark(encode: Any) -> None:
    joined = "{% generation %}{% for m in messages %}{{ m.content }}{% endfor %}<end>{% endgeneration %}"
    with pytest.raises(ValueError, match="does not show which turn"):
        encode({"messages": [USER, {**ANSWER, "weight": 0}, USER, ANSWER]}, joined)
    assert encode({"messages": [USER, ANSWER]}, joined)[1]


@pytest.mark.parametrize(
    ("turns", "tools", "missing"),
    [
        ([USER, ANSWER], [WEATHER], "'tools'"),
        ([USER, {"role": "assistant", "tool_calls": [CALL]}], None, "'tool_calls'"),
        ([USER, {**ANSWER, "thinking": "Hm."}], None, "'reasoning_content'"),
    ],
)
def test_what_a_template_leaves_out_is_told(encode: Any, turns: list[Turn], tools: Any, missing: str) -> None:
    with pytest.raises(ValueError, match=f"the chat template leaves out {missing}"):
        encode({"messages": turns, "tools": tools}, CHATML)


@pytest.mark.parametrize(
    "template", [QWEN_LIKE.replace("'tool'", "'other'"), VICUNA.replace("+ end", "+ '.'")], ids=["other", "vicuna"]
)
def test_turns_of_a_tool_that_a_template_leaves_out(encode: Any, template: str) -> None:
    with pytest.raises(ValueError, match="leaves out turns of role 'tool'"):
        encode({"messages": [USER, {"role": "tool", "content": "x"}, ANSWER]}, template)


def test_marks_of_ours_in_a_field_are_no_text(encode: Any) -> None:
    told = {"role": "tool", "content": "x", "name": "\ufdd0"}
    with pytest.raises(ValueError, match=r"U\+FDD0"):
        encode({"messages": [USER, told, ANSWER]})


def test_a_template_of_its_own_for_tools(bpe: Path, tmp_path: Path) -> None:
    """As tokenizers with several have it: `tool_use` writes conversations with tools."""
    (tmp_path / "tokenizer.json").write_bytes(bpe.read_bytes())
    named = [{"name": "default", "template": CHATML}, {"name": "tool_use", "template": QWEN_LIKE}]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(tmp_path)))
    template = chat_template(tokenizer, None)
    reference = PreTrainedTokenizerFast(
        tokenizer_file=str(bpe), chat_template={n["name"]: n["template"] for n in named}
    )
    for turns, tools in ((CALLS, [WEATHER]), ([USER, ANSWER], None)):
        found: Any = reference.apply_chat_template(
            turns, tools=tools, return_dict=True, return_assistant_tokens_mask=True
        )
        encoded = ChatEncoder(tokenizer, template).encode(json.dumps({"messages": turns, "tools": tools}).encode())
        assert (encoded.ids, encoded.mask) == (found["input_ids"], found["assistant_masks"])
    (tmp_path / "chat_template.jinja").write_text(CHATML)
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(QWEN_LIKE)
    assert chat_template(tokenizer, None).content == template.content


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cn")), min_size=1, max_size=12).filter(str.strip)


@given(st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=3), st.sampled_from([QWEN_LIKE, CHATML, TEXT_ALONE]))
@settings(max_examples=examples(60), deadline=None)
def test_any_text_has_the_mask_of_transformers(bpe: Path, pairs: list[tuple[str, str]], template: str) -> None:
    """Where tokens cross what is marked, too, and where several are one character."""
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
    turns = [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]
    found: Any = PreTrainedTokenizerFast(tokenizer_file=str(bpe)).apply_chat_template(
        turns, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    encoded = ChatEncoder(tokenizer, JinjaTemplate("t", template, {})).encode(json.dumps({"messages": turns}).encode())
    assert (encoded.ids, encoded.mask) == (found["input_ids"], found["assistant_masks"])


def test_a_shape_that_nobody_knows_is_named_with_its_line(tokenize: Tokenize, tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"instruction": "a", "output": "b"}\n\n{"theirs": "a", "mine": "b"}\n')
    with refused("wrong_record", "pairs.jsonl:3", "theirs, mine", "Dolly"):
        tokenize(path, append_eod=False, chat=True)
