from __future__ import annotations

import errno
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.refusals import fill_the_disk
from support.refused import refused

from orchestrator.cli.main import main
from orchestrator.data.__main__ import run
from orchestrator.data.indexed_dataset.header import idx_path
from orchestrator.data.indexed_dataset.manifest import manifest_path, read_manifest
from orchestrator.data.request import TokenizeRequest, TrainTokenizerRequest, to_arguments
from orchestrator.data.tokenizers.tokenizer import load_tokenizer
from orchestrator.spec.sections.data import TokenizerSpec


def write_lines(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_from_text_to_shown_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "x.jsonl", ["def first(): pass", "-- second"] * 50)
    train = ["data", "train-tokenizer", "x.jsonl", "--output", "t.json", "--vocab-size"]
    assert main([*train, "300"]) == 0
    few = capfd.readouterr().out
    assert main([*train, "260", "--overwrite"]) == 0
    assert " of the 300 requested: each word of the text is a token already; more text gives more\n" in few
    assert capfd.readouterr().out == "wrote t.json: 260 tokens\n"
    arguments = ["--tokenizer-type", "huggingface", "--tokenizer-path", "t.json", "--append-eod", "--workers", "1"]
    assert main(["data", "tokenize", "x.jsonl", "--output-prefix", "out/x", *arguments]) == 0
    said = capfd.readouterr().out
    assert "wrote out/x: 100 documents" in said
    assert "bytes" not in said
    monkeypatch.chdir("/")  # the tokenizer is found from any folder
    assert main(["data", "inspect", str(tmp_path / "out/x"), "--show", "2"]) == 0
    shown = capfd.readouterr().out
    assert "--- document 0\ndef first(): pass<|endoftext|>\n--- document 1\n-- second<|endoftext|>\n" in shown


