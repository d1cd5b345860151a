"""Conversations from JSON lines to tokens and the mask of what counts."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.refused import refused
from transformers import PreTrainedTokenizerFast

from orchestrator.data.chat.conversation_packing import loss_mask_prefix
from orchestrator.data.chat.conversations import Message, parse_conversation
from orchestrator.data.chat.encoding import ChatEncoder, chat_template
from orchestrator.data.chat.templates import CHATML, JinjaTemplate, PlainTemplate
from orchestrator.data.indexed_dataset.header import bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.missing_datasets import prepare
from orchestrator.data.source_survey import survey
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import DataSpec, TokenizerSpec

Tokenize = Callable[..., Path]
Program = Callable[..., Any]

TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "assistant: who?"},
    {"role": "assistant", "content": "Me."},
    {"role": "user", "content": "Me."},
    {"role": "assistant", "content": "Yes — Me.\n"},
]
UNMARKED = CHATML.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
GEMMA_LIKE = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\\n\\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set first = '' %}{% set turns = messages %}{% endif %}"
    "{% for turn in turns %}{% if (turn.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<start_of_turn>"
    "{{ 'model' if turn.role == 'assistant' else turn.role }}\n"
    "{{ (first if loop.first else '') + turn.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
LLAMA2_LIKE = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token }}[INST] {{ m.content | trim }} [/INST]"
    "{% elif m.role == 'assistant' %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}"
)


def messages(turns: Sequence[dict[str, str]]) -> list[Message]:
    return [Message(turn["role"], turn["content"]) for turn in turns]  # type: ignore[arg-type]


def said(pieces: Any) -> list[str]:
    return [piece.text for piece in pieces if piece.counts and piece.text]


def written(pieces: Any) -> str:
    return "".join(piece.text or "" for piece in pieces)


@pytest.fixture
def bpe_folder(tmp_path: Path, bpe: Path) -> Path:
    """The tokenizer.json with ChatML's tokens added, in a folder of its own."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    content = json.loads(bpe.read_text())
    first = max(token["id"] for token in content["added_tokens"])
    first = max(first, *content["model"]["vocab"].values()) + 1
    like = content["added_tokens"][0]
    for number, token in enumerate(("<|im_start|>", "<|im_end|>")):
        content["added_tokens"].append({**like, "id": first + number, "content": token})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


def tokenizer_of(path: Path) -> Any:
    return load_tokenizer(TokenizerSpec(type="huggingface", path=str(path)))


@pytest.mark.parametrize("template", [CHATML, UNMARKED], ids=["marked", "unmarked"])
def test_chatml_counts_each_turn_of_the_assistant_and_its_end(template: str) -> None:
    pieces = JinjaTemplate("test", template, {})(messages(TALK))
    assert said(pieces) == ["Me.<|im_end|>", "Yes — Me.\n<|im_end|>"]
    assert written(pieces).startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nassistant: who?")


QWEN3_LIKE = (
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
    "{% endif %}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.role == 'assistant' and loop.index0 > ns.last %}<think>\n\n</think>\n\n{% endif %}{{ m.content.strip() }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_unmarked_templates_of_other_makes() -> None:
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    gemma = JinjaTemplate("gemma", GEMMA_LIKE, tokens)(messages(TALK))
    assert said(gemma) == ["Me.<end_of_turn>", "Yes — Me.<end_of_turn>"]
    assert written(gemma).startswith("<s><start_of_turn>user\nBe brief.\n\nassistant: who?<end_of_turn>\n")
    llama = JinjaTemplate("llama", LLAMA2_LIKE, tokens)(messages(TALK[1:]))
    assert said(llama) == [" Me. </s>", " Yes — Me. </s>"]
    qwen = JinjaTemplate("qwen", QWEN3_LIKE, {})(messages(TALK))
    assert said(qwen) == ["Me.<|im_end|>", "<think>\n\n</think>\n\nYes — Me.<|im_end|>"]


def test_a_template_that_rewrites_what_came_before_is_told_of() -> None:
    """The text of an assistant's turn depends on what follows: what counts cannot be told."""
    forgetful = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content if loop.last or m.role == 'user' else '…' }}<end>"
        "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    template = JinjaTemplate("forgetful", forgetful, {})
    assert said(template(messages(TALK[1:3]))) == ["Me.<end>"]
    with pytest.raises(ValueError, match=r"assistant's turn 1 differently.*\{% generation %\}"):
        template(messages(TALK[1:]))


