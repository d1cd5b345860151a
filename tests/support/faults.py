"""Starting, watching and disturbing whole runs."""

from __future__ import annotations

import ctypes
import functools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from orchestrator.launch.runs import all_runs
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from support.commands import Commands, Said
from support.rank_processes import Started
from support.ranks import RankStarter
from support.training import events, kill_session, logs, losses, make_run
from support.warm_ranks import WarmRanks

Found = TypeVar("Found")

QUICK_TORCHRUN = Path(__file__).parent / "quick_torchrun"
"""First on PYTHONPATH it is the torchrun of a launch that is not about torchrun."""

FORKED = Path(__file__).parent / "forked"
"""First on PYTHONPATH it has programs forked that would import torch: `Ranks.for_commands`."""

UNSAVED = Path(__file__).with_name("unsaved.py")
"""For `inject`: no checkpoint at the end, where nobody looks at it."""

WEIGHTS_ALONE = Path(__file__).with_name("weights_alone.py")
"""For `inject`: a checkpoint at the end that has the weights, where nobody looks at the optimizer's state."""

SAVED_LESS = (UNSAVED, WEIGHTS_ALONE)

PATIENCE = 200.0
"""Seconds that something may take on a machine that is busy with other things."""


@dataclass(frozen=True)
class Ranks:
    """The training program without a launcher."""

    starter: RankStarter
    warm: WarmRanks = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "warm", WarmRanks(self.starter))

    def for_commands(self, *folders: Path) -> dict[str, str]:
        """Variables of commands whose programs are forked as these are; also torchrun's ranks, where torchrun is not
        what a test is about. `folders`: more of PYTHONPATH.
        """
        return {"PYTHONPATH": ":".join(map(str, (FORKED, *folders))), "RANKS_FROM": self.starter.name}

    def under_torchrun(self, *folders: Path) -> dict[str, str]:
        """The same with torchrun itself, which is forked as its ranks are."""
        return {**self.for_commands(*folders), "REAL_TORCHRUN": "yes"}

    def program(self, folder: Path, module: str, *arguments: str | Path, typed: str = "", seconds: float = 200) -> str:
        """What a Python program of `folder` prints, with `typed` as its standard input; it has to succeed."""
        finished = subprocess.run(
            [sys.executable, "-m", module, *map(str, arguments)],
            env={**os.environ, **self.for_commands(folder)},
            input=typed,
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def start(self, run: RunDir, job: JobSpec, *arguments: str, **options: object) -> Started:
        return self.starter.start(run.path, job.world_size, *arguments, **options)  # type: ignore[arg-type]

    def must_train(
        self,
        run: RunDir,
        job: JobSpec,
        *arguments: str,
        launch_id: str = "test",
        inject: Path | None = None,
        **options: object,
    ) -> RunDir:
        """Train to the end, and show the logs when that fails. In processes of its own where the job or the test does
        anything to them that would last.
        """
        own = arguments or options or inject not in (None, *SAVED_LESS)
        if own or job.launch.env or job.runtime.train_step is not None or job.runtime.deterministic or has_gpu():
            completed = self.start(run, job, *arguments, launch_id=launch_id, inject=inject, **options).wait() == 0
        else:
            completed = self.warm.train(run, job.world_size, launch_id=launch_id, saved=inject)
        assert completed, logs(run)
        return run

    def continued(self, folder: Path, *jobs: JobSpec) -> RunDir:
        """One run that goes on as each of these jobs, from where the last one ended."""
        for number, job in enumerate(jobs):
            run = make_run(folder, job)
            self.must_train(run, job, launch_id=str(number))
        ends = [job.schedule.train_iters for job in jobs[:-1]]
        assert [event["iteration"] for event in events(run, "resumed")] == ends
        return run

    def train_several(
        self,
        runs: Sequence[RunDir],
        world_size: int,
        *,
        launch_id: str = "test",
        inject: Path | None = None,
        saved: Mapping[RunDir, Path | None] | None = None,
    ) -> None:
        """Train jobs of as many ranks one after the other in the same processes. After one that fails the next goes on
        in others; what came of each is in its exit records. `saved`: UNSAVED or WEIGHTS_ALONE, of the runs that do not
        save all.
        """
        for run in runs:
            self.warm.train(run, world_size, launch_id=launch_id, saved=(saved or {}).get(run), inject=inject)
        if has_gpu():
            self.warm.end()

    def killed_and_resumed(
        self, run: RunDir, job: JobSpec, *, inject: Path | None = None, held: Mapping[str, str] | None = None
    ) -> int:
        """Train, with every rank killed once a checkpoint is saved; returns the iteration that it went on from. A
        training that may be over by then is held by HOLD of held.py, injected, and the variables of `hold_at`.
        """
        started = self.start(run, job, inject=inject, env=held)
        wait_until(lambda: committed(run) or started.poll() is not None, "a checkpoint")
        started.signal(signal.SIGKILL)
        assert started.wait() == 1, "it was killed before its end"
        self.must_train(run, job, inject=inject)
        [resumed] = events(run, "resumed")
        return int(resumed["iteration"])

    def undisturbed(self, job: JobSpec, folder: Path, inject: Path = WEIGHTS_ALONE) -> RunDir:
        """A training that is never interrupted and saves its weights, at its end alone."""
        checkpoint = job.checkpoint.model_copy(update={"save_interval": None, "save_seconds": None})
        unsaved = job.model_copy(update={"checkpoint": checkpoint})
        return self.must_train(make_run(folder, unsaved), unsaved, inject=inject)

    def losses_of(self, job: JobSpec, folder: Path) -> dict[int, float]:
        """Of a training that is never interrupted, and saves nothing."""
        return losses(self.undisturbed(job, folder, inject=UNSAVED))


@functools.cache
def has_gpu() -> bool:
    """Whether ranks may use one: what waits would hold its memory."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


@contextmanager
def ranks_forked_in(folder: Path, *modules: str) -> Iterator[Ranks]:
    """Ranks from a process that has imported what they need, and these modules as well; it ends with the block."""
    starter = RankStarter(folder, *modules)
    ranks = Ranks(starter)
    yield ranks
    ranks.warm.end()
    starter.close()


class CommandLine:
    """`orchestrator` as a program, in a folder of its own whose `runs` it uses. With `ranks` the programs that its
    commands start are forked as well.
    """

    def __init__(self, folder: Path, commands: Commands, ranks: Ranks | None = None) -> None:
        self.folder = folder
        self._commands = commands
        self.env = {} if ranks is None else ranks.for_commands()

    def write(self, job: JobSpec) -> Path:
        path = self.folder / f"{job.name}.yaml"
        path.write_text(dump_resolved(job))
        return path

    def __call__(self, *arguments: str | Path) -> Said:
        return self._commands(*arguments, cwd=self.folder, env={**os.environ, **self.env}, timeout=PATIENCE)

    @contextmanager
    def started(self, *arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
        """One that a test does something to while it runs."""
        process = subprocess.Popen(
            [sys.executable, "-m", "orchestrator", *map(str, arguments)],
            cwd=self.folder,
            env={**os.environ, **self.env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        with process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    kill_session(process)  # type: ignore[arg-type]

    def run(self) -> RunDir:
        """The latest run."""
        return wait_until(lambda: all_runs(self.folder / "runs"), "a run directory")[-1]


def wait_until(look: Callable[[], Found], what: str, every: float = 0.03) -> Found:
    """Look every so many seconds, until `look` finds something; its value."""
    deadline = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < deadline, f"waited {PATIENCE:.0f} s for {what}"
        time.sleep(every)
    return found


def wait_for_step(run: RunDir, step: int, *, saved: bool = True) -> None:
    """Wait until a step was measured and, unless told otherwise, some checkpoint is committed."""
    wait_until(lambda: max(losses(run), default=0) >= step, f"step {step} of {run.path}:\n{logs(run)}")
    if saved:
        wait_until(lambda: committed(run), f"a checkpoint of {run.path}")


def random_step(first: int, last: int) -> int:
    """A step of [first, last], another one in each run of the tests; printed, so that a failure can be repeated."""
    seed = time.time_ns()
    step = random.Random(seed).randint(first, last)
    print(f"random step {step} (seed {seed})")
    return step


def snapshot(run: RunDir) -> dict[str, bytes]:
    """Every file that a run's results are made of, by name."""
    files = [run.events_file, run.metrics_file, *run.system.glob("*"), *run.checkpoints.rglob("*")]
    return {str(path): path.read_bytes() for path in files if path.is_file()}
