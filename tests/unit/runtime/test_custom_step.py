"""A training step of a user's own: found, made and checked, with one message for each way in which it can be wrong."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from support.problems import codes, problems_of
from support.refused import refused
from support.training import tiny_job

from orchestrator.errors import SpecError, UserError
from orchestrator.runtime.steps.base import Part
from orchestrator.runtime.steps.custom import custom_train_step
from orchestrator.runtime.steps.gpt import NextToken
from orchestrator.safe_path import leave_working_directory
from orchestrator.spec.job import JobSpec

STEPS = """
from orchestrator.runtime.steps.base import Part
from orchestrator.runtime.steps.gpt import NextToken

class Doubled(NextToken):
    def __init__(self, factor, names=("a",)):
        self.factor, self.names = factor, names
    def loss(self, output, batch):
        return {"lm": Part(self.factor * output.sum(), batch["loss_mask"].sum())}

class Refusing(NextToken):
    def __init__(self):
        raise RuntimeError("no such table")

class Half:
    parts = ("lm",)
    def get_batch(self, samples): return samples
    def loss(self, output, batch): return {}

class Short(NextToken):
    def loss(self, output): return {}

class Nameless(NextToken):
    parts = "lm"

class Twice(NextToken):
    parts = ("lm", "lm")

class Measuring(NextToken):
    metrics = "accuracy"

class TwoParts(NextToken):
    parts = ("lm", "more")

class Async(NextToken):
    def forward(self, model, batch, *, scale): return model

