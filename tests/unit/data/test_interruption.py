from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.datasets import files_of
from support.refusals import refuse
from support.refused import refused

from orchestrator.data.__main__ import run
from orchestrator.data.indexed_dataset.header import bin_path, idx_path
from orchestrator.data.request import TokenizeRequest, to_arguments
from orchestrator.errors import DataIsHeld, JobError


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory, corpus: Path) -> Path:
    """About 3 MB of JSON lines: more shards than the commits that a test waits for."""
    path = tmp_path_factory.mktemp("big") / "big.jsonl"
    content = corpus.read_bytes()
    path.write_bytes(content * (3_200_000 // len(content)))
    return path


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, big: Path, bpe: Path) -> tuple[bytes, bytes]:
    """What a tokenization of it makes that nothing interrupts."""
    request = tokenization(big, bpe, tmp_path_factory.mktemp("whole") / "data", workers=1)
    assert run("tokenize", request, as_json=False) == 0
    return files_of(request.output_prefix)


def tokenization(big: Path, bpe: Path, prefix: Path, **options: Any) -> TokenizeRequest:
    return TokenizeRequest(
        inputs=(big,),
        output_prefix=prefix,
        tokenizer_type="huggingface",
        tokenizer_path=str(bpe),
        append_eod=True,
        **options,
    )


WAITS = """
import os, sys, time
from pathlib import Path
here = Path(__file__).parent
if "spawn_main" in str(sys.orig_argv) and (here / "slow-workers").exists():
    import multiprocessing.spawn, signal
    def prepare(data):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what it has to say of SIGINT, it can say
        (here / f"worker-{os.getpid()}").touch()
        while not (here / "go").exists():
            time.sleep(0.005)
        os._exit(0)
    multiprocessing.spawn.prepare = prepare
if "orchestrator.data" in sys.orig_argv:
    from orchestrator.data.indexed_dataset.output import PartialOutput
    commit_at_once = PartialOutput.commit
    def commit(self):
        commit_at_once(self)
        count = (self.folder / "commits.jsonl").read_bytes().count(b"\\n")
        while count >= int(os.environ["COMMITS"]) and not (here / "go").exists():
            time.sleep(0.005)
    PartialOutput.commit = commit
"""


def start(
    request: TokenizeRequest, commits: int = 1, through: tuple[str, ...] = ("orchestrator.data",), **options: Any
) -> subprocess.Popen[bytes]:
    """Start a tokenization that goes no further than so many commits before it is `let_go`."""
    folder = request.output_prefix.parent / "held"
    folder.mkdir(exist_ok=True)
    (folder / "sitecustomize.py").write_text(WAITS)
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "COMMITS": str(commits)}
    command = [sys.executable, "-m", *through, "tokenize", *to_arguments(request)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, **options)


def let_go(folder: Path) -> None:
    (folder / "held" / "go").touch()


def wait_for_commits(folder: Path, count: int = 1) -> None:
    commits = folder / "data.partial" / "commits.jsonl"
    deadline = time.monotonic() + 120
    while not commits.exists() or commits.read_bytes().count(b"\n") < count:
        assert time.monotonic() < deadline, "no shard was finished"
        time.sleep(0.002)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, big: Path, bpe: Path) -> Iterator[TokenizeRequest]:
    """A tokenization that is stopped after a commit."""
    request = tokenization(big, bpe, tmp_path_factory.mktemp("stopped") / "data", workers=1, shard_size=1)
    process = start(request)
    try:
        wait_for_commits(request.output_prefix.parent)
        process.send_signal(signal.SIGSTOP)
        yield request
    finally:
        process.kill()
        process.communicate()


class KilledError(BaseException):
    """Stands for the end of the process."""


