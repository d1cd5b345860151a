"""`python -m orchestrator.runtime.health RUN_DIR [--timeout S]`: see the package."""

from __future__ import annotations

import orchestrator.runtime.health.warning_filters  # noqa: F401 (sets a variable that torch reads when it is imported)

# isort: split
import argparse
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from orchestrator.run_directory.rundir import RunDir, write_atomically
from orchestrator.runtime.health import forked_call
from orchestrator.runtime.health.node_check import check_node
from orchestrator.runtime.health.rendezvous import Coordinator, Meeting, participate
from orchestrator.runtime.health.verdict import Fault, Limits, Verdict, node_faults

HEALTHY, UNHEALTHY, BROKEN = 0, 3, 1
_REPORT_SECONDS = 5.0
_NODE_0_IS_GONE = ("ConnectionError", "DistNetworkError", "DistStoreError")

_VARIABLES = """
environment:
  NODE_RANK, NODES            this node's number, from 0, and how many there are
  MASTER_ADDR, MASTER_PORT    address of node 0, and a free port there (needed with several nodes)
  NODE_NAME                   what to call this node
  NODE_NAMES                  names of all nodes by number, separated by commas; lets an absent node be named
  ORCHESTRATOR_LAUNCH_ID      names the report

exit codes: 0 healthy, 3 something is wrong, anything else: the check itself failed
"""


def main(arguments: list[str] | None = None) -> int:
    """Check, say the verdict (on node 0), and return the exit code."""
    options = _parser().parse_args(arguments)
    run = RunDir(options.run_dir.absolute())
    limits = Limits(options.clock_skew, options.free_memory, options.free_disk, options.free_tmp)
    try:
        meeting = _meeting(options)
    except ValueError as error:
        print(f"health check: {error}", file=sys.stderr)
        return BROKEN
    return (_first_node if meeting.rank == 0 else _other_node)(meeting, run, limits)


def _first_node(meeting: Meeting, run: RunDir, limits: Limits) -> int:
    try:
        verdict = _lead(meeting, run, limits)
    except RuntimeError as error:
        print(f"health check: {meeting.names[0]} cannot lead it: {forked_call.one_line(error)}", file=sys.stderr)
        return BROKEN
    return HEALTHY if verdict.healthy else UNHEALTHY


def _lead(meeting: Meeting, run: RunDir, limits: Limits) -> Verdict:
    """Node 0 judges in this process and takes part, like every other node, in another."""
    names = meeting.names
    if len(names) == 1:
        facts = {0: check_node(run, names[0], limits, meeting.seconds)}
        verdict = Verdict(names, node_faults(names, facts, facts, limits), facts)
        _publish(verdict, run)
        return verdict
    parent, participant = os.getpid(), os.fork()
    if participant == 0:
        forked_call.die_with(parent)
        _other_node(meeting, run, limits, quiet=True)
        os._exit(0)
    try:
        coordinator = Coordinator.of(meeting, limits)
        verdict = coordinator.judge()
        # Before the others hear it: the first one that ends may make their launcher kill all the rest.
        _publish(verdict, run)
        coordinator.tell({"healthy": verdict.healthy})
        return verdict
    finally:
        os.kill(participant, signal.SIGKILL)


def _other_node(meeting: Meeting, run: RunDir, limits: Limits, quiet: bool = False) -> int:
    """Take part. When node 0 gives no verdict, it is the one at fault."""
    first = meeting.names[0]
    try:
        verdict = forked_call.call(lambda: participate(meeting, run, limits), meeting.seconds)
        return HEALTHY if verdict["healthy"] else UNHEALTHY
    except TimeoutError:
        what = f"{first} gave no result within {meeting.seconds:.0f} s"
    except forked_call.CallFailedError as error:
        if error.kind not in _NODE_0_IS_GONE:
            print(f"health check: it failed on {meeting.names[meeting.rank]}: {error}", file=sys.stderr)
            return BROKEN
        what = f"{first} cannot be reached at {meeting.address}:{meeting.port} ({error})"
    # A node that was itself asleep may find that node 0 has long judged.
    if not quiet and not _has_report(run):
        _publish(Verdict(meeting.names, [Fault((first,), what)]), run)
    return UNHEALTHY


def _publish(verdict: Verdict, run: RunDir) -> None:
    """Say the verdict and leave the report in the run directory; nobody waits for a dead file system."""
    print(verdict.line, flush=True)
    report = {"launch_id": _launch_id(), "time": time.time(), **verdict.to_json()}
    path = run.health_report(_launch_id())

    def write() -> None:
        try:
            path.parent.mkdir(exist_ok=True)
            write_atomically(path, json.dumps(report, indent=1) + "\n")
        except OSError as error:
            print(f"health check: its report could not be written to {path}: {error.strerror}", file=sys.stderr)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    writing.join(_REPORT_SECONDS)


def _has_report(run: RunDir) -> bool:
    try:
        return bool(forked_call.call(run.health_report(_launch_id()).exists, _REPORT_SECONDS))
    except (TimeoutError, forked_call.CallFailedError):
        return False


def _launch_id() -> str:
    return os.environ.get("ORCHESTRATOR_LAUNCH_ID", "by-hand")


def _meeting(options: argparse.Namespace) -> Meeting:
    """Who meets where, from the environment. Raises ValueError when it does not say so."""
    try:
        rank, count = int(os.environ.get("NODE_RANK", "0")), int(os.environ.get("NODES", "1"))
        port = int(os.environ.get("MASTER_PORT", "0"))
    except ValueError as error:
        raise ValueError(f"NODE_RANK, NODES and MASTER_PORT are numbers: {error}") from error
    if not 0 <= rank < count:
        raise ValueError(f"NODE_RANK is {rank}, but it is one of {count} nodes (NODES)")
    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    if count > 1 and not ("MASTER_ADDR" in os.environ and port):
        raise ValueError("with several nodes MASTER_ADDR and MASTER_PORT say where node 0 is")
    names = [name.strip() for name in os.environ.get("NODE_NAMES", "").split(",")]
    if len(names) != count or not all(names):
        names = [f"node {number}" for number in range(count)]
    names[rank] = os.environ.get("NODE_NAME") or names[rank]
    seconds = options.timeout if options.timeout is not None else 120.0 + 5 * count
    return Meeting(address, port, rank, names, seconds, options.pair_timeout)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m orchestrator.runtime.health",
        description="Check the nodes of a job before its first step.",
        epilog=_VARIABLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR")
    parser.add_argument("--timeout", type=float, help="seconds for the whole check (120, and 5 for each node)")
    parser.add_argument("--pair-timeout", type=float, default=30.0, help="most seconds for one all-reduce (30)")
    limits = Limits()
    for name, of, default in (
        ("--clock-skew", float, limits.clock_skew),
        ("--free-memory", float, limits.free_memory),
        ("--free-disk", int, limits.free_disk),
        ("--free-tmp", int, limits.free_tmp),
    ):
        parser.add_argument(name, type=of, default=default, help=f"{_MEANING[name]} ({default})")
    return parser


_MEANING = {
    "--clock-skew": "seconds by which a clock may be off",
    "--free-memory": "share of each GPU's memory that must be free",
    "--free-disk": "bytes that must be free where the run directory is",
    "--free-tmp": "bytes that must be free in the temporary folder",
}


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # A thread may still wait for a dead file system.
    os._exit(code)
