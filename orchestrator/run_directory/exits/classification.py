"""Finding out why a launch ended: from the ranks' exit records, torchrun's report, and the last lines of the logs."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, replace
from pathlib import Path

from orchestrator.files.stored_files import size_of
from orchestrator.run_directory.exits.causes import (
    NO_FAILURES,
    Exit,
    by_word_of_the_ranks,
    exit_records,
    gpu_failed,
    lost_a_peer,
    telling_rank,
)
from orchestrator.run_directory.exits.host_failures import read_host_failure
from orchestrator.run_directory.rundir import RunDir

_TAIL_BYTES = 256 << 10
_RANK_PREFIX = re.compile(r"^\[rank ?\d+\]:? ?")
_EXCEPTION = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning)(?::.*)?")
_OUT_OF_MEMORY = {
    "out_of_memory": re.compile(
        # torch, CUDA (also by Transformer Engine), and NCCL, which takes its buffers with a group's first collective
        r"^.*(?:CUDA (?:[Ee]rror: )?out of memory|OutOfMemoryError|Cuda failure (?:\d+ )?'out of memory').*$",
        re.MULTILINE,
    ),
    "host_out_of_memory": re.compile(
        r"^(?:.*(?:can't allocate memory|Cannot allocate memory|std::bad_alloc).*|MemoryError.*)$", re.MULTILINE
    ),
}
# NCCL's last words where CUDA gave it no memory, for want of any or because something else had failed before
_NCCL_GOT_NONE = re.compile(r"^.*Failed to CUDA [cm]alloc.*$", re.MULTILINE)
_CUDA_FAILED = re.compile(r"Cuda failure (?:\d+ )?'(?!out of memory)|CUDA error: (?!out of memory)")
_NCCL_ERROR = re.compile(
    r"^.*(?:NCCL error|nccl(?:System|Remote|Internal|UnhandledCuda)Error|Watchdog caught collective operation time).*$",
    re.MULTILINE,
)
# Python 3.11 and later: "… (ModuleNotFoundError: No module named 'torch')"; before, of `-m`: "No module named torch"
_LACKS_A_PACKAGE = re.compile(
    r"^.*No module named (?:'(torch|megatron|orchestrator)(?:\.core)?'|(torch|orchestrator)\b).*$", re.MULTILINE
)
# What C++ says of an exception that nobody takes, as in torch's threads: "  what():  [PG ID 0 …] … CUDA error: …"
_UNCAUGHT = re.compile(r"^\s*(what\(\):.*)$", re.MULTILINE)
# Where the thread that crashed was in Python, as faulthandler writes it: the line after "Current thread 0x… (most …):"
_CRASHED_IN = re.compile(r"^Current thread 0x.*\n\s*(File .*)$", re.MULTILINE)
# torchrun's account of a failure starts with a line of its logger: what the ranks printed themselves is before it.
_TORCHRUN_REPORT = re.compile(r"^[EW]\d{4} .*torch/distributed/elastic", re.MULTILINE)
# torchrun's report of a failed rank: "  host      : n1", "  rank      : 1 (local_rank: 1)", "  exitcode  : -9 (pid: 2)"
_FAILED_RANK = re.compile(
    r"^\s*host\s*: (\S+)\n\s*rank\s*: (\d+) \(local_rank: \d+\)\n\s*exitcode\s*: (-?\d+)\s*\(pid: (\d+)\)",
    re.MULTILINE,
)
# What torchrun says before it ends a rank that still ran when another had failed: by SIGTERM, then by SIGKILL.
_ENDED_BY_TORCHRUN = re.compile(
    r"^W\d{4} .*torch/distributed/elastic.* Sending process (\d+) closing signal", re.MULTILINE
)
_OWN_LINE = "=== "
"""How the lines begin that the launcher itself writes into a log."""
_SIGNALS_OF_TORCHRUN = (-signal.SIGTERM, -signal.SIGKILL)


@dataclass(frozen=True)
class LogMarks:
    """Sizes of the logs before a launch, so that only what it wrote itself is read."""

    sizes: dict[Path, int]

    @classmethod
    def of(cls, run: RunDir) -> LogMarks:
        """The sizes now."""
        return cls({path: size_of(path) for path in log_files(run)})

    def tail(self, run: RunDir, path: Path) -> str:
        """The last part of what was written since; empty when there is no such file."""
        try:
            with run.open(path) as file:
                size = file.seek(0, 2)
                start = self.sizes.get(path, 0)
                file.seek(max(start if start <= size else 0, size - _TAIL_BYTES))
                return file.read(_TAIL_BYTES).decode(errors="replace")
        except OSError:  # it is missing, or no file of the run
            return ""


def log_files(run: RunDir) -> list[Path]:
    """The launcher's log and the ranks', those that exist."""
    launcher = [run.launcher_log] if run.launcher_log.exists() else []
    return launcher + [path for path in run.listed(run.logs) if path.match("rank-*.log")]


def classify(run: RunDir, launch_id: str, return_code: int, marks: LogMarks) -> Exit:
    """Why a launch ended whose torchrun returned `return_code` (negative: a signal)."""
    word = by_word_of_the_ranks(run, launch_id)
    launcher_tail = marks.tail(run, run.launcher_log)
    failed = failed_ranks(launcher_tail)
    if word is not None and _settles(word.cause, return_code, failed):
        return _with_its_node(run, launch_id, word, failed) if word.cause == "gpu_error" else word
    iteration = word.iteration if word is not None else None
    if by_hosts := _hosts_at_fault(run, launch_id, iteration):
        return by_hosts
    tails = {run.rank_log(rank): marks.tail(run, run.rank_log(rank)) for rank in (failed or [0])}
    tails[run.launcher_log] = launcher_tail
    if broken := _broken_gpu(run, failed, tails, iteration):
        return broken
    for cause, pattern in _OUT_OF_MEMORY.items():
        if found := _first_line(pattern, tails):
            return _out_of_memory(cause, *found, tails, iteration)
    sound = {path: text for path, text in tails.items() if not _CUDA_FAILED.search(text)}
    if found := _first_line(_NCCL_GOT_NONE, sound):
        return _out_of_memory("out_of_memory", *found, tails, iteration)
    if found := _first_line(_LACKS_A_PACKAGE, tails):
        return _wrong_python(*found, iteration)
    # Once one has failed torchrun ends the others: their ends explain nothing, unless all were ended.
    culprits = {rank: rank_end for rank, rank_end in failed.items() if not rank_end.by_torchrun} or failed
    killed = {rank: rank_end.code for rank, rank_end in culprits.items() if rank_end.code < 0}
    # Torch ends a rank by SIGABRT when NCCL tells it of an error, most often that of another rank.
    aborted = {rank for rank, code in killed.items() if code == -signal.SIGABRT}
    suffered = {rank for rank in aborted if _suffers(_last_words(tails[run.rank_log(rank)]))}
    first = min(killed, key=lambda rank: (rank in suffered, killed[rank] == -signal.SIGTERM, rank), default=None)
    by_signal = None if first is None else _killed(first, failed[first], run.rank_log(first), tails, iteration)
    if by_signal is not None and first not in suffered:
        return by_signal
    if word is not None and word.message and word.cause not in NO_FAILURES and not _suffers(word.message):
        return Exit.of("bug", word.message, iteration)
    if end := _nccl_error(run, failed, tails, iteration) or by_signal:
        return end
    if return_code < 0:
        return Exit.of("killed", f"torchrun was ended by {signal_name(-return_code)}", iteration)
    if word is not None and word.message:
        return Exit.of("bug", word.message, iteration)
    own = tails[run.launcher_log] = before_the_report(launcher_tail)
    raised = {path: exception for path, text in tails.items() if (exception := last_exception(text))}
    if raised:
        path = min(raised, key=lambda path: lost_a_peer(raised[path]))
        return _shown(Exit.of("bug", raised[path], iteration), path, raised[path])
    return Exit.of("bug", _last_line(own) or f"torchrun returned {return_code}", iteration)


def _hosts_at_fault(run: RunDir, launch_id: str, iteration: int | None) -> Exit | None:
    """What was found out about the hosts of a launch: more than ranks know that lost the others with one."""
    failure = read_host_failure(run, launch_id)
    if failure is None:
        return None
    if failure.was_cancelled:
        return Exit.of("cancelled", failure.why, iteration)
    if not failure.hosts:
        return Exit.of("user_error", failure.why, iteration)
    names = ", ".join(failure.hosts)
    end = Exit.of("node_fail", f"lost {names}: {failure.why}", iteration)
    return replace(end, node=",".join(failure.hosts))


@dataclass(frozen=True)
class RankEnd:
    """What torchrun reports of a failed rank. `code`: its exit code, negative for a signal. `by_torchrun`: it still ran
    when another had failed, and torchrun ended it.
    """

    code: int
    host: str
    by_torchrun: bool


def failed_ranks(output: str) -> dict[int, RankEnd]:
    """The failed ranks, from what torchrun printed."""
    ended = set(_ENDED_BY_TORCHRUN.findall(output))
    return {
        # Another host may have a process of the same number: what torchrun ends, ends by one of its two signals.
        int(rank): RankEnd(int(code), host, pid in ended and int(code) in _SIGNALS_OF_TORCHRUN)
        for host, rank, code, pid in _FAILED_RANK.findall(output)
    }


def before_the_report(output: str) -> str:
    """What the programs printed themselves, without torchrun's account of their failure."""
    return _TORCHRUN_REPORT.split(output, maxsplit=1)[0]