doubled = Doubled(2)
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A package in the working directory, which is not on Python's path."""
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "__init__.py").touch()
    (tmp_path / "my_package" / "steps.py").write_text(STEPS)
    (tmp_path / "my_package" / "broken.py").write_text("import torch\n\nvalue = 1 / 0\n")
    (tmp_path / "my_package" / "misspelt.py").write_text("def step(:\n")
    (tmp_path / "my_package" / "hungry.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield
    for name in [name for name in sys.modules if name.startswith("my_package")]:
        del sys.modules[name]


def job_with(path: str, arguments: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
    runtime = {"train_step": path, "train_step_arguments": arguments or {}}
    return tiny_job("custom", runtime=runtime, **sections)


def test_a_class_that_changes_the_loss_has_the_rest_from_its_base() -> None:
    step = custom_train_step(job_with("my_package.steps:Doubled", {"factor": 3, "names": ["x", "y"]}))
    assert isinstance(step, NextToken)
    assert step.names == ["x", "y"]  # type: ignore[attr-defined]
    assert step.parts == ("lm",)
    mask = torch.ones(2, 4)
    assert step.loss(mask, {"loss_mask": mask}) == {"lm": Part(torch.tensor(24.0), torch.tensor(8.0))}


WRONG: dict[str, tuple[str, dict[str, Any], str]] = {
    "no-package": ("your_package.steps:Doubled", {}, "there is no module your_package. Searched:"),
    "no-module": ("my_package.step:Doubled", {}, "there is no module my_package.step."),
    "no-class": ("my_package.steps:Doubledd", {}, "has no class Doubledd; did you mean Doubled?"),
    "no-class-near": ("my_package.broken2:X", {}, "there is no module my_package.broken2"),
    "not-a-class": ("my_package.steps:doubled", {}, "doubled is of type Doubled, not a class"),
    "missing-argument": ("my_package.steps:Doubled", {}, "(none) do not match its constructor, Doubled(factor"),
    "other-argument": ("my_package.steps:Doubled", {"factr": 1}, "(factr) do not match its constructor"),
    "constructor": ("my_package.steps:Refusing", {}, "its constructor failed: RuntimeError: no such table ("),
    "import": ("my_package.broken:X", {}, "cannot be imported: ZeroDivisionError: division by zero ("),
    "place-of-an-import": ("my_package.broken:X", {}, "broken.py:3)"),
    "syntax": ("my_package.misspelt:X", {}, "misspelt.py:1)"),
    "dependency": ("my_package.hungry:X", {}, "imports a_package_that_is_not_there, which is not installed"),
    "no-method": ("my_package.steps:Half", {}, "it has no forward; a training step has parts, get_batch(samples)"),
    "signature": ("my_package.steps:Short", {}, "its loss(output) cannot be called as loss(self, output, batch)"),
    "keyword-only": ("my_package.steps:Async", {}, "cannot be called as forward(self, model, batch)"),
    "parts": ("my_package.steps:Nameless", {}, "its parts are 'lm'; they are the names"),
    "metrics": ("my_package.steps:Measuring", {}, "its metrics are 'accuracy'; they are names"),
    "same-parts": ("my_package.steps:Twice", {}, "have one name twice"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_in_one_message(name: str) -> None:
    path, arguments, said = WRONG[name]
    with pytest.raises(UserError) as caught:
        custom_train_step(job_with(path, arguments))
    assert said in str(caught.value)
    assert str(caught.value).startswith(f"runtime.train_step {path}: ")


def test_the_working_directory_is_named_where_a_module_is_not_found(tmp_path: Path) -> None:
    with refused("missing_train_step_module", "nowhere:X", "launch.env") as caught:
        custom_train_step(job_with("nowhere:X"))
    assert str(tmp_path) in str(caught.value)


def test_a_loss_per_token_has_one_part() -> None:
    job = job_with("my_package.steps:TwoParts")
    assert custom_train_step(job).parts == ("lm", "more")
    data = job.data.model_copy(update={"eod_mask_loss": True})
    with refused("wrong_train_step_parts", "data.eod_mask_loss", "lm, more"):
        custom_train_step(job.model_copy(update={"data": data}))


@pytest.mark.parametrize("path", ["steps.Doubled", "steps:", ":X", "my-steps:X", "a:b:c", "a b:C", "a:C()"])
def test_the_form_of_a_path_is_checked_without_importing_it(path: str) -> None:
    with pytest.raises((SpecError, ValueError), match="module:Class"):
        job_with(path)


def test_arguments_need_a_class_and_are_plain_values() -> None:
    found = problems_of(lambda: tiny_job("custom", runtime={"train_step_arguments": {"alpha": 1}}))
    assert codes(found) == ["train_step_arguments runtime.train_step_arguments"]
    with pytest.raises(ValueError, match="numbers, text"):
        job_with("a:B", {"x": object()})
    with pytest.raises(ValueError, match="finite"):
        job_with("a:B", {"x": [float("inf")]})


def test_what_is_installed_comes_first_but_for_the_module_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that is installed by the name of the user's own, and modules beside it by the names of libraries."""
    installed = tmp_path / "installed"
    (installed / "my_package").mkdir(parents=True)
    (installed / "my_package" / "__init__.py").write_text("raise RuntimeError('another package of that name')\n")
    (installed / "both_have_it.py").write_text("PLACE = 'installed'\n")
    for name in ("both_have_it", "mine_alone", "colorsys"):
        (tmp_path / f"{name}.py").write_text("PLACE = 'mine'\n")
    imports = "import both_have_it, colorsys, mine_alone\nPLACES = [both_have_it.PLACE, mine_alone.PLACE]\n"
    (tmp_path / "my_package" / "steps.py").write_text(imports + STEPS)
    monkeypatch.syspath_prepend(installed)
    for name in ("both_have_it", "mine_alone", "colorsys"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    custom_train_step(job_with("my_package.steps:Doubled", {"factor": 2}))
    assert sys.modules["my_package.steps"].PLACES == ["installed", "mine"]
    assert not hasattr(sys.modules["colorsys"], "PLACE")
    for name in ("both_have_it", "mine_alone", "colorsys"):
        del sys.modules[name]


def test_a_relative_entry_of_python_s_path_is_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`PYTHONPATH=src orchestrator run job.yaml`: the command takes the entry out for its programs."""
    (tmp_path / "src").mkdir()
    (tmp_path / "my_package").rename(tmp_path / "src" / "my_package")
    monkeypatch.setenv("PYTHONPATH", "src")
    leave_working_directory()
    assert "PYTHONPATH" not in os.environ
    custom_train_step(job_with("my_package.steps:Doubled", {"factor": 2}))
    assert sys.modules["my_package.steps"].__file__ == str(tmp_path / "src" / "my_package" / "steps.py")