class TestInterruption:
    @pytest.fixture
    def request_(self, big: Path, bpe: Path, tmp_path: Path) -> TokenizeRequest:
        return tokenization(big, bpe, tmp_path / "data", workers=2, shard_size=1)

    @pytest.fixture
    def alone(self, request_: TokenizeRequest) -> TokenizeRequest:
        """Without workers, for what is the same without any."""
        return replace(request_, workers=1)

    @pytest.fixture
    def unfinished(self, alone: TokenizeRequest, stopped: TokenizeRequest, tmp_path: Path) -> TokenizeRequest:
        """The same after a commit, as a process leaves it that is killed there."""
        shutil.copytree(stopped.output_prefix.with_name("data.partial"), tmp_path / "data.partial")
        return alone

    def test_killed_twice_and_continued(
        self, request_: TokenizeRequest, alone: TokenizeRequest, whole: tuple[bytes, bytes], tmp_path: Path, capfd: Any
    ) -> None:
        commits = tmp_path / "data.partial" / "commits.jsonl"
        kept = 0
        for request in (request_, alone):
            process = start(request, kept + 1)
            wait_for_commits(tmp_path, kept + 1)
            workers = psutil.Process(process.pid).children()
            process.kill()
            process.communicate()
            assert process.returncode == -signal.SIGKILL
            assert not idx_path(tmp_path / "data").exists()
            _, alive = psutil.wait_procs(workers, timeout=120)
            assert not alive, "workers outlived their parent"
            kept = commits.read_bytes().count(b"\n")
        # What was written after the last commit is half-done; more of it must not matter.
        with open(tmp_path / "data.partial" / "0.bin", "ab") as file:
            file.write(b"torn")
        with open(commits, "ab") as file:
            file.write(b'{"keys": [{"tok')
        # How many workers there are does not decide the bytes: it may change.
        assert run("tokenize", alone, as_json=False) == 0
        assert "continuing from the last finished shard" in capfd.readouterr().err
        assert files_of(tmp_path / "data") == whole
        assert not (tmp_path / "data.partial").exists()

    def test_a_killed_command_leaves_no_program_behind(self, request_: TokenizeRequest, tmp_path: Path) -> None:
        process = start(request_, through=("orchestrator", "data"))
        wait_for_commits(tmp_path)
        programs = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        _, alive = psutil.wait_procs(programs, timeout=30)
        let_go(tmp_path)
        process.communicate()
        assert programs
        assert not alive

    def test_full_disk(
        self, request_: TokenizeRequest, alone: TokenizeRequest, whole: tuple[bytes, bytes], tmp_path: Path
    ) -> None:
        limit = (1_000_000, 1_000_000)
        process = start(request_, 100, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit))
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        message = errors.decode()
        assert "Traceback" not in message
        assert "data.partial: File too large. Finished shards are kept: make room and run the same command" in message
        assert not bin_path(tmp_path / "data").exists()
        assert run("tokenize", alone, as_json=False) == 0
        assert files_of(tmp_path / "data") == whole

    def test_interrupted_by_a_person(self, request_: TokenizeRequest, tmp_path: Path) -> None:
        process = start(request_, start_new_session=True)
        wait_for_commits(tmp_path)
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130
        assert b"Traceback" not in errors
        assert b"interrupted; finished shards are kept" in errors

    def test_interrupted_while_workers_start(self, request_: TokenizeRequest, tmp_path: Path) -> None:
        held = tmp_path / "held"
        held.mkdir()
        (held / "slow-workers").touch()
        process = start(request_, start_new_session=True)
        deadline = time.monotonic() + 120
        while len(list(held.glob("worker-*"))) < 2:
            assert time.monotonic() < deadline, "no workers"
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)
        let_go(tmp_path)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 130
        assert b"Traceback" not in errors

    def test_worker_that_dies(self, request_: TokenizeRequest, tmp_path: Path) -> None:
        process = start(request_)
        wait_for_commits(tmp_path)
        next(child for child in psutil.Process(process.pid).children() if "spawn_main" in str(child.cmdline())).kill()
        let_go(tmp_path)
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 1
        assert b"a worker process died (exit code -9" in errors
        assert b"Traceback" not in errors

    def test_second_writer_is_refused(self, stopped: TokenizeRequest) -> None:
        with refused("data_is_held", "data.partial", kind=DataIsHeld):
            run("tokenize", stopped, as_json=False)

    def test_other_options_are_not_mixed(
        self, unfinished: TokenizeRequest, whole: tuple[bytes, bytes], tmp_path: Path
    ) -> None:
        changed = replace(unfinished, append_eod=False)
        with refused("unfinished_output_differs", "data.partial", "end of documents"):
            run("tokenize", changed, as_json=False)
        # Neither shard size nor the treatment of errors decide the bytes: those may change.
        again = replace(unfinished, shard_size=5, on_error="skip")
        assert run("tokenize", again, as_json=False) == 0
        assert files_of(tmp_path / "data") == whole

    def test_killed_while_renaming(
        self, tokenize: Any, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected = files_of(tokenize(corpus, name="whole"))
        refuse(monkeypatch, "os.replace", KilledError(), lambda source, target: str(target).endswith(".idx"))
        with pytest.raises(KilledError):
            tokenize(corpus)
        monkeypatch.undo()
        assert bin_path(tmp_path / "data").exists()
        assert not idx_path(tmp_path / "data").exists()
        assert files_of(tokenize(corpus)) == expected
        assert not (tmp_path / "data.partial").exists()

    def test_committed_files_that_are_gone(self, unfinished: TokenizeRequest, tmp_path: Path) -> None:
        os.truncate(tmp_path / "data.partial" / "0.bin", 10)
        with refused("shard_shrank", "0.bin", "--overwrite", kind=JobError):
            run("tokenize", unfinished, as_json=False)
        shutil.rmtree(tmp_path / "data.partial")
