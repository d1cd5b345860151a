"""What a job asks of its surroundings: doubts, found without running anything of a user's."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.planning import forecast as forecasting
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.verdict import judge

EXPLODES = "raise RuntimeError('a module was imported')\n"


def doubts(make_job: Any, **sections: Any) -> dict[str, str]:
    sections["launch"] = {"gpu": "H100", **sections.get("launch", {})}
    plan = make_plan(make_job(**sections))
    return {each.paths[0]: each.message for each in judge(plan, forecast(plan), None).doubts}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package whose modules must not run."""
    folder = tmp_path / "code" / "my_package"
    folder.mkdir(parents=True)
    for name in ("__init__", "steps"):
        (folder / f"{name}.py").write_text(EXPLODES)
    monkeypatch.chdir(tmp_path)
    return folder.parent


FOUND = {"found": ("my_package.steps", True), "no-module": ("my_package.stpes", False), "none": ("mypackage", False)}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize("where", ["working-directory", "python-path", "variable", "not-named"])
def test_a_train_step_is_looked_for(
    make_job: Any, package: Path, monkeypatch: pytest.MonkeyPatch, name: str, where: str
) -> None:
    module, there = FOUND[name]
    launch: dict[str, Any] = {}
    if where == "working-directory":
        monkeypatch.chdir(package)
    if where == "python-path":
        launch = {"env": {"PYTHONPATH": f"/nowhere:{package}"}}
    if where == "variable":
        monkeypatch.setenv("MY_CODE", str(package))
        launch = {"env": {"PYTHONPATH": "${env:MY_CODE}"}}
    said = doubts(make_job, launch=launch, runtime={"train_step": f"{module}:Loss"})
    assert ("runtime.train_step" in said) == (not there or where == "not-named")
    assert not any(loaded.startswith("my_package") for loaded in sys.modules)


def test_the_program_itself_is_no_module_of_a_step(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed command has no specification that Python could give."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert (
        "there is no module __main__" in doubts(make_job, runtime={"train_step": "__main__:Loss"})["runtime.train_step"]
    )


@pytest.mark.parametrize("module", ["json", "json.decoder", "orchestrator.runtime.steps.gpt", "sys"])
def test_installed_modules_are_found(make_job: Any, module: str) -> None:
    assert "runtime.train_step" not in doubts(make_job, runtime={"train_step": f"{module}:Loss"})


def test_a_module_has_no_modules_inside(make_job: Any) -> None:
    said = doubts(make_job, runtime={"train_step": "json.decoder.steps:Loss"})
    assert "there is no module json.decoder.steps, looked for from here" in said["runtime.train_step"]


WITH_EXPERTS = {"num_experts": 4, "add_bias_linear": False}


@pytest.mark.parametrize(
    ("path", "sections"),
    [
        ("runtime.cpu_offloading_num_layers", {"runtime": {"cpu_offloading_num_layers": 2}}),
        ("model.moe_grouped_gemm", {"model": {**WITH_EXPERTS, "moe_grouped_gemm": True}}),
        ("precision.fp8", {"precision": {"dtype": "bf16", "fp8": {}}}),
    ],
)
def test_transformer_engine_may_be_missing(
    make_job: Any, monkeypatch: pytest.MonkeyPatch, path: str, sections: dict[str, Any]
) -> None:
    asked = {**sections, "runtime": sections.get("runtime", {})}
    found: list[str] = []
    monkeypatch.setattr(forecasting.importlib.util, "find_spec", lambda name: found.append(name))
    assert "it is not installed here" in doubts(make_job, **asked)[path]
    assert found == ["transformer_engine"]
    named = {**asked, "runtime": {**asked["runtime"], "layers": "transformer_engine"}}
    assert path not in doubts(make_job, **named)
    monkeypatch.setattr(forecasting.importlib.util, "find_spec", lambda name: importlib.util)
    assert path not in doubts(make_job, **asked)
    assert not doubts(make_job, model=WITH_EXPERTS)


def test_who_is_to_be_told_is_looked_for(make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = tmp_path / "tell.sh"
    tell.write_text("#!/bin/sh\n")
    monkeypatch.setenv("HOOK", "https://chat.example/T0K3N")
    monkeypatch.delenv("HOOKK", raising=False)
    said = doubts(make_job, notifications={"command": [str(tell)], "webhook": "${env:HOOKK}"})
    assert said["notifications.command"] == f"{tell} is no program that can be run from here"
    assert said["notifications.webhook"].startswith("HOOKK is not set here")
    tell.chmod(0o755)
    said = doubts(make_job, notifications={"command": [str(tell)], "webhook": "${env:HOOK}"})
    assert not [path for path in said if path.startswith("notifications")]
    said = doubts(make_job, notifications={"webhook": "https://chat.example/T0K3N"})
    assert said["notifications.webhook"].startswith("is written out")
    assert "T0K3N" not in str(said)


def test_trackers_are_looked_for(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {"tracking": {"tensorboard": True, "wandb": {}}}
    assert not [path for path in doubts(make_job, **asked) if path.startswith("tracking")]
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "wandb" else found(name))
    said = doubts(make_job, **asked)
    assert [path for path in said if path.startswith("tracking")] == ["tracking.wandb"]
    assert said["tracking.wandb"].startswith("wandb is not installed here")
