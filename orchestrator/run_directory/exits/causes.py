"""Why a run ended: one table of causes, each with a sentence, what to do, and the exit code of the command; and what
the ranks said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from orchestrator.files.stored_files import count
from orchestrator.run_directory.rundir import RunDir

_RECORD = re.compile(r"rank-(\d{1,9})\.json", re.ASCII)
_LOST_PEER = re.compile(
    "|".join(
        (
            r"gloo/transport/",  # the place in its source, in all that gloo says of a connection that was lost
            r"[Ff]ailed to recv, got 0 bytes",  # these four: torch's store, by which processes find each other
            r"DistNetworkError: (?:Broken pipe|Connection reset by peer)",
            r"The client socket has (?:timed out|failed to connect)",
            r"wait timeout after \d+ms, keys:|Timed out after \d+ seconds waiting for clients",
            r"ncclUniqueId from \[\d+\]",  # the first of a group did not say where the others find it
            r"ncclRemoteError|remote process exited or there was a network error",
            r"NCCL communicator was aborted on rank|Watchdog caught collective operation time",
            r"Connection closed by remote peer|Call to (?:recv from|send to) \S+ failed|Got completion from peer",
        )
    )
)
"""What gloo, torch and NCCL say where another process does not answer (NCCL: its sockets, and InfiniBand)."""

_GPU_FAILED = re.compile(
    "|".join(
        (
            r"uncorrectable (?:ECC|NVLink) error",
            r"hardware stack error",
            r"peer GPU memory over nvlink or a hardware error",
            r"(?:CUDA|Cuda|cuda) (?:error|Error|failure)[^\n]{0,10}unknown error",
            r"CUDA-capable device\(s\) is/are busy or unavailable",
            r"GPU is lost|GPU has fallen off the bus",
        )
    )
)
"""What CUDA and its driver say of a GPU that is broken or taken, and that no program brings about."""

NO_FAILURES = ("completed", "stopped", "cancelled", "requeued")
"""Causes of an end that is not trouble, whatever the launcher's code was. No set: a damaged log may hold anything."""


@dataclass(frozen=True)
class Cause:
    """`sentence` says what happened, `advice` the way out (`advise` fills it in), `exit_code` what a command returns.

    Of several ranks' causes the one with the lowest `rank_order` explains the exit: one rank's trouble makes the others
    fail in ways that say nothing.
    """

    sentence: str
    advice: str
    exit_code: int
    rank_order: int

    def advise(self, run: str, *, anew: bool) -> str:
        """The advice for a run, by the words that name it in a command. `anew`: it has no checkpoint, and begins at
        iteration 0 again.
        """
        resume = f"orchestrator resume {run}{' --from-scratch' if anew else ''}"
        return self.advice.format(run=run, resume=resume)


