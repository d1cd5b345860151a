"""What the commands and the dashboard tell of kept runs."""

from __future__ import annotations

import contextlib
import html
import re
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient

from baseline.packing import CODE
from baseline.recording import answer
from orchestrator.dashboard.app import create_app
from orchestrator.dashboard.settings import Settings
from orchestrator.launch.runs import all_runs

_CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_TIME = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d")


def told(folder: Path) -> dict[str, Any]:
    """What is read of every run and sweep in a folder."""
    sweeps = sorted(path.name for path in folder.glob("runs/sweeps/*"))
    names = [f"{run.name}/{run.run_id}" for run in all_runs(folder / "runs")]
    words = {
        "list": ["list", "--json"],
        **{f"status {name}": ["status", f"runs/{name}", "--json"] for name in names},
        **{f"checkpoints of {name}": ["checkpoint", "list", f"runs/{name}", "--json"] for name in names},
        **{f"damage of {name}": ["checkpoint", "verify", f"runs/{name}"] for name in names},
        **{f"sweep {name}": ["sweep", "results", name, "--json"] for name in sweeps},
    }
    with contextlib.chdir(folder):
        found: dict[str, Any] = {what: _of_any_disk(answer(asked, folder)) for what, asked in words.items()}
    visitor = dashboard(folder / "runs")
    return found | {f"events of {name}": events_page(visitor, name, folder) for name in names}


def _of_any_disk(answered: dict[str, Any]) -> dict[str, Any]:
    """Without the blocks that runs occupy, which are the disk's."""
    out = answered.get("out", [])
    for each in [out] if isinstance(out, dict) else out:
        if isinstance(each, dict):
            each.pop("disk_bytes", None)
    return answered


def dashboard(runs_dir: Path) -> TestClient:
    """The pages of a folder of runs, without the threads that look for changes."""
    app = create_app(Settings(runs_dir))
    app.state.shared.index.look()
    return TestClient(app)


def events_page(visitor: TestClient, name: str, folder: Path) -> list[str]:
    """The sentences of a run's events, the newest first; in the time zone of whoever looks, so without times."""
    page = visitor.get(f"/runs/{name}/events")
    assert page.status_code == 200
    cells = [html.unescape(" ".join(_TAG.sub("", cell).split())) for cell in _CELL.findall(page.text)]
    return [_placeless(cell, folder) for cell in cells if not _TIME.fullmatch(cell)]


def _placeless(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER").replace(str(CODE), "CODE")