@pytest.mark.parametrize(
    ("content", "refusal"),
    [
        ("{% for %}", ("failing_chat_template", "mine", "line 1")),
        ("{% for m in messages %}{{ m.content }}\n{% endfor %}", ("no_end_of_answer", "mine")),
        ("{{ raise_exception('no') }}", ("failing_chat_template", "mine", ": no")),
        ("{{ messages[0].nothing.at_all }}", ("failing_chat_template", "mine", "nothing")),
        ("{% for m in messages %}{{ m.role }}<end>{% endfor %}", ("answers_left_out", "mine")),
    ],
)
def test_wrong_templates(content: str, refusal: tuple[str, ...]) -> None:
    with refused(*refusal):
        JinjaTemplate("mine", content, {})


def test_templates_run_in_a_sandbox() -> None:
    with refused("failing_chat_template", "mine", "__class__"):
        JinjaTemplate("mine", "{{ ''.__class__.__mro__[1].__subclasses__() }}", {})


TEXT = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=20)
TURNS = st.tuples(
    st.lists(TEXT, max_size=1), st.lists(st.tuples(TEXT, TEXT.filter(str.strip)), min_size=1, max_size=4)
).map(
    lambda drawn: [
        *({"role": "system", "content": text} for text in drawn[0]),
        *(
            {"role": role, "content": text}
            for pair in drawn[1]
            for role, text in zip(("user", "assistant"), pair, strict=True)
        ),
    ]
)


