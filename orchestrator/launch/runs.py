"""Creating run directories and finding them again."""

from __future__ import annotations

import contextlib
import difflib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path

from orchestrator.errors import OrchestratorError, PerhapsSubmitted, RunNotFound, UserError
from orchestrator.files.slow_disks import answers
from orchestrator.launch.code.code_version import CodeState, code_state
from orchestrator.launch.processes.stop_request import caught_signals
from orchestrator.launch.run_names import called, must_be_readable, not_renamed, shown_name
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.events.types import (
    CheckpointSaved,
    Created,
    DataFailed,
    DataPrepared,
    DataSubmitted,
    Launched,
    Submitted,
)
from orchestrator.run_directory.rundir import (
    RUNS_DIR_VARIABLE,
    RunDir,
    chosen_at,
    meant_by_name,
    membership_of,
    named_in_command,
    write_atomically,
)
from orchestrator.run_directory.runs_folder import places_of_runs
from orchestrator.run_directory.trash import names_in_trash, trashed
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved, load_resolved

_HASH_DIGITS = 8


def all_runs(runs_dir: Path) -> list[RunDir]:
    """Every run under a folder, oldest first; before them those whose age cannot be read."""
    return _by_age(run_folders(runs_dir))


def runs_named(name: str, runs_dir: Path) -> list[RunDir]:
    """The runs of one job, the one last that a person chose last: made, started or submitted."""
    return _by_choice(run for run in run_folders(runs_dir) if run.name == name)


def _by_choice(runs: Iterable[RunDir]) -> list[RunDir]:
    return sorted(runs, key=lambda run: (chosen_at(run), run.path))


def _by_age(runs: Iterable[RunDir]) -> list[RunDir]:
    return sorted(runs, key=lambda run: (_creation_time(run), run.path))


def find_run(text: str, runs_dir: Path) -> RunDir:
    """The run that a person means: a run id, the start of one, a job's name (the run that was chosen last; cells of
    sweeps, and runs that were renamed, count only where it has no other), a name that the run was given, now or
    before, or a path.

    Raises RunNotFound, naming the nearest, and UserError when several match or the one cannot be read.
    """
    run = find_any_run(text, runs_dir)
    with must_be_readable(run), contextlib.suppress(FileNotFoundError):  # of a run that nothing has been done with
        run.open(run.events_file).close()
    return run


def find_any_run(text: str, runs_dir: Path) -> RunDir:
    """The same, also of one that cannot be read: for what shows several runs, of which each has its place."""
    path = Path(text)
    if RunDir(path).resolved_generations():
        return RunDir(path.absolute())
    places = places_of_runs(runs_dir)
    name, _, run_id = text.rpartition("/")
    runs = _runs_among([place for place in places if _may_mean(place, text, run_id)])
    exact = [run for run in runs if run_id == run.run_id and (not name or name == run.name)]
    exact = exact or called(name, [run for run in runs if run_id == run.run_id])
    named = not_renamed(meant_by_name(_by_choice(run for run in runs if run.name == text)))
    begun = [run for run in runs if run.run_id.startswith(text)] if text else []
    if not (exact or named or begun):
        runs = _runs_among(places)
    given = called(text, runs) if not (exact or named or begun) else []  # reads every run's labels
    for matches in (exact, named[-1:], begun, given):
        if len(matches) == 1:
            return matches[0]
        if matches:
            listed = "\n".join(f"      {run.name}/{run.run_id}" for run in _by_age(matches))
            raise UserError(f"{text} is not one run but {len(matches)}:\n{listed}", code="ambiguous_run")
    raise RunNotFound(_not_found(text, _by_age(runs), runs_dir))


def _may_mean(place: str, text: str, run_id: str) -> bool:
    """Whether a place of a run may be meant by a name, an id or the beginning of one."""
    _, name, its_id = place.rsplit("/", 2)
    return name == text or its_id == run_id or its_id.startswith(text or "/")


