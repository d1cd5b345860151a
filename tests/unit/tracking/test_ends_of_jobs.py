"""What MLflow is told by a supervisor whose ranks, and the follower beside them, were ended at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.event_log import append_event
from support.limits import set_limits

from orchestrator.executors.slurm.supervisor import job_end
from orchestrator.executors.slurm.supervisor.slurm_job import SlurmJob
from orchestrator.run_directory.exits.causes import Exit
from orchestrator.spec.loading import load_text
from orchestrator.spec.sections.tracking import TrackingSpec
from tests.unit.sweeps.conftest import JOB
from tests.unit.tracking.conftest import make_run, only_run


@pytest.mark.usefixtures("forked_sending")
def test_the_end_is_sent_before_the_batch_script_ends(
    tmp_path: Path, store_in: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_limits(monkeypatch, to_send_the_end=200.0)
    run, slurm = make_run(tmp_path), SlurmJob("5", 0, "alps", ("n1",), 0.0, None)
    append_event(run, "launched", launch_id=slurm.launch_id, job_id="5")
    job = load_text(JOB).job.model_copy(update={"tracking": TrackingSpec()})
    job_end.conclude(run, job, slurm, Exit.of("cancelled", "ended at once", 3), -15)
    stored = only_run(store_in)
    assert (stored.status, stored.tags["orchestrator.exit_cause"]) == ("KILLED", "cancelled")
