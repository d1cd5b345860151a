"""Random sequences of what people do with runs, of kills and of trainings beside them, against a small model: states
and files are the model's, nothing live is lost, and nothing that was deleted comes back.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from support.depth import examples
from support.event_log import append_event
from support.killed import Training, killed_before_change
from support.memory_disk import in_memory

from orchestrator.api.housekeeping import deletion, emptying, labelling
from orchestrator.api.housekeeping.checkpoints import Keep
from orchestrator.errors import UserError
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import all_runs, create_run, find_run
from orchestrator.process import Process
from orchestrator.run_directory.checkpoints.commit_markers import committed, write_commit
from orchestrator.run_directory.labels import read_labels
from orchestrator.run_directory.lease import Lease, read_holder
from orchestrator.run_directory.rundir import RunDir
from orchestrator.run_directory.trash import FOLDER, Trashed, trashed
from orchestrator.spec.job import JobSpec
from orchestrator.sweeps.ledger import Entry, SweepPlan, sweep_dir
from orchestrator.sweeps.states import STARTED_BY_RETRY, STARTED_BY_RUN, cell_statuses

TAGS = ("best", "paper", "draft")
NAMES = ("champion", "winner", "tiny", "cells")
NO_CODE = CodeState({}, b"")


def job(name: str, lr: float) -> JobSpec:
    model = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "seq_length": 8, "vocab_size": 256}
    return JobSpec.model_validate(
        {
            "name": name,
            "model": model,
            "batch": {"micro_batch_size": 1, "global_batch_size": 2},
            "data": {"random_tokens": True},
            "optimizer": {"lr": lr},
            "schedule": {"train_iters": 20},
            "checkpoint": {"save_interval": 5},
            "tracking": {"mlflow": False},
            "runtime": {"device": "cpu"},
        }
    )


JOBS = {"a": job("tiny", 1e-3), "b": job("tiny", 2e-3), "c": job("cells", 3e-3), "d": job("cells", 4e-3)}


@dataclass
class Known:
    """What the model knows of a run. `where`: here, trash or gone; `content`: what tells it from others."""

    place: str
    content: str
    where: str = "here"
    tags: set[str] = field(default_factory=set)
    note: str = ""
    name: str | None = None
    archived: bool = False
    checkpoints: set[int] = field(default_factory=set)
    training: Training | None = None
    lines: int = 1


class Housekeeping(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="housekeeping-", dir=in_memory()))
        self.runs_dir = self.folder / "runs"
        self.outside = self.folder / "outside"
        self.outside.mkdir()
        (self.outside / "precious").write_text("kept")
        self.numbers = count(1)
        self.runs: list[Known] = []
        self.steps = 0
        self.sweep = sweep_dir("grid", self.runs_dir)
        self.sweep_is_here = True
        for letter in JOBS:
            self._create(letter)
        cells = [Entry(known.content, known.content, {}, known.place) for known in self.runs[2:]]
        for known in self.runs[2:]:
            membership = {"sweep": "grid", "sweep_dir": str(self.sweep.path), "cell": known.content, "values": {}}
            self._run(known).membership.write_text(json.dumps(membership))
        self.sweep.plan(SweepPlan(1, None, "min", cells), "sweep: {}\n")
        self.cells = self.runs[2:]

    def teardown(self) -> None:
        for known in self.runs:
            if known.training is not None:
                known.training.kill()
        shutil.rmtree(self.folder)

    # What the model says.

    def _create(self, letter: str) -> None:
        run = create_run(JOBS[letter], "", self.runs_dir, NO_CODE)
        content = f"content-{next(self.numbers)}"
        (run.path / "content").write_text(content)
        (run.path / "link").symlink_to(self.outside)
        self.runs.append(Known(f"{run.name}/{run.run_id}", content))

    def _run(self, known: Known) -> RunDir:
        return RunDir(self.runs_dir / known.place)

    def _here(self) -> list[Known]:
        return [known for known in self.runs if known.where == "here"]

    def _pick(self, number: int, among: Callable[[Known], object] = lambda known: True) -> Known | None:
        found = [known for known in self._here() if among(known)]
        return found[number % len(found)] if found else None

    def _is_taken(self, name: str, known: Known) -> bool:
        if name == known.place.partition("/")[0]:
            return False
        others = [other for other in self._here() if other is not known]
        return any(name in (other.name, other.place.partition("/")[0]) for other in self._here()) and (
            any(name == other.name for other in others)
            or any(name == other.place.partition("/")[0] for other in self._here())
        )

    # What people do.

    runs_ = st.integers(0, 7)
    moments = st.integers(0, 14)

    @rule(number=runs_, tag=st.sampled_from(TAGS), remove=st.booleans())
    def tag(self, number: int, tag: str, remove: bool) -> None:
        if (known := self._pick(number)) is not None:
            labelling.tag(self._run(known), [] if remove else [tag], [tag] if remove else [])
            known.tags = known.tags - {tag} if remove else known.tags | {tag}

    @rule(number=runs_, text=st.sampled_from(["", "a note", "another\nnote"]))
    def note(self, number: int, text: str) -> None:
        if (known := self._pick(number)) is not None:
            labelling.note(self._run(known), text)
            known.note = text

    @rule(number=runs_, undo=st.booleans())
    def archive(self, number: int, undo: bool) -> None:
        if (known := self._pick(number)) is not None:
            labelling.archive(self._run(known), undo=undo)
            known.archived = not undo

    @rule(number=runs_, name=st.sampled_from(NAMES))
    def rename(self, number: int, name: str) -> None:
        if (known := self._pick(number)) is None:
            return
        is_taken = self._is_taken(name, known)
        assert self._refused(lambda: labelling.rename(self._run(known), name)) == is_taken
        if not is_taken and name != (known.name or known.place.partition("/")[0]):
            known.name = name

    @rule(number=runs_)
    def delete(self, number: int) -> None:
        if (known := self._pick(number)) is not None:
            refused = self._refused(lambda: self._delete(known))
            assert refused == (known.training is not None), known
            if not refused:
                known.where = "trash"

    @rule()
    def delete_the_sweep(self) -> None:
        if not self.sweep_is_here:
            return
        cells = [known for known in self.cells if known.where == "here"]
        refused = self._refused(self._delete_the_sweep)
        assert refused == any(known.training is not None for known in cells)
        if not refused:
            self.sweep_is_here = False
            for known in cells:
                known.where = "trash"

    @rule(number=runs_, last=st.integers(0, 2))
    def thin_out(self, number: int, last: int) -> None:
        if (known := self._pick(number, lambda known: known.checkpoints)) is None:
            return
        kept = set(sorted(known.checkpoints)[len(known.checkpoints) - last :]) if last else set()
        refused = self._refused(lambda: self._thin_out(known, last))
        assert refused == (known.training is not None and not kept)
        if not refused:
            known.checkpoints = kept

    @rule(number=st.integers(0, 30))
    def undo(self, number: int) -> None:
        there = [entry for entry in trashed(self.runs_dir) if entry.has_content]
        if not there:
            return
        entry = there[number % len(there)]
        before = {each.path: self._content_of(each) for each in there if each.deletion == entry.deletion}
        refused = self._refused(lambda: self._undo(entry))
        back = [each for each in there if each.path in before and not each.has_content]
        assert bool(back) != refused or not before
        self._take_back(back, before)

    @rule()
    def prune(self) -> None:
        emptying.prune(emptying.to_prune(self.runs_dir), self.runs_dir)
        assert os.listdir(self.runs_dir / FOLDER) == [] if (self.runs_dir / FOLDER).exists() else True
        for known in self.runs:
            known.where = "gone" if known.where == "trash" else known.where

    @rule(number=st.integers(0, 1))
    def remove_a_cell_by_hand(self, number: int) -> None:
        known = self.cells[number]
        if known.where == "here" and known.training is None:
            shutil.rmtree(self._run(known).path)
            known.where = "gone"

    @rule(letter=st.sampled_from(["a", "b"]))
    def begin_another_run(self, letter: str) -> None:
        if len(self.runs) < 8:
            self._create(letter)
            assert self.runs[-1].place not in {known.place for known in self.runs[:-1] if known.where != "gone"}

    # Trainings beside that.

    @rule(number=runs_)
    def train(self, number: int) -> None:
        if (known := self._pick(number, lambda known: known.training is None)) is not None:
            training = self._start(known)
            assert training.has_started()
            known.training, known.lines = training, known.lines + 1

    @rule(number=runs_, kill=st.booleans())
    def end_training(self, number: int, kill: bool) -> None:
        known = self._pick(number, lambda known: known.training is not None)
        if known is not None and known.training is not None:
            if kill:
                known.training.kill()
            else:
                known.training.end()
                known.lines += 1
            known.training = None

    @rule(number=runs_)
    def save(self, number: int) -> None:
        known = self._pick(number, lambda known: known.training is not None)
        if known is not None:
            self.steps += 1
            folder = self._run(known).checkpoint(self.steps)
            folder.mkdir(parents=True)
            (folder / "weights").write_text(str(self.steps))
            write_commit(folder, iteration=self.steps, consumed_samples=1, files={})
            known.checkpoints.add(self.steps)

    @rule(number=runs_)
    def delete_while_it_starts(self, number: int) -> None:
        if (known := self._pick(number, lambda known: known.training is None)) is None:
            return
        training = self._start(known)
        refused = self._refused(lambda: self._delete(known))
        started = training.has_started()
        assert not (started and not refused), "it trains what was deleted"
        in_place = self._run(known).path.exists()
        assert in_place == refused
        log = self._run(known) if in_place else RunDir(self._entry_of(known).content)
        known.lines = len(log.events())
        if started:
            known.training = training
        else:
            training.kill()
        known.where = "here" if in_place else "trash"

    # Kills.

    @rule(number=runs_, moment=moments)
    def delete_and_be_killed(self, number: int, moment: int) -> None:
        if (known := self._pick(number)) is not None:
            killed_before_change(moment, lambda: self._delete(known))
            self._look_where(known)

    @rule(moment=moments)
    def delete_the_sweep_and_be_killed(self, moment: int) -> None:
        if self.sweep_is_here:
            live = any(known.training is not None for known in self.cells if known.where == "here")
            killed_before_change(2 * moment, self._delete_the_sweep)
            for known in self.cells:
                self._look_where(known)
            self.sweep_is_here = self.sweep.path.exists()
            assert self.sweep_is_here or not live

    @rule(number=runs_, last=st.integers(0, 1), moment=moments)
    def thin_out_and_be_killed(self, number: int, last: int, moment: int) -> None:
        known = self._pick(number, lambda known: known.checkpoints)
        if known is not None:
            newest = max(known.checkpoints)
            killed_before_change(moment, lambda: self._thin_out(known, last))
            left = {commit.iteration for commit in committed(self._run(known))}
            assert left <= known.checkpoints
            assert newest in left or (last == 0 and known.training is None)
            known.checkpoints = left

    @rule(number=st.integers(0, 30), moment=moments)
    def undo_and_be_killed(self, number: int, moment: int) -> None:
        there = [entry for entry in trashed(self.runs_dir) if entry.has_content]
        if there:
            entry = there[number % len(there)]
            before = {each.path: self._content_of(each) for each in there if each.deletion == entry.deletion}
            killed_before_change(moment, lambda: self._undo(entry))
            self._take_back([each for each in there if each.path in before and not each.has_content], before)

    @rule(moment=st.integers(0, 40))
    def prune_and_be_killed(self, moment: int) -> None:
        killed_before_change(moment, lambda: emptying.prune(emptying.to_prune(self.runs_dir), self.runs_dir))
        left = {self._content_of(entry) for entry in trashed(self.runs_dir) if entry.has_content}
        for known in self.runs:
            known.where = "gone" if known.where == "trash" and known.content not in left else known.where

    @rule(number=runs_, moment=moments)
    def rename_and_be_killed(self, number: int, moment: int) -> None:
        known = self._pick(number)
        if known is not None and not self._is_taken("winner", known):
            killed_before_change(moment, lambda: labelling.rename(self._run(known), "winner"))
            assert read_labels(self._run(known).path).name in (known.name, "winner")
            known.name = read_labels(self._run(known).path).name

    # What always holds.

    @invariant()
    def what_is_here_is_what_the_model_says(self) -> None:
        here = {known.place: known for known in self._here()}
        assert {f"{run.name}/{run.run_id}" for run in all_runs(self.runs_dir)} == set(here)
        for place, known in here.items():
            run = RunDir(self.runs_dir / place)
            assert (run.path / "content").read_text() == known.content
            labels = read_labels(run.path)
            assert (set(labels.tags), labels.note, labels.archived) == (known.tags, known.note, known.archived)
            assert labels.name == known.name
            assert {commit.iteration for commit in committed(run)} == known.checkpoints
            assert len(run.events()) == known.lines
            holder = read_holder(run)
            assert (holder is not None and holder.live) == (known.training is not None)
            assert find_run(known.name or run.run_id, self.runs_dir) == run or known.name in ("tiny", "cells")

    @invariant()
    def nothing_is_half_there(self) -> None:
        runs = [entry for entry in trashed(self.runs_dir) if entry.has_content and entry.kind == "run"]
        contents = sorted((entry.content / "content").read_text() for entry in runs)
        assert contents == sorted(known.content for known in self.runs if known.where == "trash")
        for folder in (self.runs_dir / "tiny", self.runs_dir / "cells"):
            for path in folder.iterdir() if folder.exists() else ():
                assert (path / "resolved.json").exists(), f"{path} is half a run"

    @invariant()
    def a_deleted_cell_is_not_started(self) -> None:
        if self.sweep_is_here:
            for cell in cell_statuses(self.sweep, self.sweep.planned()):
                [known] = [known for known in self.cells if known.content == cell.entry.id]
                assert (cell.state == "deleted") == (known.where != "here"), (cell.state, known)
                if known.where != "here":
                    assert cell.state not in (*STARTED_BY_RETRY, *STARTED_BY_RUN)

    @invariant()
    def nothing_outside_is_touched(self) -> None:
        assert (self.outside / "precious").read_text() == "kept"

    # How it is done.

    def _refused(self, work: Callable[[], object]) -> bool:
        try:
            work()
        except UserError:
            return True
        return False

    def _delete(self, known: Known) -> None:
        deletion.delete(deletion.runs_and_sweeps([self._run(known)], self.runs_dir), self.runs_dir)

    def _delete_the_sweep(self) -> None:
        deletion.delete(deletion.runs_and_sweeps([self.sweep], self.runs_dir), self.runs_dir)

    def _thin_out(self, known: Known, last: int) -> None:
        deletion.delete(deletion.checkpoints(self._run(known), self.runs_dir, Keep(last)), self.runs_dir)

    def _undo(self, entry: Trashed) -> None:
        all_with_it = [each for each in trashed(self.runs_dir) if each.has_content and each.deletion == entry.deletion]
        emptying.undo(all_with_it, self.runs_dir)

    def _start(self, known: Known) -> Training:
        run = self._run(known)
        launch_id = f"l{next(self.numbers)}"

        def start() -> Callable[[], object]:
            append_event(run, "launched", launch_id=launch_id, **Process.current().to_record())
            lease = Lease.acquire(run, launch_id=launch_id)

            def end() -> None:
                append_event(run, "exited", launch_id=launch_id, code=0, cause="stopped", message="", iteration=1)
                lease.release()

            return end

        return Training(start)

    def _entry_of(self, known: Known) -> Trashed:
        [entry] = [each for each in trashed(self.runs_dir) if self._content_of(each) == known.content]
        return entry

    def _content_of(self, entry: Trashed) -> Any:
        """What tells a run in the trash from others; of a checkpoint its place, of a sweep nothing."""
        if entry.kind == "run":
            return (entry.content / "content").read_text() if entry.has_content else None
        return entry.place if entry.kind == "checkpoint" else None

    def _look_where(self, known: Known) -> None:
        """After a deletion that may have been killed: wholly here or wholly in the trash; what is live, here."""
        if known.where == "here" and not self._run(known).path.exists():
            assert known.training is None
            assert self._entry_of(known).has_content
            known.where = "trash"

    def _take_back(self, back: list[Trashed], before: dict[Path, Any]) -> None:
        """What came out of the trash is here again."""
        for entry in back:
            if entry.kind == "sweep":
                self.sweep_is_here = True
            elif entry.kind == "checkpoint":
                run, _, checkpoint = entry.place.partition("/checkpoints/")
                [known] = [known for known in self._here() if known.place == run]
                known.checkpoints.add(int(checkpoint.removeprefix("iter_")))
            else:
                [known] = [known for known in self.runs if known.content == before[entry.path]]
                known.where = "here"


TestHousekeeping = Housekeeping.TestCase
TestHousekeeping.settings = settings(
    max_examples=examples(30),
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