CAUSES = {
    "completed": Cause("finished", "", 0, 100),
    "stopped": Cause("stopped as asked, after saving", "continue with: {resume}", 1, 90),
    "held": Cause("another process holds the run", "see: orchestrator status {run}", 2, 0),
    "lease_lost": Cause("a newer start of this run took over", "see: orchestrator status {run}", 1, 1),
    "user_error": Cause("the input is wrong", "", 2, 2),
    "nan": Cause(
        "the training diverged",
        "lower optimizer.lr, lengthen the warm-up or check the data, then: {resume} --set optimizer.lr=… "
        "--allow-changes",
        1,
        3,
    ),
    "hang": Cause(
        "a step made no progress within runtime.hang_timeout",
        "every rank's stacks are in the run's stacks/ folder; continue with: {resume}",
        1,
        4,
    ),
    "gpu_error": Cause(
        "a GPU failed",
        "exclude its machine, or have it checked (nvidia-smi, dmesg); continue with: {resume}",
        1,
        4,
    ),
    "out_of_memory": Cause(
        "a GPU ran out of memory",
        "lower batch.micro_batch_size, set runtime.recompute_granularity or raise the parallel sizes, "
        "then: {resume} --set …",
        1,
        5,
    ),
    "host_out_of_memory": Cause(
        "a machine ran out of memory",
        "request more (launch.memory_per_node) or lower data.num_workers, then: {resume} --set …",
        1,
        5,
    ),
    "checkpoint": Cause(
        "a checkpoint could not be written or read",
        "check: orchestrator checkpoint list {run} and orchestrator logs {run}",
        1,
        6,
    ),
    "disk_full": Cause(
        "a disk had no space left",
        "make room (older checkpoints: checkpoint.keep_last), then: {resume}",
        1,
        6,
    ),
    "time_limit": Cause("the job reached its time limit", "continue with: {resume}", 1, 7),
    "preempted": Cause("the scheduler took the machines for another job", "continue with: {resume}", 1, 7),
    "requeued": Cause("the scheduler requeued the job", "see: orchestrator status {run}", 1, 7),
    "cancelled": Cause("it was cancelled", "continue with: {resume}", 1, 7),
    "node_fail": Cause("a machine failed", "continue with: {resume}", 1, 7),
    "nccl_error": Cause(
        "the GPUs could not communicate",
        "check the nodes and the network; continue with: {resume}",
        1,
        7,
    ),
    "killed": Cause("a process was killed", "continue with: {resume}", 1, 7),
    "data": Cause(  # said of a job that never started; no rank says it
        "its data could not be made from text",
        "fix that, then: {resume} (finished parts of the data are kept)",
        1,
        7,
    ),
    "bug": Cause("the training program failed", "all details: orchestrator logs {run}", 1, 8),
    "lost": Cause(
        "the launcher and its processes disappeared without a record (machine down, or everything was killed)",
        "continue with: {resume}",
        1,
        9,
    ),
}


def cause_of(name: str) -> Cause:
    """The table's row; an unknown cause, from another version, counts as a bug."""
    return CAUSES.get(name, CAUSES["bug"])


@dataclass(frozen=True)
class Exit:
    """How a launch ended. `iteration`: the last step that some rank reported, None when none did. `evidence`: the lines
    of the logs that show it. `node`: the machine at fault, or several
    separated by commas, where that is known.
    """

    cause: str
    message: str
    iteration: int | None
    code: int
    evidence: tuple[str, ...] = ()
    node: str | None = None

    @classmethod
    def of(cls, cause: str, message: str, iteration: int | None) -> Exit:
        """With the exit code of the cause."""
        return cls(cause, message, iteration, cause_of(cause).exit_code)


def exit_records(run: RunDir, launch_id: str) -> dict[int, dict[str, Any]]:
    """What each rank of a launch said about its end; ranks that could not are missing."""
    records = {}
    for path in run.listed(run.exit_record(launch_id, 0).parent):
        match = _RECORD.fullmatch(path.name)
        record = run.read_object(path) if match else {}
        if match and isinstance(record.get("cause"), str):
            records[int(match.group(1))] = {**record, "iteration": count(record.get("iteration"))}
    return records


def lost_a_peer(message: str) -> bool:
    """Whether a rank failed because another one, or the network to it, was gone: that is not why the run ended."""
    return _LOST_PEER.search(message) is not None


def gpu_failed(message: str) -> bool:
    """Whether a GPU that is broken or taken is what a rank failed of."""
    return _GPU_FAILED.search(message) is not None


def telling_rank(records: dict[int, dict[str, Any]]) -> int | None:
    """The rank whose word explains the end: that with the most telling cause, and of several one that did not only lose
    another; None when no rank could say anything.
    """

    def order(rank: int) -> tuple[int, bool]:
        record = records[rank]
        return cause_of(record["cause"]).rank_order, lost_a_peer(str(record.get("message")))

    return min(records, key=order, default=None)


def by_word_of_the_ranks(run: RunDir, launch_id: str) -> Exit | None:
    """Why a launch ended, by what the rank with the most telling cause said; None when no rank could say anything."""
    records = exit_records(run, launch_id)
    rank = telling_rank(records)
    if rank is None:
        return None
    cause = records[rank]["cause"]
    message = str(records[rank].get("message") or "")
    return Exit.of(cause if cause in CAUSES else "bug", message, _iteration(records))


def _iteration(records: dict[int, dict[str, Any]]) -> int | None:
    said = [record["iteration"] for record in records.values() if record["iteration"] is not None]
    return max(said, default=None)
