"""Chat templates that read content in parts alone, as LLaVA's: what they are given, what becomes of what they write."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.pictures import OF_PARTS, PATCH_SIZE, PATCHES, SIZE, SIZES, talk, written
from support.refused import refused
from tokenizers import Tokenizer as LibraryTokenizer
from tokenizers import processors
from transformers import CLIPImageProcessor, LlavaProcessor, PreTrainedTokenizerFast

from orchestrator.data.chat.conversation_packing import COUNTS, PATCH
from orchestrator.data.chat.conversations import Message, parse_conversation
from orchestrator.data.chat.encoding import ChatEncoder, chat_template
from orchestrator.data.chat.images import IMAGE
from orchestrator.data.chat.parts import to_parts
from orchestrator.data.chat.templates import JinjaTemplate
from orchestrator.data.input.images import pixels
from orchestrator.data.inspection import first_documents
from orchestrator.data.request import ShowRequest
from orchestrator.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from orchestrator.spec.sections.data import TokenizerSpec
from orchestrator.spec.vision import VisionSpec

SIGHT = VisionSpec(image_size=SIZE, patch_size=PATCH_SIZE)
UNMARKED = OF_PARTS.replace("{% generation %}", "").replace("{% endgeneration %}", "")
ENDED = UNMARKED.replace(
    "{% endfor %}{% endfor %}", "{% endfor %}{% if turn.role == 'assistant' %}</s>{% endif %}{% endfor %}"
)
IN_ORDER = (
    "{% for m in messages %}<{{ m.role }}>{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PICTURE = {"type": "image"}


def text(said: str) -> dict[str, str]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize(
    ("content", "parts"),
    [
        (f"{IMAGE}\nWhat?", [PICTURE, text("What?")]),
        (f"What?\n{IMAGE}", [text("What?"), PICTURE]),
        (f"\n{IMAGE}\r\n\nThis\n{IMAGE}\nor that\n?\n", [PICTURE, text("This"), PICTURE, text("or that\n?\n")]),
        (f"{IMAGE}{IMAGE}\n{IMAGE}", [PICTURE, PICTURE, PICTURE]),
        (f"{IMAGE} {IMAGE}?", [PICTURE, text(" "), PICTURE, text("?")]),
        ("\nHi\n", [text("\nHi\n")]),
        ("", [text("")]),
    ],
)
def test_parts_of_a_turn(content: str, parts: list[dict[str, str]]) -> None:
    assert to_parts(content) == parts


def pieces(template: str, *turns: tuple[str, str], **tokens: str) -> list[tuple[str, bool]]:
    messages = [Message(role, said, ("x",) * said.count(IMAGE)) for role, said in turns]  # type: ignore[arg-type]
    return [(piece.text or "", piece.counts) for piece in JinjaTemplate("t", template, tokens)(messages) if piece.text]


def test_what_counts_is_what_the_template_marks() -> None:
    talked = [("system", "Be brief."), ("user", f"{IMAGE}\nWhat?"), ("assistant", "A cat."), ("user", "Is it?")]
    found = pieces(OF_PARTS, *talked, ("assistant", "Yes.\n"))
    assert found == [
        (f"Be brief. USER: {IMAGE}\nWhat? ASSISTANT: ", False),
        ("A cat. ", True),
        ("USER: Is it? ASSISTANT: ", False),
        ("Yes.\n ", True),
    ]


def test_what_counts_is_found_by_prefixes() -> None:
    talked = [("user", f"{IMAGE}\nWhat?"), ("assistant", "A </s> cat."), ("user", "Is it?")]
    found = pieces(ENDED, *talked, ("assistant", f"{IMAGE}\nYes."))
    assert found == [
        (f"USER: {IMAGE}\nWhat? ASSISTANT:", False),
        (" A </s> cat. </s>", True),
        ("USER: Is it? ASSISTANT:", False),
        (f" {IMAGE}\nYes. </s>", True),
    ]


def test_one_that_ends_no_turn_and_marks_none_is_refused() -> None:
    with refused("no_end_of_answer", "chat template t:"):
        JinjaTemplate("t", UNMARKED, {})


def test_templates_that_fail_at_text_are_given_parts() -> None:
    strict = IN_ORDER.replace("{% if part.type", "{{ 1 // (part is mapping) }}{% if part.type")
    assert pieces(strict, ("user", "a"), ("assistant", "b")) == [
        ("<user>1a<end><assistant>", False),
        ("1b<end>", True),
    ]


def test_templates_that_read_both_are_given_text() -> None:
    both = IN_ORDER.replace("{% for part", "{% if m.content is string %}={{ m.content }}{% else %}{% for part")
    both = both.replace("{% endfor %}<end>", "{% endfor %}{% endif %}<end>")
    assert pieces(both, ("user", f"{IMAGE}\na"), ("assistant", "b")) == [
        (f"<user>={IMAGE}\na<end><assistant>", False),
        ("=b<end>", True),
    ]


def test_the_name_of_the_mark_stays_text_where_there_are_no_images() -> None:
    found = pieces(OF_PARTS, ("user", "What is <image>?"), ("assistant", "<image> is a mark."))
    assert found == [("USER: What is <image>? ASSISTANT: ", False), ("<image> is a mark. ", True)]


def tokens_of(bpe: Path, folder: Path, *, begins: bool = False) -> Tokenizer:
    """The tokenizer.json with the token of an image and BOS, with which texts begin or not, in a folder of its own."""
    folder.mkdir()
    library = LibraryTokenizer.from_file(str(bpe))
    library.add_special_tokens(["<image>", "<s>"])
    if begins:
        first = ("<s>", library.token_to_id("<s>"))
        library.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[first])
    library.save(str(folder / "tokenizer.json"))
    return load_tokenizer(TokenizerSpec(type="huggingface", path=str(folder)))


def processor_of(folder: Path, template: str) -> LlavaProcessor:
    side = {"height": SIZE, "width": SIZE}
    return LlavaProcessor(
        CLIPImageProcessor(size={"shortest_edge": SIZE}, crop_size=side),
        PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), bos_token="<s>"),
        **{"patch_size": PATCH_SIZE, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1},
        chat_template=template,
    )


TALKS: dict[str, tuple[dict[str, Any], list[list[str]]]] = {
    "llava": (
        {
            "image": "a.jpg",
            "conversations": [
                *({"from": "human", "value": "<image>\nWhat is it?"}, {"from": "gpt", "value": "A naïve cat."}),
                *({"from": "human", "value": "Is it?\n"}, {"from": "gpt", "value": "Yes"}),
            ],
        },
        [["a.jpg", "What is it?"], ["A naïve cat."], ["Is it?\n"], ["Yes"]],
    ),
    "several": (
        talk("This <image>\nor this:\n<image>\n?", "It  is.", images=["b.png", "c.jpg"]),
        [["This ", "b.png", "or this:", "c.jpg", "?"], ["It  is."]],
    ),
    "none": (talk("What is it?", "That."), [["What is it?"], ["That."]]),
}


@pytest.mark.parametrize("case", TALKS)
@pytest.mark.parametrize("begins", [False, True], ids=["as it is", "with BOS"])
@pytest.mark.parametrize(
    "template", [OF_PARTS, ENDED, "{{ bos_token }}" + IN_ORDER], ids=["marked", "ended", "in order behind BOS"]
)
def test_tokens_are_those_of_the_processor(
    bpe: Path, album: Path, tmp_path: Path, template: str, begins: bool, case: str
) -> None:
    """Of transformers, given the parts as its users write them; where the template marks what counts, the mask."""
    line, turns = TALKS[case]
    tokenizer = tokens_of(bpe, tmp_path / "t", begins=begins)
    (tmp_path / "t" / "chat_template.jinja").write_text(template)
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"bos_token": "<s>"}')
    ids, mask, images = ChatEncoder(tokenizer, chat_template(tokenizer, None), SIGHT).encode(
        json.dumps(line).encode(), album
    )
    files = [said for turn in turns for said in turn if (album / said).is_file()]
    conversation = [
        {
            "role": "assistant" if number % 2 else "user",
            "content": [PICTURE | {"path": str(album / said)} if said in files else text(said) for said in turn],
        }
        for number, turn in enumerate(turns)
    ]
    marked = template is OF_PARTS
    theirs = processor_of(tmp_path / "t", template).apply_chat_template(
        conversation, tokenize=True, return_dict=True, return_assistant_tokens_mask=marked
    )
    assert [ids] == theirs["input_ids"]
    assert ids.count(tokenizer.token_id("<s>") or 0) == (begins or template.startswith("{{ bos_token }}"))
    assert sum(mark == PATCH for mark in mask) == PATCHES * len(files)
    assert images == [pixels(album / file, VisionSpec(image_size=SIZE)).tobytes() for file in files]
    if marked:
        assert [[int(mark == COUNTS) for mark in mask]] == theirs["assistant_masks"]


def test_the_programs_write_and_show_what_it_makes(tokenize: Callable[..., Path], album: Path, tmp_path: Path) -> None:
    shutil.copy(album / "a.jpg", tmp_path)
    template = tmp_path / "mine.jinja"
    template.write_text(OF_PARTS)
    chats = written(tmp_path, talk("<image>\nWhat?", "A cat.", image="a.jpg"), talk("What is <image>?", "A mark."))
    prefix = tokenize(chats, append_eod=False, chat=True, chat_template=str(template), **SIZES)
    assert list(first_documents(ShowRequest(prefix, show=2))) == [
        "USER: <image>\nWhat? ASSISTANT: ⟦A cat. ⟧",
        "USER: What is <image>? ASSISTANT: ⟦A mark. ⟧",
    ]


WRONG = {
    "all but the first": (
        IN_ORDER.replace("== 'image' %}", "== 'image' %}{% if not loop.first %}").replace(
            "<image>", "<image>{% endif %}"
        ),
        "writes 1 <image> for 2 images",
    ),
    "twice": (
        IN_ORDER.replace("<image>", "<image><image>"),
        "writes 4 <image> for 2 images",
    ),
    "another mark": (IN_ORDER.replace("<image>", "<|image|>"), "writes 0 <image> for 2 images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_template_that_writes_other_images_is_told_of(album: Path, case: str) -> None:
    template, reason = WRONG[case]
    line = json.dumps(talk("<image>a<image>", images=["a.jpg", "b.png"])).encode()
    with pytest.raises(ValueError, match=reason):
        ChatEncoder(load_tokenizer(TokenizerSpec()), JinjaTemplate("t", template, {}), SIGHT).encode(line, album)


def test_a_mark_made_of_two_texts_is_told_of(album: Path) -> None:
    line = json.dumps(talk([text("<ima"), PICTURE | {"path": "a.jpg"}, text("ge>")])).encode()
    joined = OF_PARTS.replace("{{ part.text }} ", "{{ part.text }}")
    with pytest.raises(ValueError, match="writes 2 <image> for 1 images"):
        ChatEncoder(load_tokenizer(TokenizerSpec()), JinjaTemplate("t", joined, {}), SIGHT).encode(line, album)


@pytest.mark.parametrize("character", [IMAGE, "\ufdd3"])
def test_a_text_with_our_own_marks_is_a_bad_line(character: str) -> None:
    messages = parse_conversation(json.dumps(talk(f"a{character}b")).encode()).messages
    with pytest.raises(ValueError, match=f"noncharacter of Unicode, U\\+{ord(character):X}"):
        JinjaTemplate("t", OF_PARTS, {})(messages)


STRETCH = st.text(st.characters(exclude_categories=("Cs", "Cn")), max_size=8) | st.sampled_from(["<image>", "\n", "é"])


@given(st.lists(st.lists(STRETCH, min_size=1, max_size=4), min_size=1, max_size=4))
@settings(max_examples=examples(80))
def test_all_that_is_said_is_written_once_and_in_its_order(turns: list[list[str]]) -> None:
    """By a template that writes parts as they are: but for the line breaks beside images."""
    talked = [
        (role, IMAGE.join(stretches))
        for stretches in turns
        for role, stretches in (("user", stretches), ("assistant", ["Well."]))
    ]
    expected = ""
    for role, said in talked:
        first, *others = said.split(IMAGE)
        trimmed = [first.rstrip("\r\n") if others else first]
        for number, stretch in enumerate(others, start=1):
            kept = stretch.lstrip("\r\n")
            trimmed.append(kept.rstrip("\r\n") if number < len(others) else kept)
        expected += f"<{role}>{IMAGE.join(trimmed)}<end>"
    found = pieces(IN_ORDER, *talked)
    assert "".join(said for said, _ in found) == expected
    assert [said for said, counts in found if counts] == ["Well.<end>"] * len(turns)


def test_a_template_that_ends_no_answer_is_told_of(
    tokenize: Callable[..., Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """LLaVA's, as it is published; also where what ends an answer stands behind what counts."""
    chats = written(tmp_path, talk("Hi"))
    end = "{% generation %}{{ part.text }}|{% endgeneration %}"
    templates = {
        OF_PARTS: 1,
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}</s>{% endfor %}": 1,
        OF_PARTS.replace("{% generation %}{{ part.text }} {% endgeneration %}", end): 0,
        ENDED: 0,
    }
    for number, (template, warnings) in enumerate(templates.items()):
        path = tmp_path / f"{number}.jinja"
        path.write_text(template)
        tokenize(chats, name=f"data{number}", append_eod=False, chat=True, chat_template=str(path))
        said = capfd.readouterr().err
        assert said.count("never learns to stop. Name a copy that writes {{ eos_token }}") == warnings
        assert said.count(f"warning: chat template {path}: what it marks") == warnings
    tokenize(chats, name="plain", append_eod=False, chat=True, chat_template="plain")
    assert "warning" not in capfd.readouterr().err


