"""The jobs of jobs.yaml, as files in a folder, with the data that they name."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from support.chats import write_conversations
from support.examples import write_mnli, write_race

from baseline.packing import kept, unpack
from orchestrator.data.__main__ import run
from orchestrator.data.request import TokenizeRequest

_TABLE = Path(__file__).with_name("jobs.yaml")


@dataclass(frozen=True)
class RecordedJob:
    """One job of the table."""

    family: str
    name: str
    keys: Mapping[str, Any]
    """Keys of its spec, with dots."""
    on_cpu: Mapping[str, Any]
    """Those that go over them on the CPU."""
    trains: bool
    cluster: str
    array: tuple[str, ...]

    @property
    def file(self) -> str:
        """Its spec, in the folder."""
        return f"{self.name}.yaml"

    @property
    def overrides(self) -> list[str]:
        """What is written behind --set to have it on the CPU."""
        return [f"{key}={value}" for key, value in self.on_cpu.items()]

    @property
    def text(self) -> str:
        """Its spec."""
        return spec_text(self.name, self.keys)


def spec_text(name: str, keys: Mapping[str, Any]) -> str:
    """The spec of a job with these keys; null takes one back."""
    spec: dict[str, Any] = {"name": name}
    for key, value in keys.items():
        if value is None:
            continue
        *sections, last = key.split(".")
        section = spec
        for each in sections:
            section = section.setdefault(each, {})
        section[last] = copy.deepcopy(value)
    return yaml.safe_dump(spec, sort_keys=False)


def all_jobs() -> list[RecordedJob]:
    """Every job of the table, in its order."""
    table = yaml.safe_load(_TABLE.read_text())
    return [_job(table, family, name) for family, described in table["families"].items() for name in described["jobs"]]


def _job(table: Mapping[str, Any], family: str, name: str) -> RecordedJob:
    described = table["families"][family]
    keys = {**table["base"], **described["own"], **described["jobs"][name]}
    trains, cluster, array = keys.pop("trains", True), keys.pop("cluster", "lab"), keys.pop("array", ())
    on_cpu = {key: value for key, value in table["cpu"].items() if key not in keys}
    return RecordedJob(family, f"{family}-{name}", keys, on_cpu, trains, cluster, tuple(array))


def write_folder(folder: Path) -> None:
    """The specs and what they name, in a folder that commands are then run in."""
    for job in all_jobs():
        (folder / job.file).write_text(job.text)
    write_clusters(folder)
    make_data(folder / "data")
    unpack(kept("gpt"), folder)


def write_clusters(folder: Path) -> None:
    """The profiles of clusters."""
    (folder / "clusters").mkdir()
    for name, profile in yaml.safe_load(_TABLE.read_text())["clusters"].items():
        (folder / "clusters" / f"{name}.yaml").write_text(yaml.safe_dump({"name": name, **profile}))


def make_data(data: Path) -> None:
    """The same bytes on every machine, as data sets of bytes and as the files of tasks."""
    data.mkdir()
    write_mnli(data / "mnli.tsv", 60)
    write_mnli(data / "mnli-dev.tsv", 13, seed=2)
    write_race(data / "race", 12)
    for number, name in enumerate(("one", "two", "sentences")):
        (data / f"{name}.jsonl").write_text(_documents(number))
    write_conversations(data / "chats.jsonl", {"a": "AAA", "b": "BBB"})
    kinds = {"one": "append_eod", "two": "append_eod", "sentences": "split_sentences", "chats": "chat"}
    for name, kind in kinds.items():
        options: dict[str, Any] = {kind: True}
        request = TokenizeRequest((data / f"{name}.jsonl",), output_prefix=data / name, workers=1, **options)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            assert run("tokenize", request, as_json=True) == 0


def _documents(seed: int) -> str:
    """Forty documents of made-up words, one a line."""
    draw = random.Random(seed)
    words = ["".join(draw.choice("aeilmnorstu") for _ in range(draw.randint(2, 7))) for _ in range(60)]

    def sentence() -> str:
        return f"{' '.join(draw.choice(words) for _ in range(draw.randint(4, 12))).capitalize()}."

    documents = [" ".join(sentence() for _ in range(draw.randint(2, 6))) for _ in range(40)]
    return "".join(json.dumps({"text": document}) + "\n" for document in documents)
