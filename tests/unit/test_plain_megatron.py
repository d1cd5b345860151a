"""What is set up before torch and megatron-core are imported."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from orchestrator.plain_megatron import file_of, share_torchs_cudnn

PROGRAM = """
import ctypes, os, sys
from pathlib import Path
from orchestrator.plain_megatron import file_of, share_torchs_cudnn
if file_of("libcudnn.so") is None:
    ctypes.CDLL(f"{sys.argv[1]}/libcudnn.so.9")
print(file_of("libcudnn.so").parent)
share_torchs_cudnn()
loaded = Path("/proc/self/maps").read_text()
names = ("libcudnn_graph.so.9", "libcudnn_adv.so.9", "libcudnn_ops.so.8")
print(os.environ["CUDNN_HOME"], *(name in loaded for name in names))
"""

FORKS = """
import json, os, sys, traceback
import torch.distributed._tensor
for line in sys.stdin:
    asked = json.loads(line)
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.environ.clear()
        os.environ.update(asked["environment"])
        os.dup2(writing, 1)
        sys.stdout = open(1, "w", closefd=False)
        sys.argv[1:] = asked["arguments"]
        sys.path[:0] = asked["path"]
        try:
            exec(asked["program"], {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc(file=sys.stdout)
        sys.stdout.flush()
        os._exit(0)
    os.close(writing)
    with open(reading) as said:
        print(json.dumps(said.read()), flush=True)
    os.wait()
"""
"""A process that has imported torch and what megatron-core would of it, and nothing of ours, and forks for each line
that asks for a program.
"""

Printed = Callable[..., str]


@pytest.fixture(scope="module")
def printed() -> Iterator[Printed]:
    """printed(program, arguments, environment=…, path=…): what a program prints, which begins with torch imported."""
    command = [sys.executable, "-c", FORKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asks, answers = process.stdin, process.stdout

        def ask(
            program: str, *arguments: str, environment: Mapping[str, str] = os.environ, path: tuple[str, ...] = ()
        ) -> str:
            asked = {"program": program, "arguments": arguments, "environment": dict(environment), "path": path}
            print(json.dumps(asked), file=asks, flush=True)
            said: str = json.loads(answers.readline())
            return said

        yield ask


def _loaded() -> set[Path]:
    """The shared libraries of this process."""
    return {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if ".so" in line}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Some shared library under the names of cuDNN's."""
    smallest = min(_loaded(), key=lambda path: path.stat().st_size)
    for name in ("libcudnn.so.9", "libcudnn_adv.so.9", "libcudnn_graph.so.9", "libcudnn_ops.so.8"):
        shutil.copy(smallest, tmp_path / name)
    (tmp_path / "libcudnn_cnn.so.9").write_text("no library")
    return tmp_path


def test_transformer_engine_gets_the_cudnn_that_torch_has_loaded(folder: Path, printed: Printed) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDNN_")}
    of_torch, *shared = printed(PROGRAM, str(folder), environment=environment).split()
    assert shared == [of_torch, "True", "True", "False"]
    assert of_torch == str(folder) or torch.version.cuda, "only a CUDA build has loaded one itself"


def test_a_persons_own_stands(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDNN_HOME", "/opt/mine")
    library = ctypes.CDLL(str(folder / "libcudnn.so.9"))
    assert library is not None
    assert file_of("libcudnn.so") is not None
    loaded = _loaded_of_cudnn()
    assert folder / "libcudnn.so.9" in loaded
    share_torchs_cudnn()
    assert os.environ["CUDNN_HOME"] == "/opt/mine"
    assert _loaded_of_cudnn() == loaded


def _loaded_of_cudnn() -> set[Path]:
    """The parts of cuDNN that this process has loaded, those of a CUDA build of torch among them."""
    return {path for path in _loaded() if path.name.startswith("libcudnn")}


@pytest.mark.parametrize(
    ("raised", "trouble"),
    [
        (
            "FileNotFoundError('Could not find shared object file.')",
            "FileNotFoundError: Could not find shared object file",
        ),
        ("ImportError('undefined symbol: _ZN3c10\\nin a library')", "ImportError: undefined symbol: _ZN3c10"),
        ("OSError()", "OSError"),
    ],
    ids=["half", "another torch", "silent"],
)
def test_a_transformer_engine_that_does_not_load_is_none(
    tmp_path: Path, printed: Printed, raised: str, trouble: str
) -> None:
    package = tmp_path / "transformer_engine"
    package.mkdir()
    (package / "__init__.py").write_text("import transformer_engine.common\n")
    (package / "common.py").write_text(f"raise {raised}\n")
    program = """
import importlib.util
from orchestrator.plain_megatron import ENGINE_TROUBLE
from megatron.core.transformer import transformer_block
print(ENGINE_TROUBLE, transformer_block.HAVE_TE, importlib.util.find_spec("transformer_engine"))
"""
    assert printed(program, path=(str(tmp_path),)) == f"{trouble} False None\n"


def test_clients_of_trackers_are_left_to_who_asks_for_them(printed: Printed) -> None:
    program = """
import orchestrator.plain_megatron, sys
from megatron.core import timers
clients = ("wandb", "tensorboard", "torch.utils.tensorboard")
print(*(name in sys.modules for name in clients), timers.wandb, timers.SummaryWriter)
import wandb
from torch.utils.tensorboard import SummaryWriter
print(wandb.__name__, SummaryWriter.__name__)
"""
    assert printed(program).split() == ["False"] * 3 + ["None"] * 2 + ["wandb", "SummaryWriter"]