def last_exception(text: str) -> str | None:
    """The last line of the last Python traceback in a log. In one that several ranks have written, the last of a rank
    that did not fail because it had lost another.
    """
    lines = [_RANK_PREFIX.sub("", line) for line in text.splitlines()]
    starts = [number for number, line in enumerate(lines) if line.startswith("Traceback (most recent call last)")]
    ends = (next(filter(_EXCEPTION.fullmatch, lines[start + 1 :]), None) for start in reversed(starts))
    raised = [end for end in ends if end is not None]
    if raised:
        return min(raised, key=lost_a_peer)
    return next((line for line in reversed(lines) if _EXCEPTION.fullmatch(line) and ": " in line), None)


def signal_name(number: int) -> str:
    """SIGKILL for 9, and so on."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _settles(cause: str, return_code: int, failed: dict[int, RankEnd]) -> bool:
    """Whether a rank's own word settles the matter. `completed` and `stopped` do only if nothing went wrong after."""
    if cause in ("completed", "stopped"):
        # torchrun returns 1 when it was sent SIGTERM itself, although every rank has stopped cleanly.
        return return_code == 0 or (return_code == 1 and not failed)
    return cause not in ("bug", "killed", "lost")


def _with_its_node(run: RunDir, launch_id: str, word: Exit, failed: dict[int, RankEnd]) -> Exit:
    """The word of a rank about its GPU, with the machine that it ran on."""
    rank = telling_rank(exit_records(run, launch_id))
    host = None if rank is None or rank not in failed else failed[rank].host
    return replace(word, node=host)