def test_the_path_of_a_tokenizer_tells_its_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], corpus: Path, bpe: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = []
    renamed = tmp_path / "renamed.json"  # as `train-tokenizer --output` may call it
    renamed.write_bytes(bpe.read_bytes())
    for name, path in (("file", bpe), ("folder", bpe.parent), ("renamed", renamed)):
        assert main(["data", "tokenize", str(corpus), "--output-prefix", name, "--tokenizer-path", str(path)]) == 0
        assert read_manifest(Path(name)).tokenizer.type == "huggingface"
        capfd.readouterr()
        assert main(["data", "inspect", name, "--show", "1", "--tokenizer-path", str(path), "--json"]) == 0
        shown.append(json.loads(capfd.readouterr().out)["shown"])
    assert shown[0] == shown[1] == shown[2] != [""]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ["--tokenizer-path", "corpus.json"],
            "name it with --tokenizer-type: huggingface (tokenizer.json or its folder)",
        ),
        (["--tokenizer-path", "."], "name it with --tokenizer-type: huggingface"),
        (["--tokenizer-type", "byte_level", "--tokenizer-path", "tokenizer.json"], "byte_level tokenizer has no files"),
        (["--tokenizer-merges", "merges.txt"], "--tokenizer-merges is for gpt2_bpe"),
        (["--tokenizer-keep-case"], "--tokenizer-keep-case is for wordpiece, but the tokenizer is byte_level"),
        (
            ["--tokenizer-path", "words.lst"],
            "--tokenizer-path words.lst does not exist (looked for as {here}/words.lst)",
        ),
        (["--tokenizer-path", "gone/vocab.txt"], "(looked for as {here}/gone/vocab.txt); wordpiece needs a vocab.txt"),
        (["--tokenizer-path", "gone/x.model"], "sentencepiece needs a .model file"),
        (["--tokenizer-path", "gone/vocab.json"], "gpt2_bpe needs a vocab.json"),
    ],
)
def test_tokenizers_that_are_refused(
    options: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    corpus: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("corpus.json").write_text('{"text": "no tokenizer"}')
    assert main(["data", "tokenize", str(corpus), "--output-prefix", "x", *options]) == 2
    assert said.format(here=tmp_path) in capfd.readouterr().err
    assert not (tmp_path / "x.idx").exists()


def test_json(tmp_path: Path, capfd: pytest.CaptureFixture[str], tokenize: Any, corpus: Path) -> None:
    prefix = tokenize(corpus)
    capfd.readouterr()
    assert main(["data", "inspect", str(prefix), "--json"]) == 0
    described = json.loads(capfd.readouterr().out)
    assert (described["documents"], described["dtype"]) == (300, "uint16")
    assert described["manifest"]["tokenizer"]["type"] == "byte_level"
    assert main(["data", "inspect", str(prefix), "--show", "1", "--json"]) == 0
    assert len(json.loads(capfd.readouterr().out)["shown"]) == 1
    assert main(["data", "tokenize", str(corpus), "--output-prefix", str(tmp_path / "j"), "--json"]) == 0
    written = json.loads(capfd.readouterr().out)
    assert written["datasets"][0]["documents"] == 300
    assert main(["data", "tokenize", str(corpus), "--output-prefix", str(tmp_path / "j"), "--json"]) == 2
    failed = json.loads(capfd.readouterr().out)
    assert (failed["error"], failed["exit_code"]) == ("UserError", 2)
    assert "exists already" in failed["message"]


@pytest.mark.parametrize("command", ["tokenize", "train-tokenizer", "inspect"])
def test_help_has_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", command, "--help"]) == 0
    assert f"Example: orchestrator data {command}" in " ".join(capsys.readouterr().out.split())


def test_progress_on_a_terminal_and_elsewhere(tmp_path: Path, corpus: Path) -> None:
    environment = {**os.environ, "TERM": "xterm"}

    def tokenize(name: str, stderr: int) -> None:
        command = [sys.executable, "-m", "orchestrator.data", "tokenize", str(corpus), "--output-prefix", name]
        subprocess.run(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=stderr, check=True, env=environment)

    terminal, theirs = pty.openpty()
    tokenize("one", theirs)
    shown = os.read(terminal, 100_000)
    assert b"\x1b[" in shown
    assert b"MB/s" in shown
    assert b"tokens/s" in shown
    reader, writer = os.pipe()
    tokenize("two", writer)
    line = os.read(reader, 100_000).decode()
    assert re.fullmatch(r"tokenized \d+ tokens in [\d.]+ s, [\d.]+ MB/s, \d+k tokens/s\n", line)
    for descriptor in (terminal, theirs, reader, writer):
        os.close(descriptor)


def test_file_name_that_is_not_utf8(tmp_path: Path, program: Any) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    Path(os.fsdecode(path)).write_text("text")
    result = program("tokenize", tmp_path, "--output-prefix", "out", "--json")
    assert result.returncode == 0
    sources = json.loads((tmp_path / "out.manifest.json").read_text())["sources"]
    assert [source["path"] for source in sources] == [f"{tmp_path}/caf\\udce9.txt"]
    Path(os.fsdecode(path)).write_bytes(b"\xff")
    result = program("tokenize", tmp_path, "--output-prefix", "out", "--overwrite")
    assert result.returncode == 2
    assert "not UTF-8: byte 0xff at 0" in result.stderr


def test_wrong_usage_is_exit_code_2(program: Any) -> None:
    assert program("tokenize", "x").returncode == 2
    assert program("tokenize", "x", "--output-prefix", "y", "--workers", "0").returncode == 2
    assert program("train-tokenizer", "x", "--output", "y", "--vocab-size", "100").returncode == 2


def test_input_that_looks_like_an_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_lines(tmp_path / "-x.jsonl", ["text"])
    assert main(["data", "tokenize", "--output-prefix", "-y", "--", "-x.jsonl"]) == 0
    assert (tmp_path / "-y.idx").exists()


@pytest.mark.parametrize("module", ["numpy", "tokenizers"])
def test_missing_library_is_one_line(tmp_path: Path, module: str) -> None:
    write_lines(tmp_path / "x.jsonl", ["text"])
    code = (
        f"import sys, runpy; sys.modules[{module!r}] = None; runpy.run_module('orchestrator.data', run_name='__main__')"
    )
    command = [sys.executable, "-c", code, "tokenize", "x.jsonl", "--output-prefix", "y"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    message = f"error: data tokenize needs {module}: pip install 'megatron-orchestrator[train]'\n"
    assert result.stderr == message


class TestTrainTokenizer:
    def test_is_a_tokenizer(self, bpe: Path) -> None:
        tokenizer = load_tokenizer(TokenizerSpec(type="huggingface", path=str(bpe)))
        assert (tokenizer.vocab_size, tokenizer.eod) == (400, 0)
        text = "def naïve():\n\treturn 東京 — \x00"
        assert tokenizer.decode(tokenizer.encode(text)) == text

    def test_same_text_gives_the_same_tokenizer(self, bpe: Path, corpus: Path, tmp_path: Path) -> None:
        request = TrainTokenizerRequest(inputs=(corpus,), output=tmp_path / "again.json", vocab_size=400)
        run("train-tokenizer", request, as_json=False)
        assert (tmp_path / "again.json").read_bytes() == bpe.read_bytes()

    def test_a_folder_that_cannot_be_written(
        self, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fill_the_disk(monkeypatch, errno.EACCES)
        request = TrainTokenizerRequest(inputs=(corpus,), output=tmp_path / "t.json", vocab_size=300)
        with refused("unwritable_folder", tmp_path):
            run("train-tokenizer", request, as_json=False)

    def test_refusals(self, tmp_path: Path, corpus: Path) -> None:
        def train(**options: Any) -> None:
            settings = {"inputs": (corpus,), "output": tmp_path / "t.json", "vocab_size": 300, **options}
            run("train-tokenizer", TrainTokenizerRequest(**settings), as_json=False)

        bad = tmp_path / "bad.jsonl"
        bad.write_text('{"text": "a"}\nnot json\n')
        with refused("wrong_record", "bad.jsonl:2"):
            train(inputs=(bad,))
        train(inputs=(bad,), on_error="skip")
        with refused("output_exists", "t.json"):
            train()
        train(overwrite=True)
        with refused("output_is_folder", tmp_path, "--output"):
            train(output=tmp_path)
        with refused("output_is_standard_output", "--output -"):
            train(output=Path("-"))
        (tmp_path / "empty.txt").write_text("")
        with refused("no_text"):
            train(inputs=(tmp_path / "empty.txt",), output=tmp_path / "none.json")
        assert not (tmp_path / "none.json").exists()


class TestInspect:
    def test_without_a_manifest(self, tokenize: Any, corpus: Path, program: Any) -> None:
        prefix = tokenize(corpus)
        manifest_path(prefix).unlink()
        result = program("inspect", prefix)
        assert result.returncode == 0
        assert "none: made by another tool" in result.stdout
        result = program("inspect", prefix, "--show", "1")
        assert (result.returncode, result.stderr.count("\n")) == (2, 1)
        assert "name its tokenizer with --tokenizer-type" in result.stderr
        result = program("inspect", prefix, "--show", "1", "--tokenizer-type", "byte_level")
        assert result.stdout.endswith("end 0\n")

    def test_with_the_wrong_tokenizer(self, tokenize: Any, corpus: Path, program: Any, bpe: Path) -> None:
        prefix = tokenize(corpus, tokenizer_type="huggingface", tokenizer_path=str(bpe))
        result = program("inspect", prefix, "--show", "9", "--tokenizer-type", "byte_level")
        assert result.returncode == 2
        assert "it was made with another one" in result.stderr

    def test_a_torn_index_is_wrong_input(self, tokenize: Any, corpus: Path, program: Any) -> None:
        prefix = tokenize(corpus)
        path = idx_path(prefix)
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        for options in ([], ["--show", "1"]):
            result = program("inspect", prefix, *options)
            assert (result.returncode, result.stdout, result.stderr.count("\n")) == (2, "", 1)
            assert result.stderr.startswith(f"error: {path} is torn: 300 sequences and 300 documents need ")
            assert result.stderr.endswith(f"it has {len(whole) - 1}. Tokenize again or copy it again\n")

    @pytest.mark.parametrize("show", [0, 1])
    def test_an_index_damaged_within_is_wrong_input(self, show: int, tokenize: Any, corpus: Path, program: Any) -> None:
        """Also where the damage is far behind what is shown."""
        prefix = tokenize(corpus)
        path = idx_path(prefix)
        content = bytearray(path.read_bytes())
        content[-16:-8] = (7).to_bytes(8, "little")
        path.write_bytes(content)
        result = program("inspect", prefix, "--show", show)
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr == (
            f"error: {path} is damaged: its document 298 begins with sequence 298, and the one after it with 7. "
            "Tokenize again or copy it again\n"
        )

    @pytest.mark.parametrize("changes", [None, {"image_size": 24, "patch_size": 8, "pooled_tokens": 0}])
    def test_damaged_manifest(self, changes: dict[str, int] | None, tokenize: Any, corpus: Path, program: Any) -> None:
        prefix = tokenize(corpus)
        path = manifest_path(prefix)
        path.write_text("{}" if changes is None else json.dumps({**json.loads(path.read_text()), **changes}))
        result = program("inspect", prefix)
        assert result.returncode == 2
        assert "is damaged or not a manifest" in result.stderr
        assert (len(result.stderr.splitlines()), "pydantic" in result.stderr) == (1, False)

    def test_a_tokenizer_that_is_none(self, tokenize: Any, corpus: Path, program: Any) -> None:
        options = ("--tokenizer-type", "huggingface", "--tokenizer-path", "${env:HOME}", "--show", "1")
        result = program("inspect", tokenize(corpus), *options)
        assert (result.returncode, len(result.stderr.splitlines())) == (2, 1)
        assert "Value error" not in result.stderr


@pytest.mark.parametrize(
    ("lower_case", "option"),
    [(True, ["--tokenizer-lower-case"]), (False, ["--tokenizer-keep-case"]), (None, [])],
)
def test_the_case_that_is_asked_for_reaches_the_program(
    lower_case: bool | None, option: list[str], tmp_path: Path
) -> None:
    request = TokenizeRequest(inputs=(tmp_path,), output_prefix=tmp_path / "data", tokenizer_lower_case=lower_case)
    assert [each for each in to_arguments(request) if each.endswith("-case")] == option
