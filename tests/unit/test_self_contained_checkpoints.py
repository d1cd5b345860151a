"""A checkpoint by itself says what it holds, with its tokenizer, and nothing in it decides what is run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.refused import refused
from support.training import make_run, tiny_job

from orchestrator.data.tokenizers.vocabulary import content_hash
from orchestrator.run_directory.checkpoints.commit_markers import file_record, write_commit
from orchestrator.self_contained_checkpoints import files_to_carry, job_of, open_weights, run_of
from orchestrator.spec.job import JobSpec

VOCABULARY = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3, "end": 4}


def tokenizer(kind: str, folder: Path) -> dict[str, Any]:
    """The section of a tokenizer of each kind, and its files."""
    folder.mkdir()
    (folder / "own.txt").write_text("[UNK]\n[PAD]\n[CLS]\n[SEP]\n[MASK]\na\n")
    (folder / "vocab-of-mine.json").write_text(json.dumps(VOCABULARY))
    (folder / "merges-of-mine.txt").write_text("a b\n")
    (folder / "spm.model").write_bytes(b"not looked into here")
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": VOCABULARY}}))
    (folder / "mine.json").write_text(json.dumps({"model": {"type": "BPE", "vocab": VOCABULARY}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "end"}))
    sections: dict[str, dict[str, Any]] = {
        "byte_level": {},
        "wordpiece": {"path": str(folder / "own.txt")},
        "gpt2_bpe": {"path": str(folder / "vocab-of-mine.json"), "merges": str(folder / "merges-of-mine.txt")},
        "sentencepiece": {"path": str(folder / "spm.model")},
        "huggingface": {"path": str(folder)},
        "huggingface, named otherwise": {"path": str(folder / "mine.json")},
    }
    return {"type": kind.partition(",")[0], **sections[kind]}


def save(job: JobSpec, path: Path) -> Path:
    path.mkdir(parents=True)
    carried = files_to_carry(job)
    for name, content in carried.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(content)
    write_commit(
        path, iteration=1, consumed_samples=8, files={name: file_record(path / name) for name in carried}, layout={}
    )
    return path


@pytest.mark.parametrize(
    "kind", ["byte_level", "wordpiece", "gpt2_bpe", "sentencepiece", "huggingface", "huggingface, named otherwise"]
)
def test_the_tokenizer_is_the_same_wherever_the_folder_lies(kind: str, tmp_path: Path) -> None:
    job = tiny_job("job", data={"tokenizer": tokenizer(kind, tmp_path / "files")})
    before = content_hash(job.data.tokenizer)
    path = save(job, tmp_path / "runs" / "checkpoints" / "iter_0000001")
    shutil.rmtree(tmp_path / "files")
    elsewhere = tmp_path / "elsewhere" / "any name"
    elsewhere.parent.mkdir()
    path.rename(elsewhere)
    found = open_weights(elsewhere)
    assert found.run is None
    assert content_hash(found.job.data.tokenizer) == before
    assert found.job.model == job.model


def test_a_run_reads_the_tokenizer_of_its_checkpoints(tmp_path: Path) -> None:
    job = tiny_job("job", data={"tokenizer": tokenizer("huggingface", tmp_path / "files")})
    run = make_run(tmp_path, job)
    assert open_weights(run.path).job == job
    save(job, run.checkpoint(1))
    shutil.rmtree(tmp_path / "files")
    found = open_weights(run.path)
    assert found.run == run
    assert found.job.launch == job.launch
    assert found.job.data.tokenizer.path == str(run.checkpoint(1) / "tokenizer" / "tokenizer.json")
    assert run_of(run.checkpoint(1)) == run
    assert run_of(tmp_path / "iter_0000001") is None


def test_what_a_checkpoint_names_is_not_run(tmp_path: Path) -> None:
    """Its spec may come from anywhere: programs, templates, environments and steps in it stay where they are."""
    job = tiny_job(
        "job",
        launch={"python": "/bin/evil", "template": "evil.j2", "env": {"LD_PRELOAD": "evil.so"}},
        runtime={"train_step": "evil:Step", "train_step_arguments": {"a": 1}, "device": "cuda"},
        checkpoint={"pretrained": "/evil"},
        tracking={"mlflow": True, "uri": "http://evil"},
    )
    found = job_of(save(job, tmp_path / "checkpoint"))
    assert "evil" not in found.model_dump_json()
    assert found.runtime.device == "auto"
    assert found.model == job.model


def test_an_older_checkpoint_is_read_with_its_run(tmp_path: Path) -> None:
    job = tiny_job("job")
    run = make_run(tmp_path, job)
    run.checkpoint(1).mkdir(parents=True)
    write_commit(run.checkpoint(1), iteration=1, consumed_samples=8, files={})
    assert job_of(run.checkpoint(1)).model == job.model
    alone = shutil.copytree(run.checkpoint(1), tmp_path / "alone")
    with refused("checkpoint_without_spec", "job.json"):
        open_weights(alone)
    with refused("neither_run_nor_checkpoint"):
        open_weights(tmp_path)
