"""Run directories that an earlier version wrote (`keep.py`): every command reads them as it did, and they go on."""

from __future__ import annotations

from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from support.commands import Commands
from support.event_log import lines_of
from support.faults import Ranks

from baseline.continuing import CONTINUED, goes_on, keys_of, only_run
from baseline.jobs import make_data
from baseline.keep import MAKERS
from baseline.packing import RUNS, kept, unpack
from baseline.readers import dashboard, told
from baseline.recording import assert_near
from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.rundir import RunDir

NAMES = sorted(path.stem for path in RUNS.glob("*.json"))


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all of them."""
    folder = tmp_path_factory.mktemp("kept").resolve()
    for name in NAMES:
        unpack(kept(name), folder)
    return folder / "runs"


@pytest.fixture(scope="module")
def visitor(together: Path) -> TestClient:
    return dashboard(together)


def test_what_is_kept() -> None:
    assert set(MAKERS) <= set(NAMES)


def test_events_of_every_kind(together: Path) -> None:
    """But those that only a cluster, a full disk or a broken data set cause, and a person who is asked for nothing."""
    kinds = {event["event"] for run in all_runs(together) for event in lines_of(run)}
    assert kinds >= {
        *("created", "launched", "started", "first_step", "checkpoint_saved", "finished", "exited", "resumed"),
        *("step_skipped", "stop_requested", "hang", "notified", "submitted", "withdrawn", "imported", "reshaped"),
        *("pretrained", "exported"),
    }


@pytest.mark.parametrize("name", NAMES)
def test_commands_tell_the_same(name: str, tmp_path: Path) -> None:
    folder = tmp_path.resolve()
    unpack(kept(name), folder)
    assert told(folder) == kept(name)["told"]


@pytest.mark.parametrize("name", NAMES)
def test_pages(name: str, together: Path, visitor: TestClient) -> None:
    overview = "/sweeps" if name == "sweep" else "/"
    assert name in visitor.get(overview).text
    for run in runs_of(name, together):
        address = f"/runs/{run.name}/{run.run_id}"
        for place in (
            "",
            "/figure/loss",
            "/time",
            "/logs",
            "/checkpoints",
            "/data",
            "/machines",
            "/plan",
            "/spec",
            "/code",
        ):
            assert visitor.get(address + place).status_code == 200, place


def runs_of(name: str, together: Path) -> list[RunDir]:
    return [run for run in all_runs(together) if run.name == ("cells" if name == "sweep" else name)]


@pytest.mark.distributed
@pytest.mark.slow("trains each of them on")
@pytest.mark.parametrize("name", CONTINUED)
def test_goes_on(name: str, commands: Commands, ranks: Ranks, tmp_path: Path) -> None:
    """As the version that wrote it did: `record.py --compare` holds it to the last bit, on the same machine."""
    folder = tmp_path.resolve()
    make_data(folder / "data")
    unpack(kept(name), folder)
    found = goes_on(name, only_run(folder), commands, ranks, folder)
    assert_near(found, kept(name)["continued"], keys_of(name)["precision.dtype"])
