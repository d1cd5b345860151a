"""Chat templates that write today's date: by transformers' `strftime_now`, of one day for the whole of a data set."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import ValidationError
from support.datasets import files_of
from support.refusals import after
from support.refused import refused
from transformers import PreTrainedTokenizerFast

from orchestrator.data import tokenization
from orchestrator.data.chat.encoding import ChatEncoder
from orchestrator.data.chat.templates import CHATML, JinjaTemplate
from orchestrator.data.description import print_description
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.input.sources import CHUNK_BYTES
from orchestrator.data.inspection import first_documents
from orchestrator.data.missing_datasets import prepare
from orchestrator.data.request import ShowRequest
from orchestrator.data.source_survey import survey
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.sections.data import DataSpec, TokenizerSpec

Tokenize = Callable[..., Path]
Program = Callable[..., Any]

GPT_OSS_LIKE = '{{ "Current date: " + strftime_now("%Y-%m-%d") + "\\n" }}' + CHATML
LLAMA_LIKE = (
    "{%- if strftime_now is defined %}{%- set day = strftime_now('%d %b %Y') %}"
    "{%- else %}{%- set day = '26 Jul 2024' %}{%- endif %}{{ 'Today Date: ' + day + '\n' }}" + CHATML
)
TURNS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]


SHARD = 2 * CHUNK_BYTES  # the first that is more than a megabyte


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    """Of two chunks, for two workers."""
    (tmp_path / "t.jinja").write_text(GPT_OSS_LIKE)
    return write_chats(tmp_path / "chats.jsonl", CHUNK_BYTES)


def write_chats(path: Path, size: int) -> Path:
    """A file of so many bytes or a few more."""
    line = json.dumps({"prompt": "q" * 9000, "completion": "a"}) + "\n"
    path.write_text(line * (size // len(line) + 1))
    return path


def options(chats: Path) -> dict[str, Any]:
    return {"append_eod": False, "chat": True, "chat_template": str(chats.with_name("t.jinja")), "shard_size": 1}


@pytest.mark.parametrize("template", [GPT_OSS_LIKE, LLAMA_LIKE])
def test_without_a_day_a_template_sees_todays_as_in_transformers(bpe: Path, template: str) -> None:
    """As a server writes conversations."""
    tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
    begun = date.today()
    found: Any = PreTrainedTokenizerFast(tokenizer_file=str(bpe)).apply_chat_template(
        TURNS, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    encoded = ChatEncoder(tokenizer, JinjaTemplate("t", template, {})).encode(json.dumps({"messages": TURNS}).encode())
    if date.today() == begun:  # else it is after midnight
        assert (encoded.ids, encoded.mask) == (found["input_ids"], found["assistant_masks"])


def test_the_day_is_given_and_kept(tokenize: Tokenize, chats: Path, capfd: Any) -> None:
    prefix = tokenize(chats, chat_date="2025-01-31", **options(chats))
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert manifest.options["chat_date"] == "2025-01-31"
    assert next(iter(first_documents(ShowRequest(prefix, 1)))).startswith("Current date: 2025-01-31\n")
    assert files_of(tokenize(chats, chat_date="2025-01-31", name="two", workers=2, **options(chats))) == files_of(
        prefix
    )
    print_description(prefix, as_json=False)
    assert "t.jinja, on 2025-01-31" in capfd.readouterr().out
    prefix = tokenize(chats, name="today", **options(chats))
    manifest = read_manifest(prefix)
    assert manifest is not None
    assert date.today() - date.fromisoformat(manifest.options["chat_date"]) <= timedelta(days=1)


def test_what_was_interrupted_goes_on_with_its_day(
    tokenize: Tokenize, chats: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_chats(chats, SHARD)  # and a little, which is the second shard
    whole = files_of(tokenize(chats, name="whole", chat_date="2025-01-31", **options(chats)))

    class Earlier(date):
        @classmethod
        def today(cls) -> Self:
            return cls(2025, 1, 31)

    class KilledError(BaseException):
        """Stands for the end of the process."""

    def killed(*committed: object) -> None:
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(tokenization, "date", Earlier)
        after(patch, "orchestrator.data.indexed_dataset.output.PartialOutput.commit", killed)
        with pytest.raises(KilledError):
            tokenize(chats, **options(chats))
    with refused("unfinished_output_differs", "data.partial", "date of the chat template"):
        tokenize(chats, chat_date="2025-02-01", **options(chats))
    assert files_of(tokenize(chats, **options(chats))) == whole


def test_a_template_without_a_date_has_no_day(tokenize: Tokenize, chats: Path) -> None:
    prefixes = [
        tokenize(chats, name=day, append_eod=False, chat=True, chat_date=day) for day in ("2025-01-31", "2025-02-01")
    ]
    assert files_of(prefixes[0]) == files_of(prefixes[1])
    manifest = read_manifest(prefixes[0])
    assert manifest is not None
    assert "chat_date" not in manifest.options


def test_a_job_says_the_day(chats: Path, tmp_path: Path) -> None:
    def data(day: object) -> DataSpec:
        source = {"path": str(tmp_path / "made"), "text": str(chats)}
        chat = {"template": str(chats.with_name("t.jinja")), "date": day}
        return DataSpec.model_validate({"blend": [source], "chat": chat})

    [(_, manifest)] = prepare(data("2025-01-31"), 1, lambda line: None)
    assert manifest.options["chat_date"] == "2025-01-31"
    for day, is_fit in {"2025-01-31": True, None: True, "2025-02-01": False}.items():
        [source] = survey(data(day))
        assert (source.trouble is None) == is_fit
    for wrong in ("2025-02-30", "20250201", 2025):
        with pytest.raises(ValidationError):
            data(wrong)


def test_wrong_days(program: Program, chats: Path, tmp_path: Path) -> None:
    for arguments, reason in {
        ("--chat", "--chat-date", "2025-02-30"): "--chat-date 2025-02-30: expects a day",
        ("--chat", "--chat-date", "20250201"): "--chat-date 20250201: expects a day",
        ("--chat-date", "2025-02-01"): "add --chat, or leave it out",
    }.items():
        done = program("tokenize", chats, "--output-prefix", tmp_path / "x", *arguments)
        assert done.returncode == 2
        assert reason in done.stderr