def find_same(job: JobSpec, runs_dir: Path, warn: Callable[[str], object] = lambda message: None) -> RunDir | None:
    """The latest run whose current spec is this very one. `warn` hears of runs whose spec cannot be read."""
    wanted = job.config_hash
    return next((run for run, spec in specs_named(job.name, runs_dir, warn) if spec.config_hash == wanted), None)


def specs_named(
    name: str, runs_dir: Path, warn: Callable[[str], object] = lambda message: None
) -> Iterator[tuple[RunDir, JobSpec]]:
    """The runs of a name with their current specs, the last chosen first. `warn` hears of specs that cannot be read."""
    for run in reversed(runs_named(name, runs_dir)):
        try:
            yield run, load_resolved(run.resolved())
        except UserError as error:
            warn(passed_over(run, error))


def passed_over(run: RunDir, error: UserError) -> str:
    """What to say of a run whose spec cannot be read."""
    return f"run {run.name}/{run.run_id} is skipped: {str(error).splitlines()[0]}"


def next_run_dir(job: JobSpec, runs_dir: Path) -> RunDir:
    """The directory that a new run of this spec would get: one that no run has, and none that may be put back."""
    kept = names_in_trash(runs_dir)
    free = (path for path in _places_for(job, runs_dir) if not path.exists() and path.name not in kept)
    return RunDir(next(free))


def _places_for(job: JobSpec, runs_dir: Path) -> Iterator[Path]:
    """Where the runs go that begin with this spec: the first one, the second one, …"""
    first = runs_dir.absolute() / job.name / job.config_hash[:_HASH_DIGITS]
    yield first
    for number in count(2):
        yield first.with_name(f"{first.name}-{number}")


def attach_or_create(
    job: JobSpec, written: str, runs_dir: Path, warn: Callable[[str], object] = lambda message: None
) -> tuple[RunDir, bool]:
    """The latest run of this very spec, or a new one; and whether it is new. Two callers at once get the same run.

    `warn` hears of what is passed over, and UserError is raised, as by `run_to_continue`.
    """
    while True:
        place = next_run_dir(job, runs_dir)  # before the look at what is there: a run that begins meanwhile takes it
        run = run_to_continue(job, runs_dir, warn)
        if run is not None:
            return run, False
        created = _create(job, written, runs_dir, only=place)
        if created is not None:
            return created, True


def run_to_continue(
    job: JobSpec, runs_dir: Path, warn: Callable[[str], object] = lambda message: None
) -> RunDir | None:
    """The latest run of this very spec; None where a new one would begin.

    `warn` hears of runs whose spec cannot be read: those are passed over. Raises UserError where one of them has
    saved and began with this spec: a new run would do its work again.
    """
    run = find_same(job, runs_dir, warn)
    if run is None:
        refuse_lost_spec(job, runs_dir, "start another run at iteration 0 with --new")
    return run


def refuse_lost_spec(job: JobSpec, runs_dir: Path, or_else: str) -> None:
    """Raises UserError where a run began with this spec, has saved, and has lost its spec. `or_else`: what can be done
    but to put that back.
    """
    kept = names_in_trash(runs_dir)
    taken = takewhile(lambda path: path.exists() or path.name in kept, _places_for(job, runs_dir))
    for run in map(RunDir, taken):
        saved = saved_up_to(run)
        try:
            if saved is not None:
                load_resolved(run.resolved())
        except UserError as error:
            why = str(error).splitlines()[0]
            raise UserError(
                f"{run.path} began with this very spec and has saved checkpoints up to iteration {saved}, but its spec "
                f"cannot be read: {why}.\n"
                f"      Restore that file to continue it, or {or_else}.",
                code="unreadable_stored_spec",
            ) from error


