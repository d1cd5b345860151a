"""What `orchestrator` offers to Python programs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.odd_files import whole_run
from support.shipped import SHIPPED

import orchestrator

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "python.md"

HEAVY = {"torch", "megatron", "numpy", "pandas", "pydantic", "yaml", "transformers", "mlflow"}


def test_all_names_are_there_and_nothing_else_is_public() -> None:
    assert orchestrator.__all__ == sorted(orchestrator.__all__)
    assert set(dir(orchestrator)) >= set(orchestrator.__all__)
    for name in set(orchestrator.__all__) - {"load_model"}:  # which imports torch
        assert getattr(orchestrator, name).__doc__
    assert "load_model" in orchestrator.__all__
    with pytest.raises(AttributeError):
        orchestrator.nothing_of_the_kind  # noqa: B018


def test_importing_it_loads_nothing_heavy() -> None:
    program = "import sys, orchestrator; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & {name.partition(".")[0] for name in loaded}


def test_the_page_lists_every_name_and_its_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text()
    assert set(re.findall(r"`([A-Za-z_]+)(?:\(|`)", text.partition("| name |")[2])) >= set(orchestrator.__all__)
    program = text.partition("```python\n")[2].partition("```")[0]
    shutil.copy(SHIPPED["gpt-1.7b"], tmp_path / "job.yaml")
    whole_run("quickstart", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    exec(compile(program.replace(".plot()", ""), PAGE.name, "exec"), {})  # plotting needs matplotlib
