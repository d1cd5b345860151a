"""How a served model's conversations are written: with the tokens that it was trained on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.pictures import OF_PARTS, PATCHES, SIZES, make_album
from support.training import tiny_job
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from orchestrator.data.chat.conversations import Message
from orchestrator.data.chat.encoding import ChatEncoder, chat_template
from orchestrator.data.chat.images import IMAGE as STANDS
from orchestrator.data.chat.templates import CHATML
from orchestrator.inference.images import IMAGE
from orchestrator.inference.model import Model
from orchestrator.inference.serving.chat_template_choice import Chat, chat_of
from orchestrator.spec.vision import VisionSpec

EYES = VisionSpec(**SIZES)
OWN = CHATML.replace("<|im_start|>", "<own>")
TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "<image>\nWhat?"},
    {"role": "assistant", "content": "A cat."},
    {"role": "user", "content": "Or <image>?"},
    {"role": "assistant", "content": "A dog."},
]


def model_of(folder: Path, special: list[str], chat: dict[str, Any] | None, own: str | None = None) -> Model:
    """One with a tokenizer of bytes and special tokens."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["</s>", *special])
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "</s>", **({"chat_template": own} if own is not None else {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    data: dict[str, Any] = {"tokenizer": {"type": "huggingface", "path": str(folder / "tokenizer.json")}}
    data |= (
        {"random_tokens": True}
        if chat is None
        else {"random_tokens": False, "blend": [{"path": "chats"}], "chat": chat}
    )
    network: Any = type("Network", (), {"job": tiny_job("seer", data=data), "vocab_size": 300})()
    commit: Any = None
    return Model(network, commit)


def served(model: Model) -> Chat:
    chat = chat_of(model)
    assert chat is not None
    return chat


@pytest.mark.parametrize("special", [[], ["<image>"], ["<|im_start|>", "<|im_end|>"]])
@pytest.mark.parametrize("template", [None, "plain", "chatml", "parts.jinja"])
@pytest.mark.parametrize("sees", [True, False])
def test_a_prompt_is_the_beginning_of_what_was_trained_on(
    tmp_path: Path, special: list[str], template: str | None, sees: bool
) -> None:
    """With images and without, where `<image>` is text."""
    album = make_album(tmp_path)
    if template == "parts.jinja":
        template = str(tmp_path / template)
        Path(template).write_text(OF_PARTS)
    model = model_of(tmp_path, special, {"template": template})
    encoder = ChatEncoder(model.tokenizer, chat_template(model.tokenizer, template), EYES)
    line = {"messages": TALK, **({"images": ["a.jpg", "b.png"]} if sees else {})}
    trained = encoder.encode(json.dumps(line).encode(), album).ids
    turns = [Message(each["role"], each["content"].replace("<image>", STANDS if sees else "<image>")) for each in TALK]  # type: ignore[arg-type]  # roles
    prompt = served(model)(turns[:-1])
    assert prompt.count(IMAGE) == (2 if sees else 0)
    patch = model.tokenizer.token_id("<image>") or model.tokenizer.eod
    placed = [token for each in prompt for token in ([patch] * PATCHES if each == IMAGE else [each])]
    assert placed == trained[: len(placed)]
    assert model.tokenizer.decode(trained[len(placed) :]).strip().startswith("A dog.")


def test_the_assistants_name_is_last_in_plain_text(tmp_path: Path) -> None:
    chat = served(model_of(tmp_path, [], {}))
    prompt = chat([Message("user", "Hi"), Message("assistant", "Ho"), Message("user", "?")])
    assert chat.tokenizer.decode(prompt) == "User:\nHi\n\nAssistant:\nHo</s>\n\nUser:\n?\n\nAssistant:\n"
    assert chat.turn_end == "", "a token of its own"


def test_a_mark_that_the_tokenizer_knows_is_an_image_where_a_part_says_so(tmp_path: Path) -> None:
    """Beside one the token stays that it is in conversations without images."""
    chat = served(model_of(tmp_path, ["<image>"], {"template": "plain"}))
    own = chat.tokenizer.token_id("<image>")
    alone = chat([Message("user", "<image>?")])
    beside = chat([Message("user", f"<image>{STANDS}<image>?")])
    assert [token for token in alone if token in (IMAGE, own)] == [own]
    assert [token for token in beside if token in (IMAGE, own)] == [own, IMAGE, own]


def test_a_mark_that_the_tokenizer_finds_elsewhere_is_refused(tmp_path: Path) -> None:
    chat = served(model_of(tmp_path, ["<image>", "<image>?"], {"template": "plain"}))
    with pytest.raises(ValueError, match="its tokenizer finds 1 <image> in a text that has 2"):
        chat([Message("user", f"{STANDS}a<image>?")])


def test_the_template_is_that_of_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert chat_of(model_of(tmp_path, [], None)) is None, "nothing says how it is asked"
    untold = served(model_of(tmp_path, [], None, OWN))
    assert (untold.template.content, untold.turn_end) == (OWN, "")
    assert served(model_of(tmp_path, [], {}, OWN)).template.content == OWN
    assert served(model_of(tmp_path, [], {"template": "plain"}, OWN)).template.name == "plain"
    chatml = served(model_of(tmp_path, [], {"template": "chatml"}, OWN))
    assert (chatml.template.name, chatml.turn_end) == ("chatml", "<|im_end|>")
    assert capsys.readouterr().err == ""


def test_a_template_that_is_gone_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = str(tmp_path / "gone.jinja")
    said = f"it was trained with data.chat.template {gone}: there is no such file on this machine; put it there and "
    assert served(model_of(tmp_path, [], {"template": gone}, OWN)).template.content == OWN
    instead = f"the chat template of {tmp_path / 'tokenizer_config.json'}"
    assert capsys.readouterr().err == f"warning: {instead}: {said}start again\n"
    assert chat_of(model_of(tmp_path, [], {"template": gone})) is None
    assert capsys.readouterr().err.startswith(f"warning: no conversations, /v1/completions only: {said}")
    Path(gone).write_text("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    assert chat_of(model_of(tmp_path, [], {"template": gone}, "{{")) is None
    assert "nothing that ends an assistant's turn" in capsys.readouterr().err
