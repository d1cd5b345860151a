"""Why an incarnation ended: what the ranks and their logs say, seen together with what SLURM did."""

from __future__ import annotations

import re
from dataclasses import replace

from orchestrator.run_directory.exits.causes import Exit
from orchestrator.run_directory.rundir import RunDir

_BY_SLURM = (
    ("time_limit", re.compile(r"^.*(?:CANCELLED AT .* DUE TO TIME LIMIT|Job time limit).*$", re.MULTILINE)),
    ("preempted", re.compile(r"^.*CANCELLED AT .* DUE TO PREEMPTION.*$", re.MULTILINE)),
    (
        "node_fail",
        re.compile(
            r"^.*(?:CANCELLED AT .* DUE TO NODE FAILURE|[Nn]ode failure on \S+|Task launch .* failed on node \S+).*$",
            re.MULTILINE,
        ),
    ),
    (
        "host_out_of_memory",
        re.compile(r"^.*(?:oom.kill event|Exceeded (?:job|step) memory limit|Out Of Memory).*$", re.MULTILINE),
    ),
    ("requeued", re.compile(r"^.*CANCELLED AT .* DUE TO JOB REQUEUE.*$", re.MULTILINE)),
    ("cancelled", re.compile(r"^.*CANCELLED AT .*$", re.MULTILINE)),
)
"""What slurmstepd and srun write into a job's output, most telling first."""
_NODE = re.compile(r"(?:[Nn]ode failure on|failed on node) (\S+?)[,:.;)]*(?:\s|$)")
_FAULTS_OF_THE_JOB = ("out_of_memory", "nan", "hang", "user_error", "checkpoint", "disk_full", "lease_lost", "held")


def verdict(end: Exit, signal: str | None, time_is_over: bool, output: str) -> Exit:
    """The cause of an end. `end` is what ranks and logs say, `signal` the first that SLURM sent to the batch script,
    `time_is_over` whether the job has come near its limit, `output` what SLURM and torchrun wrote.
    """
    if end.cause == "completed" or end.cause in _FAULTS_OF_THE_JOB:
        return end
    if end.cause == "stopped" and signal is None:
        return end  # a person asked, through the stop file
    if signal == "SIGUSR1":
        saved = "saved" if end.cause == "stopped" else "could not save in time"
        if time_is_over:
            return Exit.of("time_limit", f"SLURM's notice before the time limit; {saved}", end.iteration)
        return Exit.of("preempted", f"SLURM's preemption notice; {saved}", end.iteration)
    for cause, pattern in _BY_SLURM:
        found = pattern.search(output)
        if found:
            line = found.group().strip()
            node = _NODE.search(line)
            return replace(Exit.of(cause, line, end.iteration), evidence=(line,), node=node.group(1) if node else None)
    if signal is not None:
        return Exit.of("cancelled", f"{signal} from SLURM or a person", end.iteration)
    return end


def unspoken_end(word: Exit | None, states: list[str]) -> Exit:
    """How an incarnation ended that did not live to say so. `states`: what accounting calls the job's earlier ends."""
    iteration = word.iteration if word is not None else None
    if "NODE_FAIL" in states:
        return Exit.of("node_fail", "one of its nodes failed or was cut off", iteration)
    if "PREEMPTED" in states:
        return Exit.of("preempted", "SLURM took its nodes for another job", iteration)
    if "REQUEUED" in states or (word is not None and word.cause == "stopped"):
        return Exit.of("requeued", "SLURM requeued it", iteration)
    if word is not None:
        return word
    return Exit.of("lost", "it ended without a record: a node failed, was cut off, or everything was killed", None)


def unhealthy(run: RunDir, launch_id: str, code: int) -> Exit:
    """The end of a launch whose health check failed, with the node at fault."""
    report = run.read_object(run.health_report(launch_id))
    if not report:
        return Exit.of("bug", f"the health check itself failed (exit code {code}): see logs/launcher.log", None)
    at_fault = report.get("nodes_at_fault")
    nodes = ",".join(map(str, at_fault)) if isinstance(at_fault, list) and at_fault else None
    return replace(Exit.of("node_fail", f"health check: {report.get('message')}", None), node=nodes)
