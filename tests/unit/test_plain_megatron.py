"""What is set up before torch and megatron-core are imported."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
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


def test_transformer_engine_gets_the_cudnn_that_torch_has_loaded(folder: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUDNN_")}
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True, env=environment
    )
    of_torch, *shared = finished.stdout.split()
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
def test_a_transformer_engine_that_does_not_load_is_none(tmp_path: Path, raised: str, trouble: str) -> None:
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
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    assert finished.stdout == f"{trouble} False None\n"


def test_clients_of_trackers_are_left_to_who_asks_for_them() -> None:
    program = """
import orchestrator.plain_megatron, sys
from megatron.core import timers
clients = ("wandb", "tensorboard", "torch.utils.tensorboard")
print(*(name in sys.modules for name in clients), timers.wandb, timers.SummaryWriter)
import wandb
from torch.utils.tensorboard import SummaryWriter
print(wandb.__name__, SummaryWriter.__name__)
"""
    finished = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert finished.stdout.split() == ["False"] * 3 + ["None"] * 2 + ["wandb", "SummaryWriter"]
