"""The check before the first step, on a real cluster. A good job passes, and runs from a copy of the code; a bad one
ends with a word on the nodes at fault.
"""

from __future__ import annotations

import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from slurm.cluster import Cluster
from slurm.conftest import FORKED
from support.commands import Commands
from support.faults import PATIENCE, CommandLine, Ranks
from support.training import events, four_layer_job, layout, logs

from orchestrator.launch.states.run_states import RunStatus, status_of
from orchestrator.run_directory.rundir import RunDir

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(600), pytest.mark.slow("two real jobs of two nodes")]


def submitted(commands: Commands, folder: Path, **launch: Any) -> RunDir:
    """A run of two nodes, submitted from that folder."""
    (folder / "clusters").mkdir(parents=True)
    (folder / "clusters" / "test.yaml").write_text("name: test\n")
    command = CommandLine(folder, commands)
    job = four_layer_job(
        "checked",
        schedule={"train_iters": 3},
        parallelism=layout(dp=2),
        launch={"nodes": 2, "cluster": "test", "max_requeues": 0, **launch},
    )
    said = command("submit", command.write(job))
    assert said.code == 0, said.out + said.err
    return command.run()


def ended(run: RunDir) -> RunStatus:
    deadline = time.monotonic() + PATIENCE
    while (status := status_of(run)).is_active and time.monotonic() < deadline:
        time.sleep(1)
    return status


def report(run: RunDir) -> dict[str, Any]:
    [path] = (run.path / "health").iterdir()
    return dict(json.loads(path.read_text()))


def test_good_nodes_and_bad_ones(cluster: Cluster, commands: Commands, ranks: Ranks, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    subprocess.run(["git", "init", "-q", str(repository)], check=True)
    # The check of the good job imports torch on its second node. All else of both is forked.
    forked, check = ranks.for_commands(), "orchestrator.runtime.health"
    good_env = {**forked, "FORKED_TOO": " ".join((*FORKED, f"{check}@0"))}
    good = submitted(commands, repository, snapshot=True, env=good_env)
    bad_env = {**forked, "FORKED_TOO": " ".join((*FORKED, check)), "TMPDIR": "/proc"}
    bad = submitted(commands, tmp_path / "bad", env=bad_env)

    status = ended(good)
    assert status.state == "completed", f"{status.describe()}\n{good.launcher_log.read_text()}{logs(good)}"
    names = events(good, "launched")[-1]["nodes"]
    said = report(good)
    assert (said["healthy"], [node["name"] for node in said["nodes"]]) == (True, names)
    assert f"health check passed: 2 nodes, slowest pair {names[0]} and {names[1]} at " in good.launcher_log.read_text()
    script = good.batch_script.read_text()
    assert f"cd {good.path}/code/1/repository" in script

    status = ended(bad)
    names = events(bad, "launched")[-1]["nodes"]
    assert (status.state, status.cause) == ("failed", "node_fail")
    assert f"{names[0]} cannot write in /proc (" in status.describe()
    assert f"{names[1]} cannot write in /proc (" in status.describe()
    assert report(bad)["nodes_at_fault"] == sorted(names)
    assert events(bad, "started") == []