@given(TURNS)
@settings(max_examples=examples(60))
def test_only_the_assistant_counts_whatever_is_said(turns: list[dict[str, str]]) -> None:
    """Of bytes, whose tokens are the text: marked, found by prefixes, and plain."""
    tokenizer = load_tokenizer(TokenizerSpec())
    line = json.dumps({"messages": turns}).encode()
    answers = [turn["content"] for turn in turns if turn["role"] == "assistant"]
    expected = {
        "marked": (JinjaTemplate("m", CHATML, {}), "<|im_end|>"),
        "unmarked": (JinjaTemplate("u", UNMARKED, {}), "<|im_end|>"),
        "plain": (PlainTemplate(), "\N{REPLACEMENT CHARACTER}"),
    }
    for name, (template, end) in expected.items():
        ids, counts, _ = ChatEncoder(tokenizer, template).encode(line)
        runs: list[list[int]] = []
        for place, (number, counted) in enumerate(zip(ids, counts, strict=True)):
            if counted and (place == 0 or not counts[place - 1]):
                runs.append([])
            if counted:
                runs[-1].append(number)
        spoken = [bytes(run[:-1]).decode() + end if run[-1] == 256 else bytes(run).decode() for run in runs]
        assert spoken == [answer + end for answer in answers], name


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT | st.sampled_from(["user", "assistant", "gpt"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            TEXT
            | st.sampled_from(
                ["messages", "conversations", "role", "content", "from", "value", "prompt", "completion"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_any_line_is_a_conversation_or_has_a_reason(value: Any) -> None:
    reason = None
    try:
        found = parse_conversation(json.dumps(value).encode()).messages
    except ValueError as error:
        reason = str(error)
    assert reason if reason is not None else any(message.role == "assistant" for message in found)


def test_what_says_nothing_may_stand_beside_the_turns() -> None:
    turns = [{"from": "system", "value": "a", "weight": None}, {"from": "human", "value": "b", "weight": 0.0}]
    turns.append({"from": "gpt", "value": "c", "weight": 1.0, "tool_calls": []})
    line = {"conversations": turns, "system": "a", "tools": "[]", "functions": None, "id": 7, "source": "x"}
    assert [message.content for message in parse_conversation(json.dumps(line).encode()).messages] == ["a", "b", "c"]


@pytest.mark.parametrize("template", [CHATML, UNMARKED], ids=["marked", "unmarked"])
def test_tokens_are_those_of_transformers(bpe_folder: Path, template: str) -> None:
    """And, where the template marks what counts, so is the mask."""
    (bpe_folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "eos_token": "<|im_end|>"})
    )
    tokenizer = tokenizer_of(bpe_folder)
    found = chat_template(tokenizer, None)
    assert found.name.endswith("tokenizer_config.json")
    ids, counts, _ = ChatEncoder(tokenizer, found).encode(json.dumps({"messages": TALK}).encode())
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(bpe_folder / "tokenizer.json"))
    reference = theirs.apply_chat_template(
        TALK, chat_template=CHATML, return_dict=True, return_assistant_tokens_mask=True
    )
    assert ids == reference["input_ids"]
    assert [int(counted) for counted in counts] == reference["assistant_masks"]
    end = tokenizer.token_id("<|im_end|>")
    assert sum(number == end for number in ids) == 5
    assert sum(number == end and counted for number, counted in zip(ids, counts, strict=True)) == 2


def test_the_best_template_is_found(bpe_folder: Path, bpe: Path, tmp_path: Path) -> None:
    assert chat_template(tokenizer_of(bpe_folder), None).name == "chatml"
    assert chat_template(tokenizer_of(bpe_folder), "plain").name == "plain"
    assert chat_template(tokenizer_of(bpe), None).name == "plain"
    (bpe_folder / "chat_template.jinja").write_text(UNMARKED)
    assert chat_template(tokenizer_of(bpe_folder), None).name.endswith("chat_template.jinja")
    config = {"chat_template": ["?", {"name": "tool_use"}, {"name": "default", "template": UNMARKED}]}
    (bpe_folder / "tokenizer_config.json").write_text(json.dumps(config))
    mine = tmp_path / "mine.jinja"
    shutil.copy(bpe_folder / "chat_template.jinja", mine)
    assert chat_template(tokenizer_of(bpe), str(mine)).name == str(mine)
    (bpe_folder / "chat_template.jinja").unlink()
    assert chat_template(tokenizer_of(bpe_folder), None).content == UNMARKED
    (bpe_folder / "chat_template.json").write_text(json.dumps({"chat_template": CHATML}))
    assert chat_template(tokenizer_of(bpe_folder), None).content == UNMARKED
    (bpe_folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    found = chat_template(tokenizer_of(bpe_folder), None)
    assert (found.name, found.content) == (f"of {bpe_folder / 'chat_template.json'}", CHATML)
    (bpe_folder / "chat_template.json").write_text("{")
    with refused("not_json", "chat_template.json"):
        chat_template(tokenizer_of(bpe_folder), None)
    with refused("unknown_chat_template", "nowhere.jinja", "chatml, plain"):
        chat_template(tokenizer_of(bpe), "nowhere.jinja")


def test_a_tokenizer_that_does_not_know_where_its_tokens_begin(tmp_path: Path) -> None:
    """It takes the plain template, whose pieces are tokenized one by one."""
    library = pytest.importorskip("sentencepiece")
    model = tmp_path / "pieces.model"
    with open(model, "wb") as file:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(["User: a cat", "Assistant: a dog"] * 20),
            **{"model_writer": file, "vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2},
        )
    tokenizer = load_tokenizer(TokenizerSpec(type="sentencepiece", path=str(model)))
    with refused("tokenizer_without_positions", "sentencepiece", "tokenizer.json"):
        chat_template(tokenizer, "chatml")
    ids, counts, _ = ChatEncoder(tokenizer, chat_template(tokenizer, None)).encode(
        b'{"prompt": "a", "completion": "dog"}'
    )
    counted = [number for number, counts_here in zip(ids, counts, strict=True) if counts_here]
    assert counted == [*tokenizer.encode("dog"), tokenizer.eod]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    lines = [
        {"messages": TALK},
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
        {"prompt": "a", "completion": "b"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_data_set_and_its_mask(tokenize: Tokenize, program: Program, chats: Path) -> None:
    prefix = tokenize(chats, append_eod=False, chat=True)
    header, mask, manifest = read_index(prefix), read_index(loss_mask_prefix(prefix)), read_manifest(prefix)
    assert (header.documents, header.tokens) == (mask.documents, mask.tokens) == (3, header.tokens)
    assert (header.dtype, mask.dtype) == ("uint16", "uint8")
    assert manifest is not None
    expected = "".join(("Me.", "Yes — Me.\n", "Ho", "b"))
    assert manifest.counted_tokens == len(expected.encode()) + 4
    counted = np.fromfile(bin_path(loss_mask_prefix(prefix)), dtype="u1").astype(bool)
    ids = np.fromfile(bin_path(prefix), dtype="<u2")[counted]
    assert bytes(ids[ids < 256].astype("u1")).decode() == expected
    shown = program("inspect", prefix, "--show", "3").stdout
    assert f"conversations   3\ntokens          {header.tokens} (" in shown
    assert f"counted tokens  {manifest.counted_tokens} (" in shown
    assert "--- conversation 1\nUser:\nHi\n\nAssistant:\n⟦Ho⟧\n" in shown


def test_workers_and_shards_change_nothing(tokenize: Tokenize, tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text(
        "".join(json.dumps({"prompt": "q" * (n % 900), "completion": "a" * 900}) + "\n" for n in range(900))
    )
    files = [
        [bin_path(p).read_bytes() + idx_path(p).read_bytes() for p in (prefix, loss_mask_prefix(prefix))]
        for prefix in (
            tokenize(path, append_eod=False, chat=True, name="one"),
            tokenize(path, append_eod=False, chat=True, name="two", workers=2, shard_size=1),
        )
    ]
    assert files[0] == files[1]


WRONG = {
    "[]": "not a JSON object but a list",
    '{"text": "x"}': "not a conversation; keys: text; known: .*messages.*completion.*Alpaca.*Dolly.*question",
    '{"messages": null, "prompt": "x"}': "not a conversation; keys: messages, prompt; known: ",
    '{"instruction": "x", "output": 1}': "output is not text but a number",
    '{"instruction": "x", "input": ["y"], "output": "z"}': "input is not text but a list",
    '{"instruction": "x", "history": ["y"], "output": "z"}': "field 'history' is not a list of pairs",
    '{"messages": {}}': "field 'messages' is not a list but an object",
    '{"messages": []}': "no turn of the assistant",
    '{"messages": [{"role": "user", "content": "x"}]}': "no turn of the assistant",
    '{"messages": ["x"]}': r"messages\[0\] is not an object but text",
    '{"messages": [{"role": "crowd", "content": "x"}]}': r'messages\[0\] has role "crowd"; known are system',
    '{"messages": [{"role": "user"}]}': r"messages\[0\] has no 'content'; fields: role",
    '{"messages": [{"role": "assistant", "content": null}]}': r"messages\[0\].content is not text but null",
    '{"messages": [{"role": "assistant", "content": "", "tool_calls": [1]}]}': r"tool_calls is not a list of objects",
    '{"messages": [{"role": "assistant", "content": "", "function_call": {"name": "f"}}]}': "write it as tool_calls",
    '{"messages": [{"role": "assistant", "content": "", "reasoning_content": "x"}]}': "neither tools nor reasoning",
    '{"messages": [{"role": "assistant", "content": "x", "weight": 0.5}]}': r"messages\[0\] has weight 0.5: write 1",
    '{"messages": [{"role": "assistant", "content": "x", "weight": 0}]}': "no turn .* counts in the loss",
    '{"prompt": "x", "completion": "y", "tools": [{}]}': "chat template plain writes neither tools nor reasoning",
    '{"prompt": "x", "completion": "y", "tools": "[{"}': "field 'tools' is a text that is not JSON",
    '{"prompt": "x", "completion": "y", "tools": {"name": "f"}}': "field 'tools' is not a list of objects",
    '{"prompt": "x", "completion": "y", "functions": [{}]}': "'functions' .*write them as tools",
    '{"prompt": [{"role": "user", "content": "x"}], "completion": []}': "no turn of the assistant",
    '{"conversations": [{"from": "system", "value": "x"}], "system": "y"}': "differs from the system's turn: keep one",
    '{"conversations": [{"from": "human", "value": "x"}, {"from": null, "value": "x"}]}': "has from null",
    '{"messages": "[{"}': "field 'messages' is a text that is not JSON",
    '{"messages": "{}"}': "field 'messages' is not a list but an object",
    '{"messages": 1}': "field 'messages' is not a list but a number",
    '{"instruction": "x", "input": "y", "context": "z", "response": "w"}': "both input and context",
    '{"question": "x", "answer": "y", "context": "z"}': "field 'context' is not read",
    '{"question": "x", "answer": "y", "response": "z"}': "field 'response' is not read",
    '{"prompt": "x", "completion": "y", "input": "z"}': "field 'input' is not read",
    '{"conversations": [{"from": "function_call", "value": "f()"}]}': r"conversations\[0\].value is a text that is not",
    '{"conversations": [{"from": "function_call", "value": "[]"}]}': r"\[0\].value is not a function call",
    '{"conversations": [{"from": "function_call", "value": "{\\"name\\": 1}"}]}': "is not a function call",
    '{"prompt": "x", "completion": "y", "label": false}': r"the line has 'label' \(false\)",
    '{"prompt": "x", "completion": "y", "label": 0}': r"the line has 'label' \(0\)",
    '{"prompt": "x", "chosen": "y", "rejected": "z"}': r"the line has 'chosen'",
    '{"messages": [{"role": "assistant", "content": "x"}], "rejected_response": "y"}': "'rejected_response'",
    '{"messages": [{"role": "assistant", "content": "x"}], "weight": 0}': r"the line has 'weight' \(0\)",
    '{"messages": [{"role": "assistant", "content": "x"}], "train_on_input": true}': "'train_on_input'",
    '{"messages": [{"role": "assistant", "content": "x"}], "mask": "Assistant"}': "'mask'",
    '{"messages": [{"role": "assistant", "content": "x"}], "videos": ["a.mp4"]}': "'videos'",
    '{"messages": [{"role": "assistant", "content": "x", "train": false}]}': "no turn .* counts in the loss",
    '{"messages": [{"role": "assistant", "content": "x", "train": "no"}]}': r'messages\[0\] has train "no": write 1',
    '{"messages": [{"role": "user", "content": "x", "train": true}]}': r"messages\[0\] has train true, but only",
    '{"messages": [{"role": "assistant", "content": "x", "train": true, "weight": 0}]}': "train, which differ",
    '{"messages": [{"role": "assistant", "content": "x", "train_detail": [{}]}]}': r"messages\[0\] has 'train_detail'",
    '{"messages": [{"role": "assistant", "content": "x", "mask": 1}]}': r"messages\[0\] has 'mask' \(1\)",
    '{"prompt": "x", "completion": 1}': "completion is not text but a number",
    '{"prompt": "x", "completion": "\\ud800"}': "half of a surrogate pair",
    '{"prompt": "x"': "not valid JSON",
    '{"prompt": "x", "completion": "y", "id": ' + "9" * 5000 + "}": "a number in it has more than 4300 digits",
}


@pytest.mark.parametrize("line", WRONG)
def test_a_bad_line_is_named_and_nothing_is_written(tokenize: Tokenize, tmp_path: Path, chats: Path, line: str) -> None:
    with open(chats, "a") as file:
        file.write(line + "\n")
    with pytest.raises(UserError, match=f"chats.jsonl:4: .*{WRONG[line]}"):
        tokenize(chats, append_eod=False, chat=True)
    assert [path.name for path in tmp_path.iterdir()] == ["chats.jsonl"]
    prefix = tokenize(chats, append_eod=False, chat=True, on_error="skip")
    assert read_index(prefix).documents == 3
    skipped = json.loads(prefix.with_name("data.skipped.jsonl").read_text())
    assert skipped["line"] == 4


def test_a_conversation_that_a_template_refuses_is_a_bad_line(tokenize: Tokenize, tmp_path: Path, chats: Path) -> None:
    template = tmp_path / "strict.jinja"
    template.write_text(GEMMA_LIKE)
    with open(chats, "a") as file:
        file.write(json.dumps({"messages": [*TALK[:2], *TALK[1:3]]}) + "\n")
    with refused("wrong_record", "chats.jsonl:4", "roles must alternate"):
        tokenize(chats, append_eod=False, chat=True, chat_template=str(template))


def test_wrong_options(program: Program, chats: Path, tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("x")
    for arguments, reason in {
        ("--chat", "--json-key", "x"): "--json-key does not go with --chat",
        ("--chat", "--append-eod"): "--append-eod does not go with --chat",
        ("--chat-template", "plain"): "add --chat, or leave it out",
    }.items():
        done = program("tokenize", chats, "--output-prefix", tmp_path / "x", *arguments)
        assert done.returncode == 2
        assert reason in done.stderr
    folder = tmp_path / "folder"
    folder.mkdir()
    done = program("tokenize", folder, "--output-prefix", tmp_path / "x", "--chat")
    assert f"{folder} holds no file that matches *.jsonl *.jsonl.gz" in done.stderr
    done = program("tokenize", text, "--output-prefix", tmp_path / "x", "--chat")
    assert (done.returncode, "conversations are read from .jsonl" in done.stderr) == (2, True)


def test_a_job_makes_its_conversations(chats: Path, tmp_path: Path) -> None:
    source_of = {"path": str(tmp_path / "made"), "text": str(chats)}
    data = DataSpec.model_validate({"blend": [source_of], "chat": {"template": "chatml"}})
    [(_, manifest)] = prepare(data, 1, lambda line: None)
    assert (manifest.documents, manifest.options["chat_template"]) == (3, "chatml")
    assert read_index(loss_mask_prefix(tmp_path / "made")).tokens == manifest.tokens
    assert prepare(data, 1, lambda line: None) == []
    for template, trouble in {
        "plain": "was made with the chat template chatml, and data.chat.template is plain: make it again",
        "mine.jinja": "was made with the chat template chatml, and data.chat.template is mine.jinja",
        None: "",
    }.items():
        [source] = survey(DataSpec.model_validate({"blend": [source_of], "chat": {"template": template}}))
        assert trouble in str(source.trouble)
        assert (source.trouble is None) == (template is None)
    lacking = DataSpec.model_validate({"blend": [{**source_of, "path": "x"}], "chat": {"template": "no.jinja"}})
    with refused("data_set_cannot_be_made", "data.blend[0]", "data.chat.template", "no.jinja", "chatml"):
        prepare(lacking, 1, lambda line: None)