def saved_up_to(run: RunDir) -> int | None:
    """The iteration of the last checkpoint that a run has saved, whether or not it is there; None where nothing is
    known of one, as of another person's run.
    """
    found = []
    with contextlib.suppress(OSError):
        found += [commit.iteration for commit in committed(run)]
    with contextlib.suppress(OSError):
        found += [event.iteration or 0 for event in run.events().all(CheckpointSaved)]
    return max(found, default=None)


@contextlib.contextmanager
def taken_back(run: RunDir, is_new: bool, *, by_ctrl_c: bool) -> Iterator[None]:
    """Around a start or a submission of a run: a new one of which nothing comes is taken back, since it would stand for
    its job's latest; and so is a spec that an older one was to go on with. What may be in a queue stays. `by_ctrl_c`:
    whether nothing comes of it after a Ctrl-C either.
    """
    known, starts = run.resolved_generations(), _starts(run)
    try:
        yield
    except (OrchestratorError, OSError, KeyboardInterrupt) as error:
        may_be_there = isinstance(error, PerhapsSubmitted) or (isinstance(error, KeyboardInterrupt) and not by_ctrl_c)
        if is_new and not may_be_there:
            remove_new_run(run)
        elif not may_be_there and _starts(run) == starts:
            withdraw_generations(path for path in run.resolved_generations() if path not in known)
        raise


def _starts(run: RunDir) -> int:
    return sum(isinstance(event, Launched | Submitted) for event in run.events())


def remove_new_run(run: RunDir) -> None:
    """Take back a run that was created a moment ago and of which nothing has come, and its job's folder if it was the
    only one. A job that was to make its data is nothing without it. The caller is about to end, and half a run would
    stay if it did so here: a Ctrl-C or SIGTERM that comes meanwhile changes nothing.
    """
    with caught_signals():
        if all(isinstance(event, Created | DataSubmitted | DataPrepared | DataFailed) for event in run.events()):
            shutil.rmtree(run.path, ignore_errors=True)  # why it was not started matters more
            with contextlib.suppress(OSError):  # others are in it
                run.path.parent.rmdir()


def create_run(job: JobSpec, written: str, runs_dir: Path, code: CodeState | None = None) -> RunDir:
    """A new run directory, whole from the moment it exists. `written` is the spec as its author wrote it; `code` is
    found out where it is not given, which takes a moment.
    """
    while (created := _create(job, written, runs_dir, only=next_run_dir(job, runs_dir), code=code)) is None:
        pass
    return created


def _create(job: JobSpec, written: str, runs_dir: Path, only: RunDir, code: CodeState | None = None) -> RunDir | None:
    """Create that run directory; None when someone else was faster, in making it or in clearing up."""
    folder = runs_dir.absolute() / job.name
    with _in_folder(folder):
        try:
            draft = Path(tempfile.mkdtemp(prefix=".new-", dir=folder))
        except FileNotFoundError:  # taken away this moment, with a run that was refused
            return None
        try:
            draft.chmod(0o777 & ~_umask())
            found = code or code_state(Path.cwd(), apart_from=folder.parent, scratch=draft)
            _fill(RunDir(draft), only.run_id, job, written, found)
            try:
                os.rename(draft, only.path)
            except OSError:
                if not only.path.exists():
                    raise
                shutil.rmtree(draft)
                return None
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    return only


@contextlib.contextmanager
def _in_folder(folder: Path) -> Iterator[None]:
    """Make the folder of a job's runs, and the folders it is in, where they are missing; they are taken away again
    where what is made in it fails. Raises UserError for what the system refuses.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):  # others are in it
            for path in missing:
                path.rmdir()
        if isinstance(error, OSError):
            raise UserError(
                f"no run can be created in {folder}: {error.strerror}", code="run_cannot_be_created"
            ) from error
        raise


def add_generation(run: RunDir, job: JobSpec, written: str) -> Path:
    """Make `job` the run's current spec; what it was before stays. Returns its file."""
    path = run.next_resolved()
    write_atomically(_written(path), written)
    write_atomically(path, dump_resolved(job))
    return path


