"""An executor whose jobs are processes of this machine."""

import os
import subprocess
import sys
from pathlib import Path

from orchestrator import JobState, Scripts, SubmittedIds


class Processes:
    name = "processes"
    has_clusters = False

    def check(self):
        pass

    def describe(self, start):
        return f"a process for {start.run.name}"

    def render(self, start):
        program = [sys.executable, "-P", "-m", "orchestrator.launch", str(start.run.path)]
        return Scripts(
            "exec " + " ".join([*program, *(["--from-scratch"] if start.from_scratch else [])]) + ' --job "$$"\n'
        )

    def submit(self, start, warn):
        script = start.run.path / "job.sh"
        script.write_text(self.render(start).run)
        with open(start.run.path / "job.log", "ab") as log:
            job = subprocess.Popen(
                ["sh", str(script)], stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        return SubmittedIds(str(job.pid))

    def states(self, job_ids, warn):
        return {job_id: state for job_id in job_ids if (state := _state(job_id)) is not None}

    def cancel(self, job_ids):
        for job_id in job_ids:
            os.kill(int(job_id), 15)


def _state(job_id):
    try:
        status = Path(f"/proc/{job_id}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
    return None if status == "Z" else JobState(job_id, "running", "RUNNING")
