"""Who may write a run: exactly one incarnation at a time.

The holder is the highest number in `RUN_DIR/lease/`: 000001.json, 000002.json, … Each is created exclusively, names
the process that made it, and is touched as a heartbeat. The number is the fencing token: whoever sees a higher one
has lost the lease for good. Nothing is ever deleted, so numbers only grow; a holder that ends cleanly leaves
000001.released beside its file. For one that was killed its machine may do so.

A lease is taken over only when its holder has released it, is a dead process of this host, has not touched its file for
its time-to-live, or is an earlier incarnation of the same scheduler's job (`supersedes`). Age is measured by the file
system's own clock, so hosts' clocks need not agree.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestrator.errors import LeaseLost, RunIsHeld, UserError
from orchestrator.files.file_numbers import next_number
from orchestrator.files.stored_files import moment, number, parse_line
from orchestrator.process import Process
from orchestrator.quantities import timestamp
from orchestrator.run_directory.exclusive_files import create_exclusively
from orchestrator.run_directory.rundir import RunDir, in_command

logger = logging.getLogger(__name__)

DEFAULT_TIME_TO_LIVE = 60.0
"""Seconds after which a holder that stays silent may be replaced."""

_LONGEST_TIME_TO_LIVE = 30 * 86400.0
_INCARNATION = re.compile(r"(.+)\.(\d{1,18})", re.ASCII)
_LEASE_FILE = re.compile(r"(\d{6}|[1-9]\d{6,8})\.json", re.ASCII)
_MOST_BYTES = 1 << 16


@dataclass(frozen=True)
class Holder:
    """The newest lease of a run. `live`: it may still write; `reason` says in words why, or why not."""

    token: int
    launch_id: str
    process: Process
    since: float
    live: bool
    reason: str

    def describe(self) -> str:
        """'pid 42 on host7 since 2026-01-31 12:00:00'; of a damaged lease 'an unknown process since …'."""
        who = f"pid {self.process.pid} on {self.process.host}" if self.process.pid else "an unknown process"
        return f"{who} since {timestamp(self.since)}"


class Lease:
    """The right to write a run, for as long as no higher number exists."""

    def __init__(self, run: RunDir, token: int, time_to_live: float | None) -> None:
        """Use `acquire` or `attach`. `time_to_live` is None where this process does not own the heartbeat."""
        self.run = run
        self.token = token
        self._time_to_live = time_to_live
        self._path = _lease_path(run, token)
        self._successor = _lease_path(run, token + 1)
        self._lost = False
        self._stopping = threading.Event()
        self._heartbeat: threading.Thread | None = None

    @classmethod
    def acquire(cls, run: RunDir, *, launch_id: str, time_to_live: float = DEFAULT_TIME_TO_LIVE) -> Lease:
        """Become the holder. Raises RunIsHeld when a live process holds the run, or wins the race for it.

        An earlier incarnation of the same scheduler's job is replaced, live or not. Raises FileNotFoundError where the
        run is gone, UserError where something stands in the place of the next lease.
        """
        run.lease.mkdir(exist_ok=True)  # not its folder: one that was deleted this moment must not come back
        lost = 0
        while True:
            holder = read_holder(run)
            if holder is not None and holder.live and not supersedes(launch_id, holder.launch_id):
                raise RunIsHeld(held_message(run, holder))
            token = next_number(0 if holder is None else holder.token, run.lease)
            if token == lost:  # whoever won the race would be the holder
                raise UserError(
                    f"run {run.run_id} cannot be started: {_lease_path(run, token)} is in the way, and not listed as "
                    "a lease; remove it",
                    code="damaged_lease",
                )
            record = {
                "token": token,
                "launch_id": launch_id,
                **Process.current().to_record(),
                "since": time.time(),
                "time_to_live": time_to_live,
            }
            if create_exclusively(_lease_path(run, token), json.dumps(record).encode()):
                return cls(run, token, time_to_live)
            lost = token

    @classmethod
    def attach(cls, run: RunDir, token: int) -> Lease:
        """The lease that another rank of the same launch holds: to check, not to keep alive."""
        return cls(run, token, None)

    def check(self) -> None:
        """Raises LeaseLost when another incarnation has taken over. Costs one stat; call it before every write."""
        if self._lost or self._successor.exists():
            self._lost = True
            raise LeaseLost(
                f"run {self.run.run_id}: lease {self.token} was taken over by a newer start of this run; "
                "this process stops writing"
            )

    def start_heartbeat(self) -> None:
        """Touch the lease from a thread, four times per time-to-live, until `release`. The holder only."""
        if self._time_to_live is None or self._heartbeat is not None:
            raise ValueError("the heartbeat belongs to the holder and is started once")
        self._heartbeat = threading.Thread(target=self._beat, args=(self._time_to_live / 4,), daemon=True)
        self._heartbeat.start()

    def release(self) -> None:
        """Say that this holder writes no more. The lease file stays; a second call does nothing."""
        self._stopping.set()
        if self._heartbeat is not None and self._heartbeat is not threading.current_thread():
            self._heartbeat.join()
        if self._time_to_live is not None:
            _released(self._path).touch()

    def _beat(self, interval: float) -> None:
        while not self._stopping.wait(interval):
            try:
                os.utime(self._path)
                # Listing makes a network file system look again, where `check` may see a cached "not there".
                newest = _newest_token(self.run)
            except OSError as error:
                logger.warning("lease %s could not be touched: %s", self._path, error)
                continue
            if newest > self.token:
                self._lost = True
                return


def read_holder(run: RunDir) -> Holder | None:
    """The newest lease of a run, live or not; None when the run has never been held. Raises OSError where it cannot be
    read: nobody knows then who may write.
    """
    token = _newest_token(run)
    if token == 0:
        return None
    path = _lease_path(run, token)
    record, touched = _read(run, path)
    process = Process.from_record(record)
    time_to_live = number(record.get("time_to_live"), DEFAULT_TIME_TO_LIVE, least=0.0, most=_LONGEST_TIME_TO_LIVE)
    live, reason = _judge(path, process, touched, time_to_live)
    since = moment(record.get("since"))
    return Holder(
        token=token,
        launch_id=str(record.get("launch_id", "?")),
        process=process,
        since=touched if since is None else since,
        live=live,
        reason=reason,
    )


def release_for_the_dead(run: RunDir, launch_id: str) -> None:
    """Say in the place of a holder of that launch that it writes no more, where its process was on this machine and is
    known to be gone. Other machines cannot know, and would wait until it has been silent for its time-to-live.
    """
    holder = read_holder(run)
    if holder is not None and holder.launch_id == launch_id and holder.process.is_dead:
        _released(_lease_path(run, holder.token)).touch()


def supersedes(newer: str, older: str) -> bool:
    """Whether two launch ids are incarnations JOB.RESTARTS of one scheduler's job, `newer` the later one.

    A scheduler starts a job again only when it has given the earlier incarnation up, whose processes may still live
    where it cannot reach them.
    """
    new, old = _INCARNATION.fullmatch(newer), _INCARNATION.fullmatch(older)
    return bool(new and old and new.group(1) == old.group(1) and int(new.group(2)) > int(old.group(2)))


def is_held(run: RunDir) -> bool:
    """Whether somebody may write the run, as far as is known here."""
    holder = read_holder(run)
    return holder is not None and holder.live


def held_message(run: RunDir, holder: Holder) -> str:
    """Who holds the run and what can be done about it."""
    named = in_command(run)
    return (
        f"run {run.run_id} is held by {holder.describe()} ({holder.reason}).\n"
        f"      Follow it with `orchestrator logs {named} -f`, stop it with `orchestrator cancel {named}`, "
        "or start another run of the same spec with `orchestrator run --new`."
    )


def _judge(path: Path, process: Process, touched: float, time_to_live: float) -> tuple[bool, str]:
    if _released(path).exists():
        return False, "released"
    if process.is_dead:
        return False, "its process has ended"
    age = max(0.0, _file_system_time(path.parent) - touched)
    if age > time_to_live:
        return False, f"silent for {age:.0f} s, more than its {time_to_live:g} s"
    return True, f"last sign of life {age:.0f} s ago"


def _newest_token(run: RunDir) -> int:
    try:
        names = os.listdir(run.lease)
    except FileNotFoundError:
        return 0
    return max((int(match.group(1)) for name in names if (match := _LEASE_FILE.fullmatch(name))), default=0)


def _lease_path(run: RunDir, token: int) -> Path:
    return run.lease / f"{token:06d}.json"


def _released(lease: Path) -> Path:
    return lease.with_suffix(".released")


def _read(run: RunDir, path: Path) -> tuple[dict[str, Any], float]:
    """The record ({} while it is still being written) and the time of the last touch."""
    with run.open(path) as file:  # opening, unlike stat, makes NFS ask the server for the current times
        touched = os.fstat(file.fileno()).st_mtime
        content = file.read(_MOST_BYTES)
    return parse_line(content) or {}, touched


def _file_system_time(folder: Path) -> float:
    """Now, by the clock that stamps files in this folder; our own clock where we may not write there."""
    probe = folder / f".probe-{uuid.uuid4().hex}"
    try:
        probe.touch()
        try:
            return probe.stat().st_mtime
        finally:
            probe.unlink()
    except OSError:
        return time.time()
