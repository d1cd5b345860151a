"""What a job asks of its surroundings: warnings, found without running anything of a user's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from support.refusals import let_nothing_be_written
from support.this_machine import Gpus, Libraries

from orchestrator.errors import Problem
from orchestrator.planning.forecast import forecast
from orchestrator.planning.plan import make_plan
from orchestrator.planning.warnings import judge

EXPLODES = "raise RuntimeError('a module was imported')\n"


def warnings(make_job: Any, **sections: Any) -> dict[str, str | None]:
    """The code of each warning, by the path that it points at first."""
    return {path: each.code for path, each in problems(make_job, **sections).items()}


def problems(make_job: Any, **sections: Any) -> dict[str, Problem]:
    sections["launch"] = {"gpu": "H100", **sections.get("launch", {})}
    plan = make_plan(make_job(**sections))
    return {each.paths[0]: each for each in judge(plan, forecast(plan), None).warnings}


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a package whose modules must not run."""
    folder = tmp_path / "code" / "my_package"
    folder.mkdir(parents=True)
    for name in ("__init__", "steps"):
        (folder / f"{name}.py").write_text(f"{EXPLODES}class Loss: ...\n")
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
    said = warnings(make_job, launch=launch, runtime={"train_step": f"{module}:Loss"})
    assert ("runtime.train_step" in said) == (not there or where == "not-named")
    assert not any(loaded.startswith("my_package") for loaded in sys.modules)


def test_the_program_itself_is_no_module_of_a_step(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed command has no specification that Python could give."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    assert warnings(make_job, runtime={"train_step": "__main__:Loss"})["runtime.train_step"] == "train_step_missing"


INSTALLED = ("json:JSONDecoder", "json.decoder:JSONDecoder", "orchestrator.runtime.steps.gpt:NextToken", "sys:Loss")


@pytest.mark.parametrize("step", INSTALLED)
def test_installed_modules_are_found(make_job: Any, step: str) -> None:
    assert "runtime.train_step" not in warnings(make_job, runtime={"train_step": step})


def test_a_module_has_no_modules_inside(make_job: Any) -> None:
    said = warnings(make_job, runtime={"train_step": "json.decoder.steps:Loss"})
    assert said["runtime.train_step"] == "train_step_missing"


def test_a_class_is_looked_for_in_its_module(make_job: Any, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(package)
    steps = package / "my_package" / "steps.py"
    for source, there in (("class Loss: ...", True), ("class Loss2: ...", False), ("from os import *", True)):
        steps.write_text(f"{EXPLODES}{source}\n")
        said = warnings(make_job, runtime={"train_step": "my_package.steps:Loss"}).get("runtime.train_step")
        assert said == (None if there else "train_step_missing")


def test_the_folder_of_the_indices_is_looked_at(make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(folder: Path) -> str | None:
        return warnings(make_job, data={"blend": [{"path": "d"}], "cache_dir": str(folder)}).get("data.cache_dir")

    (tmp_path / "file").touch()
    assert said(tmp_path / "not" / "yet") is said(tmp_path) is None
    assert not (tmp_path / "not").exists()
    assert said(tmp_path / "file" / "index") == "cache_unwritable"
    let_nothing_be_written(monkeypatch)
    assert said(tmp_path) == said(tmp_path / "not" / "yet") == "cache_unwritable"


WITH_EXPERTS = {"num_experts": 4, "add_bias_linear": False}
OVERLAPPING = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "tp_comm_overlap": True}


@pytest.mark.parametrize(
    ("path", "sections"),
    [
        ("runtime.cpu_offloading_num_layers", {"runtime": {"cpu_offloading_num_layers": 2}}),
        ("model.moe_grouped_gemm", {"model": {**WITH_EXPERTS, "moe_grouped_gemm": True}}),
        ("precision.fp8", {"precision": {"dtype": "bf16", "fp8": {}}}),
        ("parallelism.tp_comm_overlap", {"parallelism": OVERLAPPING, "launch": {"gpus_per_node": 2}}),
    ],
)
def test_transformer_engine_may_be_missing(
    make_job: Any,
    gpus: Gpus,
    libraries: Libraries,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    path: str,
    sections: dict[str, Any],
) -> None:
    asked = {**sections, "runtime": sections.get("runtime", {})}
    assert path not in warnings(make_job, **asked), "another machine with that GPU has it"
    monkeypatch.chdir(tmp_path)
    Path("gpus").mkdir()
    Path("gpus/H100.yaml").write_text("base: H100\nlayers: torch\n")
    assert warnings(make_job, **asked)[path] == "transformer_engine_missing"
    gpus.are(["NVIDIA H100 80GB HBM3"])
    libraries.missing("transformer_engine")
    assert warnings(make_job, **asked)[path] == "transformer_engine_missing"
    named = {**asked, "runtime": {**asked["runtime"], "layers": "transformer_engine"}}
    assert path not in warnings(make_job, **named)
    libraries.there("transformer_engine")
    assert path not in warnings(make_job, **asked)
    assert not warnings(make_job, model=WITH_EXPERTS)


def test_a_python_is_looked_for(make_job: Any, tmp_path: Path) -> None:
    own = tmp_path / "bin" / "python-of-mine"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert warnings(make_job, launch={"python": "python-of-mine"})["launch.python"] == "python_missing"
    for launch in ({"python": str(own)}, {"python": "python-of-mine", "env": {"PATH": str(own.parent)}}):
        assert "launch.python" not in warnings(make_job, launch=launch)


def test_variables_are_looked_for(make_job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THERE", "1")
    monkeypatch.delenv("NOWHERE", raising=False)
    asked = {
        "tracking": {"uri": "https://${env:NOWHERE}"},
        "launch": {"env": {"A": "${env:NOWHERE}", "B": "${env:THERE}"}},
    }
    found = [path for path, code in warnings(make_job, **asked).items() if code == "variable_unset"]
    assert sorted(found) == ["launch.env.A", "tracking.uri"]


def test_who_is_to_be_told_is_looked_for(make_job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tell = tmp_path / "tell.sh"
    tell.write_text("#!/bin/sh\n")
    monkeypatch.setenv("HOOK", "https://chat.example/T0K3N")
    monkeypatch.delenv("HOOKK", raising=False)
    said = warnings(make_job, notifications={"command": [str(tell)], "webhook": "${env:HOOKK}"})
    assert said["notifications.command"] == "notification"
    assert said["notifications.webhook"] == "notification"
    tell.chmod(0o755)
    said = warnings(make_job, notifications={"command": [str(tell)], "webhook": "${env:HOOK}"})
    assert not [path for path in said if path.startswith("notifications")]
    told = problems(make_job, notifications={"webhook": "https://chat.example/T0K3N"})
    assert told["notifications.webhook"].code == "notification"
    assert "T0K3N" not in str(told)


def test_trackers_are_looked_for(make_job: Any, libraries: Libraries) -> None:
    asked = {"tracking": {"tensorboard": True, "wandb": {}}}
    assert not [path for path in warnings(make_job, **asked) if path.startswith("tracking")]
    libraries.missing("wandb")
    said = warnings(make_job, **asked)
    assert {path: code for path, code in said.items() if path.startswith("tracking")} == {
        "tracking.wandb": "tracker_missing"
    }
