"""What is set up before torch and megatron-core are imported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.plain_megatron import share_torchs_cudnn


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CUDNN_HOME", "CUDNN_PATH"):
        monkeypatch.setenv(name, "")  # so that what the test sets is taken back
        monkeypatch.delenv(name)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "nvidia" / "cudnn"
    (folder / "lib").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    return folder


def test_transformer_engine_finds_the_cudnn_that_came_with_torch(package: Path) -> None:
    share_torchs_cudnn()
    assert os.environ["CUDNN_HOME"] == str(package)


@pytest.mark.parametrize("name", ["CUDNN_HOME", "CUDNN_PATH"])
def test_a_persons_own_stands(name: str, package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/opt/mine")
    share_torchs_cudnn()
    found = {each: os.environ[each] for each in ("CUDNN_HOME", "CUDNN_PATH") if each in os.environ}
    assert found == {name: "/opt/mine"}


def test_a_torch_without_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    share_torchs_cudnn()
    assert "CUDNN_HOME" not in os.environ
