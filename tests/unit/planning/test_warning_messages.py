"""What warnings say: every other test of a warning asks for its code, and the paths that it points at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.refusals import let_nothing_be_written
from support.this_machine import Gpus, Libraries

from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.warnings import judge
from tests.unit.planning.test_warnings import LARGE

LONG = {"model": {**LARGE, "num_layers": 4}, "schedule": {"train_iters": 100_000}}

MESSAGES: list[tuple[str, str, dict[str, Any]]] = [
    (
        "train_step_missing",
        "module json.decoder.steps was not found from here",
        {"runtime": {"train_step": "json.decoder.steps:Loss"}},
    ),
    (
        "cache_unwritable",
        "/proc/version/index cannot be written from here: /proc/version is no folder",
        {"data": {"random_tokens": False, "blend": [{"path": "d"}], "cache_dir": "/proc/version/index"}},
    ),
    ("transformer_engine_missing", "it is not installed here", {"runtime": {"cpu_offloading_num_layers": 2}}),
    (
        "python_missing",
        "python-of-mine is not a program that this machine can run",
        {"launch": {"python": "python-of-mine"}},
    ),
    (
        "variable_unset",
        "NOWHERE is not set here: without it where the job runs, no rank starts",
        {"launch": {"env": {"A": "${env:NOWHERE}"}}},
    ),
    (
        "notification",
        "/nowhere/tell is not a program that this machine can run",
        {"notifications": {"command": ["/nowhere/tell"]}},
    ),
    ("notification", "HOOKK is not set here", {"notifications": {"webhook": "${env:HOOKK}"}}),
    ("notification", "is written in the spec", {"notifications": {"webhook": "https://chat.example/T0K3N"}}),
    (
        "variable_unset",
        "NOWHERE is not set here: without it where the job runs, nothing is sent",
        {"tracking": {"uri": "https://${env:NOWHERE}"}},
    ),
    ("tracker_missing", "wandb is not installed here", {"tracking": {"wandb": {}}}),
    ("dtype", "V100 does not support bf16", {"launch": {"gpu": "V100"}}),
    ("gpu_memory", "memory does not fit: a rank takes", {"model": LARGE, "launch": {"gpu": None}}),
    ("gpu_assumed", "nothing says which GPUs this will run on: H100 is assumed", {"launch": {"gpu": None}}),
    ("work_at_risk", "a crash loses up to", LONG),
    (
        "saved_at_the_end_only",
        "save_interval 200000 is never reached in 100000 steps: the only checkpoint is the one at the end, after",
        {**LONG, "checkpoint": {"save_interval": 200_000}},
    ),
    (
        "tensor_parallel_across_nodes",
        "span machines of 2 GPUs",
        {"parallelism": {"tensor_model_parallel_size": 4}, "launch": {"nodes": 2, "gpus_per_node": 2}},
    ),
    ("no_weights", "no checkpoint and no run at", {"checkpoint": {"pretrained": "nowhere"}}),
]


def said(make_job: Any, code: str, sections: dict[str, Any]) -> list[str]:
    plan = make_plan(make_job(**{**sections, "launch": {"gpu": "H100", **sections.get("launch", {})}}))
    return [each.message for each in judge(plan, forecast(plan), None).warnings if each.code == code]


@pytest.mark.parametrize(("code", "words", "sections"), MESSAGES)
def test_what_a_warning_says(
    code: str,
    words: str,
    sections: dict[str, Any],
    make_job: Any,
    gpus: Gpus,
    libraries: Libraries,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("NOWHERE", "HOOKK"):
        monkeypatch.delenv(name, raising=False)
    libraries.missing("transformer_engine", "wandb")
    if code == "transformer_engine_missing":
        gpus.are(["NVIDIA H100 80GB HBM3"])
    messages = said(make_job, code, sections)
    assert any(words in message for message in messages), messages


def test_what_is_said_of_a_folder_that_is_somebody_elses(
    make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def message(folder: Path) -> str:
        data = {"random_tokens": False, "blend": [{"path": "d"}], "cache_dir": str(folder)}
        [message] = said(make_job, "cache_unwritable", {"data": data})
        return message

    let_nothing_be_written(monkeypatch)
    assert message(tmp_path).endswith("it is not writable")
    assert message(tmp_path / "not" / "yet").endswith(f"it does not exist, and {tmp_path} is not writable")
