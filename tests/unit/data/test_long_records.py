"""Records that no memory holds, packed or not, and programs that are killed: told with the place, and without a
traceback."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from support.limits import set_limits
from support.refused import refused

from orchestrator.api.starts.data_preparation import refuse_killed
from orchestrator.data.input import sources
from orchestrator.data.request import TrainTokenizerRequest
from orchestrator.data.tasks.examples import read_lines
from orchestrator.data.tokenizers.training import train_tokenizer
from orchestrator.data.workers import ordered_map
from orchestrator.errors import JobError

Tokenize = Callable[..., Path]

GOOD = b'{"text": "a"}\n\n'
LONG = b'{"text": "' + b"x" * 70_000 + b'"}\n'
FILES = {
    "a.jsonl": (GOOD + LONG, ":3: "),
    "a.jsonl.gz": (GOOD + LONG, ":3: "),
    "a.jsonl.bz2": (GOOD + LONG, ":3: "),
    "a.jsonl.xz": (GOOD + LONG, ":3: "),
    "a.jsonl.zst": (GOOD + LONG, ":3: "),
    "blanks.jsonl": (b" " * 70_000, ":1: "),
    "a.txt": (b"x" * 70_000, ": "),
    "a.py.gz": (b"x" * 70_000, ": "),
}


def packed(name: str, content: bytes) -> bytes:
    for ending, library in {".gz": gzip, ".bz2": bz2, ".xz": lzma}.items():
        if name.endswith(ending):
            made: bytes = library.compress(content)
            return made
    return pytest.importorskip("zstandard").compress(content) if name.endswith(".zst") else content


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records may have 64 KiB, and are read in blocks of 4."""
    set_limits(monkeypatch, longest_record=1 << 16, chunk_of_text=1 << 12)


@pytest.mark.parametrize("name", FILES)
def test_a_record_that_is_too_long_is_named(name: str, tokenize: Tokenize, tmp_path: Path, short: None) -> None:
    content, place = FILES[name]
    path = tmp_path / name
    path.write_bytes(packed(name, content))
    for on_error in ("fail", "skip"):
        with refused("record_too_long", f"{path}{place}"):
            tokenize(path, on_error=on_error)


def test_learning_a_tokenizer_says_the_same(tmp_path: Path, short: None) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(GOOD + b" " * (sources.CHUNK_BYTES + 70_000))
    with refused("record_too_long", "a.jsonl:3"):
        train_tokenizer(TrainTokenizerRequest((path,), output=tmp_path / "t.json"))


def test_paragraphs_and_lines_of_a_text(tokenize: Tokenize, tmp_path: Path, short: None) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\n\n" + "line\n" * 20_000)
    assert tokenize(path, txt_documents="line").name == "data"
    with refused("record_too_long", "a.txt:", "paragraph"):
        tokenize(path, txt_documents="paragraph", name="other")
    path.write_text("a\n\n" + "line\n" * 10_000)
    assert tokenize(path, txt_documents="paragraph", name="other").name == "other"


def test_a_long_line_that_is_allowed_is_read(tokenize: Tokenize, tmp_path: Path, short: None) -> None:
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(GOOD + b'{"text": "' + b"x" * 60_000 + b'"}\n' + GOOD))
    assert (tmp_path / "data.bin") == tokenize(path).with_suffix(".bin")
    assert (tmp_path / "data.bin").stat().st_size == 2 * (60_000 + 2 + 3)


@pytest.mark.parametrize("ending", ["gz", "bz2", "xz", "zst"])
def test_a_decompression_bomb_uses_little_memory(ending: str, tmp_path: Path) -> None:
    """40 GB in a file of some megabytes, under a limit that would not hold two of them."""
    path = tmp_path / f"bomb.jsonl.{ending}"
    with open(path, "wb") as file:
        file.writelines(bomb(ending, 40))
    limited = (
        "import resource, sys\nresource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))\n"
        "from orchestrator.data.input import sources\nsources.LONGEST_RECORD = 1 << 26\n"
        "from orchestrator.data.__main__ import main\nsys.exit(main())\n"
    )
    arguments = ("tokenize", str(path), "--output-prefix", str(tmp_path / "made"), "--workers", "1")
    done = subprocess.run([sys.executable, "-c", limited, *arguments], capture_output=True, text=True, timeout=120)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False)
    assert f"{path}:1: this line has more than 64 MiB, decompressed" in done.stderr


def bomb(ending: str, gigabytes: int) -> Iterable[bytes]:
    """So many gigabytes of one letter: one compressed piece, repeated, as these formats allow."""
    piece = b"x" * (1 << 22)
    once = packed(f"x.{ending}", piece)
    return (once for _ in range(gigabytes << 8))


def test_a_table_that_memory_does_not_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenize: Tokenize) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x"] * 300}), path)
    batches = parquet.ParquetFile.iter_batches

    def second_fails(*arguments: Any, **options: Any) -> Any:
        yield next(batches(*arguments, **options))
        raise pyarrow.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", second_fails)
    with refused("record_out_of_memory", "a.parquet:257", kind=JobError):
        tokenize(path)


def test_a_value_of_a_table_that_is_too_long(tmp_path: Path, tokenize: Tokenize, short: None) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table({"text": ["x", "y" * 70_000]}), path)
    with refused("record_too_long", "a.parquet:2"):
        tokenize(path)


def test_a_line_of_a_task_that_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    set_limits(monkeypatch, longest_example=1 << 16)
    path = tmp_path / "a.tsv"
    path.write_bytes(b"a\n" + b"x" * 70_000)
    with refused("record_too_long", "a.tsv:2"):
        list(read_lines(path))


def starving(item: str) -> str:
    if item == "c":
        raise MemoryError
    if item == "d":
        os.kill(os.getpid(), signal.SIGKILL)
    return item


def build() -> Callable[[str], str]:
    return starving


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_without_memory_says_where(workers: int) -> None:
    with refused("record_out_of_memory", "FILE:c", kind=JobError):
        list(ordered_map(build, "abcde"[: 3 + workers - 1], workers, lambda item: f"FILE:{item}"))


def test_a_worker_that_was_killed_says_where() -> None:
    with refused("worker_died", "exit code -9", "FILE:d", kind=JobError):
        list(ordered_map(build, "abd", 2, lambda item: f"FILE:{item}"))


def test_a_command_whose_program_was_killed_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("x")
    words = ("data", "tokenize", "a.txt", "--output-prefix", "made", "--json")
    command = subprocess.Popen(
        [sys.executable, "-m", "orchestrator", *words], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
    end = time.monotonic() + 60
    while not (found := children.read_text().split()):
        assert time.monotonic() < end
        time.sleep(0.01)
    os.kill(int(found[0]), signal.SIGKILL)
    said, _ = command.communicate(timeout=60)
    assert command.returncode == 1
    assert "data tokenize was ended by SIGKILL" in json.loads(said)["message"]


def test_exit_codes_of_programs_that_end_themselves_are_theirs() -> None:
    for code in (0, 1, 2, 130):
        refuse_killed(code, "data prepare")
    with refused("data_preparation_killed", "SIGSEGV", kind=JobError):
        refuse_killed(-signal.SIGSEGV, "data prepare")
