"""Conversations with images: every shape of a line, every bad one, and their tokens."""

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
from support.pictures import PATCH_SIZE, PATCHES, SIZE, SIZES, talk, written
from support.refused import refused
from transformers import PreTrainedTokenizerFast

from orchestrator.data.chat.conversation_packing import PATCH
from orchestrator.data.chat.conversations import parse_conversation
from orchestrator.data.chat.encoding import ChatEncoder, chat_template
from orchestrator.data.chat.images import IMAGE
from orchestrator.data.chat.stored_images import images_prefix
from orchestrator.data.chat.templates import CHATML, JinjaTemplate, PlainTemplate
from orchestrator.data.indexed_dataset.header import read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.images import pixels
from orchestrator.data.missing_datasets import prepare
from orchestrator.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.sections.data import DataSpec, TokenizerSpec
from orchestrator.spec.vision import VisionSpec

Tokenize = Callable[..., Path]
SIGHT = VisionSpec(image_size=SIZE, patch_size=PATCH_SIZE)
TRIMMED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


TURNS = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "A cat."}]
PART = {"type": "text", "text": "What?"}
SHAPES: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "llava": ({"image": "a.jpg", "conversations": TURNS}, ["a.jpg"], f"{IMAGE}\nWhat?"),
    "llava with a list": ({"image": ["a.jpg"], "conversations": TURNS}, ["a.jpg"], f"{IMAGE}\nWhat?"),
    "messages": (
        talk("<image> and <image>?", images=["a.jpg", "more/f.png"]),
        ["a.jpg", "more/f.png"],
        f"{IMAGE} and {IMAGE}?",
    ),
    "prompt": ({"image": "a.jpg", "prompt": "<image>What?", "completion": "A cat."}, ["a.jpg"], f"{IMAGE}What?"),
    "part with a path": (talk([{"type": "image", "path": "a.jpg"}, PART]), ["a.jpg"], f"{IMAGE}What?"),
    "part with an image": (talk([PART, {"type": "image", "image": "a.jpg"}]), ["a.jpg"], f"What?{IMAGE}"),
    "part with a url": (talk([{"type": "image", "url": "a.jpg"}, PART]), ["a.jpg"], f"{IMAGE}What?"),
    "image_url": (talk([{"type": "image_url", "image_url": {"url": "a.jpg"}}, PART]), ["a.jpg"], f"{IMAGE}What?"),
    "parts that stand for a list": (
        talk([{"type": "image"}, PART, {"type": "image"}], images=["a.jpg", "b.png"]),
        ["a.jpg", "b.png"],
        f"{IMAGE}What?{IMAGE}",
    ),
    "both": (
        talk([{"type": "image", "path": "c.jpg"}, {"type": "text", "text": "<image>?"}], images=["a.jpg"]),
        ["c.jpg", "a.jpg"],
        f"{IMAGE}{IMAGE}?",
    ),
    "parts without images": (talk([PART, {"type": "text", "text": " <image>"}]), [], "What? <image>"),
    "no image": (talk("<image>?"), [], "<image>?"),
    "no image in any key": (talk("?", image=None, images=[]), [], "?"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_of_a_line(shape: str) -> None:
    line, images, content = SHAPES[shape]
    first, _ = parse_conversation(json.dumps(line).encode()).messages
    assert (list(first.images), first.content) == (images, content)


def test_images_are_counted_over_all_turns() -> None:
    turns = [
        {"role": "user", "content": "<image>?"},
        {"role": "assistant", "content": "<image>"},
        {"role": "user", "content": "x<image>y<image>"},
        {"role": "assistant", "content": "z"},
    ]
    line = {"messages": turns, "images": ["a", "b", "c", "d"]}
    found = parse_conversation(json.dumps(line).encode()).messages
    assert [message.images for message in found] == [("a",), ("b",), ("c", "d"), ()]


WRONG = {
    "fewer": (talk("<image>", images=["a.jpg", "b.png"]), "its text has 1 <image> for 2 images"),
    "more": (talk("<image><image>", image="a.jpg"), "its text has 2 <image> for 1 images"),
    "none": (talk("?", image="a.jpg"), "its text has 0 <image> for 1 images"),
    "mark beside parts": (
        talk([{"type": "image", "path": "a.jpg"}, {"type": "text", "text": "<image>"}]),
        "its text has <image>, and its images are named in parts: text next to them cannot contain a literal <image>",
    ),
    "both in parts and beside": (
        talk([{"type": "image", "path": "a.jpg"}, PART], images=["b.png"]),
        r"its images are named both in parts \(1\) and beside the turns \(1\): name each once",
    ),
    "fewer beside parts": (
        talk([{"type": "image", "path": "a.jpg"}, {"type": "text", "text": "<image>"}], images=["a.jpg", "b.png"]),
        "its text has 1 <image> for 2 images, and 1 more in parts",
    ),
    "null": (talk("<image>", image=None), "its text has <image>, and 'image' is empty: name its image there"),
    "no name": (talk("<image>", image=""), "its text has <image>, and 'image' is empty"),
    "empty list": (talk("<image>", images=[]), "its text has <image>, and 'images' is empty"),
    "part for nothing": (talk([{"type": "image"}, PART]), "its text has 1 <image> for 0 images"),
    "both lists": (talk("<image>", image="a.jpg", images=["a.jpg"]), "both 'image' and 'images'"),
    "number": (talk("<image>", image=[3]), r"image\[0\] is not the path of an image but a number"),
    "object": (talk("<image>", images={"path": "a.jpg"}), "images is not the path of an image but an object"),
    "empty": (talk("<image>", images=[""]), r"images\[0\] is empty"),
    "web": (talk("<image>", image="HTTPS://x.org/a.jpg"), "image is a URL .* images are read from files"),
    "data": (
        talk([{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAUA"}}]),
        r"messages\[0\].content\[0\].image_url.url is a URL \(data:image/png;base64,iVBORw0KGgoAAAANSU\), but",
    ),
    "no url": (talk([{"type": "image_url", "image_url": {}}]), "url is not the path of an image but null"),
    "two paths": (talk([{"type": "image", "path": "a", "url": "b"}]), r"content\[0\] has path and url: write one"),
    "video": (
        talk([{"type": "video", "path": "a"}]),
        r'content\[0\] has type "video"; known are text, image, image_url',
    ),
    "text without": (talk([{"type": "text"}]), r"messages\[0\].content\[0\].text is not text but null"),
    "part": (talk(["x"]), r"messages\[0\].content\[0\] is not an object but text"),
    "parts of another shape": (
        {"conversations": [{"from": "human", "value": [PART]}, {"from": "gpt", "value": "x"}]},
        r"conversations\[0\].value is not text but a list",
    ),
    "noncharacter": (talk(f"<image>{IMAGE}", image="a.jpg"), r"noncharacter of Unicode, U\+FDD2"),
    "surrogate": (talk("<image>", image="\ud800.jpg"), "half of a surrogate pair"),
    "gone": (talk("<image>", image="gone.jpg"), r"image .*/gone\.jpg cannot be read: No such file or directory"),
    "null byte": (talk("<image>", image="a\0.jpg"), "cannot be read: embedded null byte"),
    "no picture": (talk("<image>", image="chats.jsonl"), r"image .*/chats\.jsonl is not supported"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_bad_line_is_named(tokenize: Tokenize, album: Path, tmp_path: Path, case: str) -> None:
    line, reason = WRONG[case]
    for name in ("a.jpg", "b.png"):
        shutil.copy(album / name, tmp_path)
    chats = written(tmp_path, talk("Hi"), line)
    with pytest.raises(UserError, match=f"chats.jsonl:2: .*{reason}"):
        tokenize(chats, append_eod=False, chat=True, **SIZES)
    prefix = tokenize(chats, append_eod=False, chat=True, on_error="skip", **SIZES)
    assert read_index(prefix).documents == read_index(images_prefix(prefix)).documents == 1
    assert json.loads(prefix.with_name("data.skipped.jsonl").read_text())["line"] == 2


def test_without_a_size_images_are_refused_and_text_is_as_ever(tokenize: Tokenize, tmp_path: Path) -> None:
    chats = written(tmp_path, talk("Hi"), SHAPES["llava"][0])
    with refused("wrong_record", "chats.jsonl:2", "--image-size", "model.vision"):
        tokenize(chats, append_eod=False, chat=True)
    assert not images_prefix(tokenize(written(tmp_path, talk("Hi")), append_eod=False, chat=True)).exists()


def test_what_has_no_image_is_counted(tokenize: Tokenize, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A key with another name is none; what is text to a model that sees nothing is not spoken of."""
    chats = written(tmp_path, talk("<image>?", img="a.jpg"), talk("Hi"), talk("<image>", img="b.jpg"))
    prefix = tokenize(chats, append_eod=False, chat=True, **SIZES)
    said = capfd.readouterr()
    assert "warning: 2 of 3 conversations have <image> in their text and no image; there it is text." in said.err
    assert "warning: none of the conversations has an image\n" in said.err
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert manifest.unpictured_conversations == 2
    assert f"wrote {prefix}: 3 conversations, " in said.out
    assert f"(bytes, as uint16), of which {manifest.counted_tokens} count, 0 images\n" in said.out
    tokenize(chats, name="text", append_eod=False, chat=True)
    assert "warning" not in capfd.readouterr().err


def test_a_job_tells_it_too(album: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    chats = written(album, talk("<image>?", image="a.jpg"), talk("<image>", img="b.jpg"), name="partly.jsonl")
    data = DataSpec.model_validate({"blend": [{"path": str(tmp_path / "x"), "text": str(chats)}], "chat": {}})
    prepare(data, 1, lambda line: None, vision=SIGHT)
    said = capfd.readouterr().err
    assert "warning: 1 of 2 conversations have <image> in their text and no image" in said
    assert "none of the conversations" not in said


def byte_level() -> Tokenizer:
    return load_tokenizer(TokenizerSpec())


def with_tokens(bpe: Path, folder: Path, *tokens: str) -> Tokenizer:
    """The tokenizer.json with further tokens of its own."""
    folder.mkdir()
    content = json.loads(bpe.read_text())
    first = 1 + max(*content["model"]["vocab"].values(), *(token["id"] for token in content["added_tokens"]))
    like = content["added_tokens"][0]
    content["added_tokens"] += [{**like, "id": first + n, "content": token} for n, token in enumerate(tokens)]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return load_tokenizer(TokenizerSpec(type="huggingface", path=str(folder)))


TEMPLATES = {
    "plain": PlainTemplate(),
    "chatml": JinjaTemplate("chatml", CHATML, {}),
    "trimmed": JinjaTemplate("trimmed", TRIMMED, {}),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_of_bytes(album: Path, name: str) -> None:
    """A mark becomes the patches of its image, and the text around it is what it is without one."""
    template = TEMPLATES[name]
    line = json.dumps(talk("one <image> two <image>", "It <image> is.", images=["a.jpg", "b.png", "c.jpg"])).encode()
    ids, mask, images = ChatEncoder(byte_level(), template, SIGHT).encode(line, album)
    assert images == [
        pixels(album / file, VisionSpec(image_size=SIZE)).tobytes() for file in ("a.jpg", "b.png", "c.jpg")
    ]
    plain = json.dumps(talk("one § two §", "It § is.")).encode()
    text, counts, _ = ChatEncoder(byte_level(), template).encode(plain)
    expected: list[tuple[int, int]] = []
    for number, counted in zip(text, counts, strict=True):
        if number == 0xC2:
            continue
        expected += [(256, PATCH)] * PATCHES if number == 0xA7 else [(number, int(counted))]
    assert list(zip(ids, map(int, mask), strict=True)) == expected
    assert sum(mark == PATCH for mark in mask) == 3 * PATCHES


@pytest.mark.parametrize("template", [CHATML, TRIMMED], ids=["marked", "unmarked"])
def test_tokens_are_those_of_transformers(bpe: Path, album: Path, tmp_path: Path, template: str) -> None:
    """Which writes the mark as often as an image has patches, before it tokenizes the whole."""
    tokenizer = with_tokens(bpe, tmp_path / "t", "<|im_start|>", "<|im_end|>", "<image>")
    own = tokenizer.token_id("<image>")
    line = talk("one <image> two\n<image>", "It is.", images=["a.jpg", "b.png"])
    ids, mask, _ = ChatEncoder(tokenizer, JinjaTemplate("t", template, {}), SIGHT).encode(
        json.dumps(line).encode(), album
    )
    theirs = PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "t" / "tokenizer.json"))
    theirs.chat_template = template.replace("{%- generation %}", "").replace("{% endgeneration %}", "")
    text = theirs.apply_chat_template(line["messages"], tokenize=False)
    assert ids == theirs(text.replace("<image>", "<image>" * PATCHES), add_special_tokens=False)["input_ids"]
    assert [number == own for number in ids] == [mark == PATCH for mark in mask]


def test_a_tokenizer_without_the_token_ends_documents_there(bpe: Path, album: Path) -> None:
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
    line = json.dumps(talk("one <image>two", image="a.jpg")).encode()
    ids, mask, _ = ChatEncoder(tokenizer, JinjaTemplate("t", TRIMMED, {}), SIGHT).encode(line, album)
    first, last = mask.index(PATCH), len(mask) - mask[::-1].index(PATCH)
    assert ids[first:last] == [tokenizer.eod] * PATCHES
    assert tokenizer.decode(ids[:first]) == "<user>one "
    assert tokenizer.decode(ids[last:]) == "two<end>\n<assistant>It is.<end>\n"


def test_a_sentencepiece_model_has_patches_too(album: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentencepiece")
    model = tmp_path / "pieces.model"
    with open(model, "wb") as file:
        library.SentencePieceTrainer.train(
            sentence_iterator=iter(["User: a cat", "Assistant: a dog"] * 20),
            **{"model_writer": file, "vocab_size": 40, "hard_vocab_limit": False, "minloglevel": 2},
        )
    tokenizer = load_tokenizer(TokenizerSpec(type="sentencepiece", path=str(model)))
    line = json.dumps(talk("<image>a cat", "a dog", image="a.jpg")).encode()
    ids, mask, _ = ChatEncoder(tokenizer, chat_template(tokenizer, None), SIGHT).encode(line, album)
    assert [number for number, mark in zip(ids, mask, strict=True) if mark == PATCH] == [tokenizer.eod] * PATCHES


def test_a_template_that_loses_an_image_is_told_of(album: Path) -> None:
    forgetful = TRIMMED.replace("{% for m in messages %}", "{% for m in messages if m.role != 'system' %}")
    turns = [{"role": "system", "content": "<image>"}, *talk("<image>")["messages"]]
    line = json.dumps({"messages": turns, "images": ["a.jpg", "b.png"]}).encode()
    with pytest.raises(ValueError, match="the chat template writes 1 of its 2 images"):
        ChatEncoder(byte_level(), JinjaTemplate("f", forgetful, {}), SIGHT).encode(line, album)


def test_an_image_is_nothing_that_the_assistant_says(album: Path) -> None:
    content = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    encoder = ChatEncoder(byte_level(), JinjaTemplate("c", content, {}), SIGHT)
    with pytest.raises(ValueError, match="the assistant says nothing"):
        encoder.encode(json.dumps(talk("", "<image>", image="a.jpg")).encode(), album)
    assert encoder.encode(json.dumps(talk("", "<image>!", image="a.jpg")).encode(), album).mask == [2, 2, 2, 2, 1]


def test_too_many_images_for_an_index(album: Path) -> None:
    line = json.dumps(talk("<image>" * 11, images=["a.jpg"] * 11)).encode()
    with pytest.raises(ValueError, match="it has 11 images, more than a data set can hold"):
        ChatEncoder(byte_level(), PlainTemplate(), VisionSpec(image_size=8400)).encode(line, album)


TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12) | st.sampled_from(
    ["<image>", IMAGE, "<image>\n"]
)


@given(st.lists(st.tuples(TEXT, TEXT.filter(str.strip)), min_size=1, max_size=3), st.sampled_from(list(TEMPLATES)))
@settings(max_examples=examples(80))
def test_conversations_without_images_are_the_same_bytes(pairs: list[tuple[str, str]], name: str) -> None:
    turns = [turn for asked, said in pairs for turn in talk(asked, said)["messages"]]
    line = json.dumps({"messages": turns}).encode()
    found = []
    for vision in (None, SIGHT):
        try:
            found.append(ChatEncoder(byte_level(), TEMPLATES[name], vision).encode(line))
        except ValueError as error:
            found.append(str(error))
    assert found[0] == found[1]