def _broken_gpu(run: RunDir, failed: dict[int, RankEnd], tails: dict[Path, str], iteration: int | None) -> Exit | None:
    """What CUDA said of a GPU to a rank that could not leave a word of its own."""
    for rank, rank_end in failed.items():
        path = run.rank_log(rank)
        for line in map(str.strip, tails[path].splitlines()):
            if gpu_failed(line):
                return _shown(Exit.of("gpu_error", line, iteration), path, line, node=rank_end.host)
    return None


def _out_of_memory(cause: str, path: Path, line: str, tails: dict[Path, str], iteration: int | None) -> Exit:
    """The end of a launch that a line of a log shows."""
    return _shown(Exit.of(cause, last_exception(tails[path]) or "", iteration), path, line)


def _wrong_python(path: Path, line: str, iteration: int | None) -> Exit:
    """The end of a launch by a Python that lacks what every training needs."""
    match = _LACKS_A_PACKAGE.match(line)
    lacks = next(filter(None, match.groups()), "") if match else ""
    message = (
        f"the Python that trains has no {lacks}: let launch.python name another one, or install there what "
        "training needs (pip install 'megatron-orchestrator[train]')"
    )
    return _shown(Exit.of("user_error", message, iteration), path, line)


def _suffers(text: str) -> bool:
    """Whether a rank says no more than what the end of another one, or a broken network, does to it."""
    return lost_a_peer(text) or _NCCL_ERROR.search(text) is not None


def _last_words(text: str) -> str:
    """Of the log of a rank that was aborted the exception that did it, else all of it."""
    found = _UNCAUGHT.search(text)
    return found.group() if found else text


def _nccl_error(run: RunDir, failed: dict[int, RankEnd], tails: dict[Path, str], iteration: int | None) -> Exit | None:
    """What NCCL said: of several ranks one that did not only lose another. Where all did, on several machines, none of
    them is known to be at fault.
    """
    found = {path: match for path, text in tails.items() if (match := _NCCL_ERROR.search(text))}
    if not found:
        return None
    lost = {path: lost_a_peer(_with_details(match)) for path, match in found.items()}
    path = min(found, key=lambda path: lost[path])
    hosts = {run.rank_log(rank): rank_end.host for rank, rank_end in failed.items()}
    at_fault = set(hosts.values()) if lost[path] else {hosts.get(path)}
    line = found[path].group().strip()
    end = Exit.of("nccl_error", line, iteration)
    return _shown(end, path, line, node=at_fault.pop() if len(at_fault) == 1 else None)


def _with_details(match: re.Match[str]) -> str:
    """The line that was found and the three after it: torch writes NCCL's code and its last error there."""
    return "\n".join(match.string[match.start() :].split("\n", 4)[:4])


def _first_line(pattern: re.Pattern[str], tails: dict[Path, str]) -> tuple[Path, str] | None:
    """The first line that matches, with the log it stands in."""
    for path, text in tails.items():
        found = pattern.search(text)
        if found:
            return path, found.group().strip()
    return None


def _shown(end: Exit, path: Path, line: str, node: str | None = None) -> Exit:
    """The exit with the line of a log that shows it."""
    return replace(end, evidence=(f"{path.name}: {line}",), node=node)


def ended_by(number: int) -> str:
    """A signal that has ended a process, and who may have sent it."""
    if number != signal.SIGKILL:
        return signal_name(number)
    return (
        f"{signal_name(number)}; if no person did that, the system did, usually because the machine ran out of memory"
    )


def _killed(rank: int, rank_end: RankEnd, log: Path, tails: dict[Path, str], iteration: int | None) -> Exit:
    end = Exit.of("killed", _killed_message(rank, -rank_end.code), iteration)
    if found := _UNCAUGHT.search(tails[log]) or _CRASHED_IN.search(tails[log]):
        return _shown(end, log, found[1].strip(), node=rank_end.host)
    return replace(end, node=rank_end.host)


def _killed_message(rank: int, number: int) -> str:
    message = f"rank {rank} was ended by {ended_by(number)}"
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        message += f"; see its log (logs/rank-{rank:05d}.log and logs/launcher.log)"
    return message


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(_OWN_LINE)]
    return lines[-1] if lines else ""
