"""`orchestrator data index`: what it builds and says, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.indexed_files import write_indexed

from orchestrator.cli.main import main

JOB: dict[str, Any] = {
    "name": "small",
    "model": {"preset": "gpt-tiny", "seq_length": 32},
    "batch": {"micro_batch_size": 2, "global_batch_size": 8},
    "optimizer": {"lr": 1e-3},
    "schedule": {"train_iters": 50},
}


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """index(data, *options) -> exit code, standard output and standard error of `orchestrator data index`."""
    monkeypatch.chdir(tmp_path)

    def call(data: dict[str, Any], *options: str, **sections: Any) -> tuple[int, str, str]:
        (tmp_path / "job.yaml").write_text(json.dumps({**JOB, "data": data, **sections}))
        code = main(["data", "index", "job.yaml", *options])
        said = capfd.readouterr()
        return code, said.out, said.err

    return call


def test_the_index_holds_what_was_planned(index: Any, tmp_path: Path) -> None:
    books = write_indexed(tmp_path / "books", [50] * 100)
    web = write_indexed(tmp_path / "web", [70] * 300)
    data = {"blend": [3, books, 1, web], "split": "9,1,0", "cache_dir": "cache"}
    code, out, err = index(data, "--json", evaluation={"eval_interval": 10, "eval_iters": 2})
    assert code == 0, err
    answer = json.loads(out)
    assert Path(answer["folder"]).parent == Path("cache")
    assert answer["built"] == len(list((tmp_path / "cache").rglob("*.npy"))) == 16
    assert [each["name"] for each in answer["sets"]] == ["train", "validation"]
    for each in answer["sets"]:
        planned = answer["planned"][each["part"]]
        assert each["samples"] == planned["samples"]
        for source, row in zip(each["sources"], planned["sources"], strict=True):
            assert {key: source[key] for key in ("path", "samples", "tokens_held", "documents")} == {
                key: row[key] for key in ("path", "samples", "tokens_held", "documents")
            }
    train, planned = answer["sets"][0], answer["planned"]["train"]["sources"]
    assert [source["samples"] for source in train["sources"]] == [300, 100]
    assert train["sources"][0]["second_epoch_at"] // 8 + 1 == planned[0]["second_epoch_step"]
    code, out, err = index(data, evaluation={"eval_interval": 10, "eval_iters": 2})
    assert code == 0, err
    lines = {line.split()[0]: line.split()[1:] for line in out.splitlines() if line.startswith(str(tmp_path))}
    assert lines[web] == ["4", "4", "128", "2,100", "0.06", "0.06"]  # the last table is that of validation
    assert "Index for train: 400 samples of 32 tokens" in out
    assert "nothing to build: found in cache/" in out


def test_what_cannot_be_indexed(index: Any, tmp_path: Path) -> None:
    code, _, err = index({"random_tokens": True}, model={**JOB["model"], "vocab_size": 261})
    assert (code, "random tokens have no index" in err) == (2, True)
    code, _, err = index({"blend": ["gone"]})
    assert (code, "no indexed data set at gone" in err) == (2, True)
    (tmp_path / "text.txt").write_text("some text")
    code, _, err = index({"blend": [{"path": "made", "text": "text.txt"}]})
    assert (code, "not there yet: made; `orchestrator data prepare` makes" in err) == (2, True)
    single = write_indexed(tmp_path / "single", [5000])
    code, _, err = index({"blend": [single], "split": "4,6,0"})
    assert code == 2
    assert "the train part of" in err
    assert "is empty: 1 documents, split 4,6,0" in err
    assert "Traceback" not in err
