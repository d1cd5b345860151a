"""The notebook beside the page runs, and shows what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from support.faults import Ranks

NOTEBOOK = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "python.ipynb"


@pytest.mark.slow(reason="a kernel and two trainings")
def test_the_notebook_runs_and_has_no_output_of_its_own(
    tmp_path: Path, ranks: Ranks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a kernel as a reader would start it; ranks are forked, without torchrun, which the quickstart starts."""
    for name, value in ranks.for_commands().items():
        monkeypatch.setenv(name, value)
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [cell.id for cell in notebook.cells if cell.get("outputs")] == [], "outputs are not committed"
    NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = {cell.id: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}
    assert "<table><caption>notebook</caption>" in _data(shown["plan-here"], "text/html")
    assert "num_attention_heads" in shown["problems"][0].text
    assert _data(shown["plan-there"], "text/plain").startswith("('fits', ")
    assert "parallelism:" in shown["tune"][0].text
    assert _data(shown["train"], "text/plain") == "'completed'"
    assert "new run notebook/" in shown["train"][0].text
    assert "train/loss" in _data(shown["metrics"], "text/html")
    assert _data(shown["longer"], "text/plain").splitlines()[-1].split()[:4] == ["8", "2", "False", "2"]
    assert shown["runs"][0].text.endswith(" completed\n")


def _data(outputs: list[Any], kind: str) -> str:
    """What a cell's last line shows."""
    return str(outputs[-1].data[kind])
