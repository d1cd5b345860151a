"""The layers by which published models predict further tokens, there and back, and what they predict."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.faults import CommandLine, Ranks

from orchestrator.spec.loading import load_job
from tests.unit.conversion import further_tokens

pytestmark = [pytest.mark.distributed, pytest.mark.slow("imports, reshards and exports three models at two layouts")]

HERE = Path(__file__).parents[1] / "unit" / "conversion"
LAYOUTS = {"tp1-pp1": (1, 1), "tp2-pp2": (2, 2)}


@pytest.fixture(scope="module")
def folder(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imported models, loaded and written anew at every layout."""
    folder = tmp_path_factory.mktemp("further")
    further_tokens.make(folder)
    for name, (tp, pp) in LAYOUTS.items():
        degrees = (name, str(tp), str(pp))
        started = ranks.starter.start(folder, tp * pp, *degrees, program=HERE / "layout_program.py")
        assert started.wait() == 0, name
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict[str, Any]]:
    return further_tokens.check(folder)


@pytest.mark.parametrize(("family", "count"), [("deepseek-v3", 1), ("glm4-moe", 2), ("qwen3-next", 1)])
def test_there_and_back(found: dict[str, dict[str, Any]], family: str, count: int) -> None:
    """Bitwise by way of each layout, and what they predict is what transformers' do, or the published definition's."""
    entry = found[family]
    assert {name: entry[f"layout-{name}"] for name in LAYOUTS} == dict.fromkeys(LAYOUTS, True)
    assert entry["count"] == count
    assert entry["logits"] < 1e-5
    assert entry["further-theirs"] < 1e-5


@pytest.mark.parametrize(
    ("family", "depths", "count"), [("deepseek-v3", 1, 8), ("glm4-moe", 2, 12), ("qwen3-next", 1, 8)]
)
def test_drafts_are_those_of_transformers(
    found: dict[str, dict[str, Any]], family: str, depths: int, count: int
) -> None:
    """With caches, behind drafts that were kept and others that were not; and they change no text at any layout."""
    entry = found[family]
    assert (entry["depths"], entry["drafted"]) == (depths, count)
    assert entry["drafts"] < 1e-5
    assert entry["texts"] == [entry["texts"][0]] * 2 * len(LAYOUTS)
    assert [len(row) for row in entry["texts"][0]] == [12, 12]


@pytest.mark.parametrize(("family", "begin"), [("deepseek-v3", "model.layers.4."), ("qwen3-next", "mtp.")])
def test_they_are_read_where_they_are_asked_for(
    orchestrator: CommandLine, folder: Path, family: str, begin: str
) -> None:
    theirs = folder / family / "theirs"
    for name, options in (("whole", ("--mtp",)), ("less", ())):
        made = orchestrator("checkpoint", "import", theirs, "--name", name, "-o", f"{name}.yaml", "--json", *options)
        assert made.code == 0, made.err
        left_out = json.loads(made.out)["left_out"]
        assert all(each.startswith(begin) for each in left_out)
        assert bool(left_out) != bool(options)
        job = load_job([orchestrator.folder / f"{name}.yaml"], []).job
        assert job.model.mtp_num_layers == len(options)
    config = json.loads((theirs / "config.json").read_text())
    shutil.copytree(theirs, none := orchestrator.folder / "none")
    for count in (0, 2 if family == "qwen3-next" else "1"):
        (none / "config.json").write_text(json.dumps({**config, "num_nextn_predict_layers": count}))
        assert orchestrator("checkpoint", "import", none, "--mtp").code == 2
