"""No program imports, runs or loads what lies in the folder that it is started from: it may be anybody's."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from support.faults import PATIENCE, Ranks, wait_until
from support.training import TINY, events

import orchestrator
from orchestrator.run_directory.rundir import RunDir
from orchestrator.safe_path import CODE_PATH_VARIABLE, code_folders, leave_working_directory, module_command

PACKAGE = Path(orchestrator.__file__).parent
CONSOLE_SCRIPT = Path(sys.executable).with_name("orchestrator")
BESIDE_IMPORTS = ("conftest", "encodings", "google", "readline", "sitecustomize", "tokenizers", "usercustomize")
MARKS = "import os\nopen(os.environ['MARKERS'] + '/' + __name__.replace('.', '-'), 'w').close()\n"
LLAMA = {
    **{"num_layers": 1, "num_query_groups": 4, "vocab_size": 261, "activation": "swiglu", "normalization": "RMSNorm"},
    **{"add_bias_linear": False, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32},
}
STEP = """
import json
import torch
import helper_of_mine
from orchestrator.runtime.steps.gpt import NextToken

class Mine(NextToken):
    def __init__(self):
        open("trained-with", "w").write(json.dumps([torch.__file__, helper_of_mine.__file__]))
"""
SAYS_ITS_ENVIRONMENT = "import json, os, sys\njson.dump(dict(os.environ), open('told-with', 'w'))\n"


def modules_imported() -> set[str]:
    """Of every module of the product, what it imports by its top-level name."""
    sources = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    return set(re.findall(r"^\s*(?:import|from) ([a-zA-Z_]\w*)", sources, re.MULTILINE)) - {"__future__"}


def make_hostile(folder: Path, names: set[str]) -> None:
    """A module for each name, and a package for some, that leaves a marker when it is imported."""
    for name in names:
        (folder / f"{name}.py").write_text(MARKS)
    for name in names & {"orchestrator", "megatron", "torch"}:
        (folder / f"{name}.py").unlink()
        (folder / name).mkdir()
        for module in ("__init__", "__main__"):
            (folder / name / f"{module}.py").write_text(MARKS)


class Hostile:
    """A folder full of modules that nobody means, and how commands are started there."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.markers = folder / "there", folder / "markers"
        self.folder.mkdir()
        self.markers.mkdir()
        make_hostile(self.folder, modules_imported() | set(BESIDE_IMPORTS))

    def __call__(
        self, *command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a program there: it has to work, and to leave no marker."""
        done = subprocess.run(
            [*map(str, command)],
            cwd=cwd or self.folder,
            env={**os.environ, "MARKERS": str(self.markers), **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert self.imported() == [], done.stderr
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def imported(self) -> list[str]:
        return sorted(path.name for path in self.markers.iterdir())


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Hostile:
    return Hostile(tmp_path_factory.mktemp("hostile"))


def test_the_folder_is_hostile(hostile: Hostile) -> None:
    """What a program would import that is not started safely."""
    for command in ("import torch", "import json"):
        subprocess.run(
            [sys.executable, "-c", command],
            cwd=hostile.folder,
            env={**os.environ, "MARKERS": str(hostile.markers)},
            check=True,
        )
    assert {"torch", "json"} <= set(hostile.imported())
    for marker in hostile.markers.iterdir():
        marker.unlink()


PROGRAMS = ("dashboard", "dashboard.report", "launch")
"""But for those that `test_from_text_to_texts_there` has started: of the data, the notifications and the trackers."""
WITH_TORCH = ("orchestrator.runtime.calibration", "orchestrator.runtime.health")
"""As a rank, which `test_from_text_to_texts_there` starts: these have imported torch already."""


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_start_there(hostile: Hostile, name: str) -> None:
    assert "usage" in hostile(*module_command(f"orchestrator.{name}", "--help")).stdout.lower()


@pytest.mark.parametrize("name", WITH_TORCH)
def test_programs_with_torch_start_there(hostile: Hostile, ranks: Ranks, name: str) -> None:
    forked = {**ranks.for_commands(), "FORKED_TOO": name}
    assert "usage" in hostile(*module_command(name, "--help"), env=forked).stdout.lower()


def test_the_command_itself(hostile: Hostile) -> None:
    """By its script and by its module, and what of it starts no program; `report` becomes one. The script's `validate`
    is in `test_from_text_to_texts_there`.
    """
    job = {"name": "tiny", **TINY}
    (hostile.folder / "tiny.yaml").write_text(yaml.safe_dump(job))
    hostile(*module_command("orchestrator"), "validate", "tiny.yaml")
    script = hostile(CONSOLE_SCRIPT, "render", "tiny.yaml").stdout
    for safely in (" -P -m torch.distributed.run ", " -P -u -m orchestrator.runtime "):
        assert safely in script


def test_by_its_module_it_leaves_the_working_directory_itself(tmp_path: Path) -> None:
    """What Python looks for before any of our lines runs is beyond us, and everything after it is not."""
    markers = tmp_path / "markers"
    markers.mkdir()
    make_hostile(tmp_path, {"typer", "yaml", "pydantic", "jinja2", "rich", "torch", "tomllib", "uuid"})
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", "validate", "--help"],
        cwd=tmp_path,
        env={**os.environ, "MARKERS": str(markers)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, os.listdir(markers)) == (0, []), done.stderr


@pytest.mark.slow("a training and an export, each of which imports torch, and a generation and an import")
def test_from_text_to_texts_there(hostile: Hostile, ranks: Ranks) -> None:
    """Data, a training with a step of the user's own, its exporter and notification, a generation in the checkpoint's
    folder and an import in the exported model's, where the same hostile modules lie. The last two are forked.
    """
    folder = hostile.folder
    hostile(CONSOLE_SCRIPT, "data", "tokenize", ".", "--output-prefix", "text", "--tokenizer-type", "byte_level")
    (folder / "my_step.py").write_text(STEP)
    (folder / "helper_of_mine.py").touch()
    (folder / "tell.py").write_text(SAYS_ITS_ENVIRONMENT)
    job = {
        **TINY,
        "name": "there",
        "model": LLAMA,
        "batch": {"micro_batch_size": 2, "global_batch_size": 2},
        "data": {"blend": [{"path": "text"}], "split": "90,10,0", "tokenizer": {"type": "byte_level"}},
        "schedule": {"train_iters": 2},
        "checkpoint": {"save_interval": 2, "export": {"interval": 2}},
        "tracking": {"mlflow": False, "tensorboard": True},
        "runtime": {"device": "cpu", "train_step": "my_step:Mine"},
        "notifications": {"command": [sys.executable, "-I", "tell.py"], "when": ["completed"]},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    validated = hostile(CONSOLE_SCRIPT, "validate", "job.yaml")
    assert "installed modules hide those of the same name" in " ".join((validated.stdout + validated.stderr).split())
    # The user's folder is the last place where ranks look: there they find what is installed nowhere.
    for name in modules_imported():
        if importlib.util.find_spec(name) is None:
            (folder / f"{name}.py").unlink()
    hostile(CONSOLE_SCRIPT, "run", "job.yaml", "--json")
    [run] = (folder / "runs" / "there").iterdir()
    torch, helper = json.loads((folder / "trained-with").read_text())
    assert Path(helper) == folder / "helper_of_mine.py"
    assert not Path(torch).is_relative_to(folder)
    wait_until(lambda: events(RunDir(run), "notified"), "the notification")  # nobody waits for it
    told_with = json.loads((folder / "told-with").read_text())
    assert not {"PYTHONSAFEPATH", "PYTHONHOME"} & set(told_with), "what a user's own program inherits"

    def with_hostile(target: Path) -> Path:
        make_hostile(target, {"torch", "numpy", "json", "transformers", "safetensors", "orchestrator", "megatron"})
        return target

    checkpoint = with_hostile(run / "checkpoints" / "iter_0000002")
    forked, two = ranks.for_commands(), ("--max-new-tokens", "2")
    said = hostile(CONSOLE_SCRIPT, "generate", ".", "--prompt", "def", *two, cwd=checkpoint, env=forked)
    assert said.stdout.startswith("def")
    model = with_hostile(run / "exports" / "hf" / "iter_0000002")
    hostile(CONSOLE_SCRIPT, "checkpoint", "import", ".", "--runs-dir", folder / "imported", cwd=model, env=forked)


def search(monkeypatch: pytest.MonkeyPatch, folders: list[str]) -> None:
    """Where Python searches for modules."""
    monkeypatch.setattr(sys, "path", list(folders))


@pytest.mark.parametrize("entries", [":", ".", "{there}/lib:", ":{there}/lib", "{there}/lib:.:src:"])
def test_entries_that_mean_the_working_directory(tmp_path: Path, entries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are taken out of what is searched for modules, programs and shared libraries; absolute ones stay."""
    monkeypatch.chdir(tmp_path)
    given = entries.format(there=tmp_path)
    names = ("PYTHONPATH", "PATH", "LD_LIBRARY_PATH")
    for name in names:
        monkeypatch.setenv(name, given)
    before = [entry for entry in sys.path if entry]
    search(monkeypatch, [str(tmp_path), *before] if given.startswith((":", ".")) else before)
    leave_working_directory()
    left = [os.environ.get(name) for name in names]
    assert left == [f"{tmp_path}/lib" if "lib" in given else None] * 3
    assert sys.path == before
    # Code of the user's own is still found where they have said.
    assert os.environ[CODE_PATH_VARIABLE].split(":") == [each for each in given.split(":") if not each.startswith("/")]
    assert code_folders() == [str(tmp_path), *([f"{tmp_path}/src"] if "src" in given else [])]


def test_an_empty_entry_reaches_no_program(tmp_path: Path) -> None:
    """`export PYTHONPATH=$PYTHONPATH:/shared/lib`, which begins with a colon where it was not set."""
    markers, there = tmp_path / "markers", tmp_path / "there"
    markers.mkdir()
    there.mkdir()
    names = {"numpy", "pydantic", "tokenizers", "torch", "typer", "yaml"}
    make_hostile(there, names)
    (there / "text.txt").write_text("a text\n")
    command = [CONSOLE_SCRIPT, "data", "tokenize", "text.txt", "--output-prefix", "text", "--workers", "2"]
    done = subprocess.run(
        [*map(str, command), "--tokenizer-type", "byte_level"],
        cwd=there,
        env={**os.environ, "MARKERS": str(markers), "PYTHONPATH": f":{tmp_path}"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert os.listdir(markers) == []


def test_nothing_is_changed_where_nothing_is_relative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/a:/b")
    environment, path = dict(os.environ), [entry for entry in sys.path if entry]
    search(monkeypatch, path)
    leave_working_directory()
    assert (dict(os.environ), sys.path) == (environment, path)


def test_a_checkout_that_is_not_installed_is_found_by_the_programs_that_it_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`python -m orchestrator` in its folder, or with that folder as a relative entry of PYTHONPATH."""
    checkout = Path(orchestrator.__file__).parent.parent
    monkeypatch.chdir(checkout)
    monkeypatch.setenv("PYTHONPATH", "/lib:.")
    search(monkeypatch, [str(checkout), "/lib"])
    leave_working_directory()
    assert os.environ["PYTHONPATH"] == f"/lib:{checkout}"
    assert sys.path == ["/lib", str(checkout)]