def withdraw_generations(generations: Iterable[Path]) -> None:
    """Take back specs with which nothing was started: their runs have again those that they had."""
    for path in generations:
        for each in (path, _written(path)):
            each.unlink(missing_ok=True)


def written_with(run: RunDir, overrides: Sequence[str]) -> str:
    """What a person wrote of a run's spec, with the fields that are set now before it."""
    return "".join(f"# --set {' '.join(each.split())}\n" for each in overrides) + written_of(run)


def written_of(run: RunDir) -> str:
    """A run's spec as a person wrote it; empty where that is not kept, or cannot be read."""
    try:
        return run.read_bytes(_written(run.resolved())).decode(errors="replace")
    except OSError:
        return ""


def _written(resolved: Path) -> Path:
    return resolved.with_name(resolved.name.replace("resolved", "job").replace(".json", ".yaml"))


def _fill(run: RunDir, run_id: str, job: JobSpec, written: str, code: CodeState) -> None:
    write_atomically(run.job_yaml, written)
    write_atomically(run.path / "resolved.json", dump_resolved(job))
    write_atomically(run.path / "code.json", json.dumps(code.record, indent=1))
    write_atomically(run.path / "code.diff", code.diff)
    run.logs.mkdir()
    run.append(Created(run_id=run_id, config_hash=job.config_hash, folder=os.getcwd()))


def run_folders(runs_dir: Path) -> list[RunDir]:
    """Every run under a folder, in no order; of each no more is asked than whether it is one. What may not be looked
    into, or is gone meanwhile, is passed over. Raises OSError where the folder itself cannot be listed.
    """
    return _runs_among(places_of_runs(runs_dir))


def _runs_among(paths: Sequence[str]) -> list[RunDir]:
    # Also a link that leads nowhere: a run whose spec cannot be read. False where asking fails.
    are_runs = answers(lambda path: os.path.lexists(f"{path}/resolved.json"), paths)
    return [RunDir(Path(path)) for path, is_run in zip(paths, are_runs, strict=True) if is_run]


def _creation_time(run: RunDir) -> float:
    try:
        events = run.events()
    except OSError:
        return 0.0
    return time.time() if events.first(Created) is None else events.created or 0.0


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _not_found(text: str, runs: list[RunDir], runs_dir: Path) -> str:
    for entry in reversed(trashed(runs_dir)):
        _, _, last = entry.place.partition("/")
        is_meant = text in (entry.name, entry.place, last) or (entry.kind == "run" and last.startswith(text or "/"))
        if is_meant and entry.kind != "checkpoint" and entry.has_content:
            undo = f"orchestrator delete {named_in_command(last, runs_dir)} --undo"
            return f"{entry.kind} {entry.name} was deleted: `{undo}` puts it back"
    is_folder = os.path.isdir(text)
    lacks = f"{text} is a folder, but not a run: it has no resolved.json"
    if not runs:
        said = f"{lacks}.\n      {runs_dir}" if is_folder else f"there is no run {text}: {runs_dir}"
        return f"{said} contains no runs.\n      Name their folder with --runs-dir or ${RUNS_DIR_VARIABLE}."
    if any(membership_of(run).get("sweep") == text for run in runs):
        status = f"orchestrator sweep status {named_in_command(text, runs_dir)}"
        return f"{text} is a sweep, and each cell of it a run: `{status}` lists them"
    known = {run.name for run in runs} | {shown_name(run) for run in runs} | {run.run_id for run in runs}
    meant = Path(text).absolute().name if is_folder else text
    nearest = difflib.get_close_matches(meant, sorted(known), n=3, cutoff=0.5)
    newest = [f"{run.name}/{run.run_id}" for run in runs[-3:]]
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else f"the latest are {', '.join(newest)}"
    return (
        f"{lacks}.\n      Runs in {runs_dir}: {hint}" if is_folder else f"there is no run {text} in {runs_dir}: {hint}"
    )
