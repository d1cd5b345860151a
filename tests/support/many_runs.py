"""Thousands of run directories, made of copies of real ones."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from baseline.packing import kept, unpack

from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.rundir import RunDir
from support.event_log import lines_of

TEMPLATES = ("dp", "interrupted", "gpt")
"""Kept runs (baseline/runs) that `copies_of_kept_runs` are made of."""
THOUSANDS = 5000
_WORTH_ANOTHER_PROCESS = 500
_HOUR = 3600.0
_TESTS = Path(__file__).parents[1]
_LONG_AGO = 1.7e9
_MEASURED = """
import resource, sys
from orchestrator.cli.main import main
code = main(sys.argv[1:])
used = resource.getrusage(resource.RUSAGE_SELF)
[most] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(used.ru_utime + used.ru_stime, int(most) / 1024, file=sys.stderr)
sys.exit(code)
"""
"""Its memory by VmHWM: `ru_maxrss` begins with what the process had that started it."""


def copies_of_kept_runs(folder: Path, count: int, *, long: int = 0, steps: int = 10) -> list[RunDir]:
    """`many_runs` in `folder`/runs, of TEMPLATES."""
    for name in TEMPLATES:
        unpack(kept(name), folder / "few")
    runs = {run.name: run for run in all_runs(folder / "few" / "runs")}
    return many_runs([runs[name] for name in TEMPLATES], folder / "runs", count, long=long, steps=steps)


@dataclass(frozen=True)
class Thousands:
    """A folder of THOUSANDS of runs with an index. `listed`: what `list` printed that made the index, in `megabytes` of
    memory.
    """

    folder: Path
    listed: str
    megabytes: float


def thousands_in(folder: Path) -> Thousands:
    """Make them. Nothing was written for a long time: an index lacks what was changed just before."""
    for run in copies_of_kept_runs(folder, THOUSANDS):
        for path in (run.path, run.events_file, run.lease, run.checkpoints):
            if path.exists():
                os.utime(path, (_LONG_AGO, _LONG_AGO))
    listed, _, megabytes = spent("list", "--runs-dir", str(folder / "runs"))
    return Thousands(folder / "runs", listed, megabytes)


def spent(*words: str) -> tuple[str, float, float]:
    """What a command prints, its processor seconds, and its megabytes."""
    finished = subprocess.run([sys.executable, "-c", _MEASURED, *words], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, finished.stderr.split()[-2:])
    return finished.stdout, seconds, megabytes


def many_runs(runs: Sequence[RunDir], runs_dir: Path, count: int, *, long: int, steps: int) -> list[RunDir]:
    """`count` copies of these runs in a folder, with specs and names of their own; the first `long` are copies of the
    first run and have measured so many steps.

    Files that say the same are one file with several names: the runs with many measurements share theirs.
    """
    runs_dir.mkdir()
    if long:
        _write_long(runs[0], _long_metrics(runs_dir), steps)
    copies = Copies(tuple(run.path for run in runs), runs_dir, count, long)
    if count < _WORTH_ANOTHER_PROCESS:
        copies.make(0, 1)
    else:
        with subprocess.Popen(
            [sys.executable, "-m", "support.many_runs", pickle.dumps(copies).hex()], cwd=_TESTS
        ) as other:
            copies.make(0, 2)
        assert other.returncode == 0
    return [copies.run(number) for number in range(count)]


@dataclass(frozen=True)
class Copies:
    """What copies `many_runs` makes of which runs, where; processes make a share each."""

    originals: tuple[Path, ...]
    runs_dir: Path
    count: int
    long: int

    def run(self, number: int) -> RunDir:
        """Where a copy is."""
        original = RunDir(self.originals[self._original_of(number)])
        return RunDir(self.runs_dir / f"{original.name}-{number % 40:02d}" / f"{number:08x}")

    def make(self, first: int, step: int) -> None:
        """Make the first and each that is so many further."""
        templates = [_Template(RunDir(path)) for path in self.originals]
        for number in range(first, self.count, step):
            run = self.run(number)
            templates[self._original_of(number)].copy(run, number)
            if number < self.long:
                run.metrics_file.unlink()
                os.link(_long_metrics(self.runs_dir), run.metrics_file)

    def _original_of(self, number: int) -> int:
        return 0 if number < self.long else number % len(self.originals)


def _long_metrics(runs_dir: Path) -> Path:
    return runs_dir.parent / "long.jsonl"


class _Template:
    """A run that is copied, read once for all copies."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.resolved = run.resolved()
        self.spec = json.loads(self.resolved.read_bytes())
        self.events = lines_of(run)
        self.folders, self.files = [], []
        for path in sorted(run.path.rglob("*")):
            if path.is_dir():
                self.folders.append(self._name(path))
            elif path.suffix != ".distcp" and path not in (self.resolved, run.events_file, run.membership):
                self.files.append((str(path), self._name(path)))

    def copy(self, run: RunDir, number: int) -> None:
        """With another learning rate, and an earlier time; without a lock on any other run's files."""
        run.path.mkdir(parents=True)
        for folder in self.folders:
            os.mkdir(f"{run.path}/{folder}")
        for path, name in self.files:
            os.link(path, f"{run.path}/{name}", follow_symlinks=False)
        spec = {**self.spec, "optimizer": {**self.spec["optimizer"], "lr": 1e-4 * (1 + number)}}
        (run.path / self._name(self.resolved)).write_text(json.dumps(spec))
        events = ({**event, "time": event["time"] - number * _HOUR} for event in self.events)
        run.events_file.write_text("".join(json.dumps(event) + "\n" for event in events))

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.run.path))


def _write_long(run: RunDir, path: Path, steps: int) -> None:
    """Records of a real run, again and again with later steps."""
    records = [json.loads(line) for line in run.metrics_file.read_bytes().splitlines()]
    parts = []  # of each record its time, its loss, and all else as it is written
    for record in records:
        values = record["values"]
        if "train/loss" in values:
            others = {key: value for key, value in values.items() if key != "train/loss"}
            written = json.dumps(others, separators=(",", ":"))[1:]
            parts.append((record["time"], values["train/loss"], written))
    with open(path, "w") as file:
        for step, (time, loss, others) in enumerate(islice(cycle(parts), steps), start=1):
            file.write(
                f'{{"time":{time + step},"iteration":{step},"samples":{8 * step},"tokens":{512 * step},'
                f'"values":{{"train/loss":{loss / (1 + step / steps)},{others}}}\n'
            )


if __name__ == "__main__":
    copies: Copies = pickle.loads(bytes.fromhex(sys.argv[1]))
    copies.make(1, 2)