def test_vicuna_is_llavas_conversation(bpe: Path, album: Path, tmp_path: Path) -> None:
    """As the LLaVA 1.5 was trained: the tokenizer's own end behind each answer, which counts, and BOS in front."""
    tokenizer = tokens_of(bpe, tmp_path / "t", begins=True)
    (tmp_path / "t" / "tokenizer_config.json").write_text('{"bos_token": "<s>", "eos_token": "<|endoftext|>"}')
    tokenizer = load_tokenizer(tokenizer.spec)
    template = chat_template(tokenizer, "vicuna")
    assert (template.name, template.ends_without_answer) == ("vicuna", False)
    turns = [
        *({"from": "system", "value": "Be brief."}, {"from": "human", "value": "<image>\nWhat?"}),
        *({"from": "gpt", "value": "A cat."}, {"from": "human", "value": "Is it?"}, {"from": "gpt", "value": "Yes."}),
    ]
    line = json.dumps({"image": "a.jpg", "conversations": turns}).encode()
    ids, mask, _ = ChatEncoder(tokenizer, template, SIGHT).encode(line, album)
    said = "<s>Be brief. USER: <image>\nWhat? ASSISTANT: A cat.<|endoftext|>USER: Is it? ASSISTANT: Yes.<|endoftext|>"
    assert ids == tokenizer.encode(said.replace("<image>", "<image>" * PATCHES))
    counted = [number for number, mark in zip(ids, mask, strict=True) if mark == COUNTS]
    assert counted == tokenizer.encode(" A cat.<|endoftext|> Yes.<|endoftext|>")
    prompt = template.prompt(parse_conversation(line).messages[:2])
    assert "".join(piece.text or "" for piece in prompt) == f"<s>Be brief. USER: {IMAGE}\nWhat? ASSISTANT:"


def test_vicuna_needs_a_text_that_ends_a_document() -> None:
    with refused("no_end_of_answer_token", "vicuna", "byte_level"):
        chat_template(load_tokenizer(TokenizerSpec()), "vicuna")
