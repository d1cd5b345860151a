"""Every event of a run: its name, its fields in the order of a stored line, and their types.

A field without a default is always written, as null where it is unknown; one that is None by default is left out then.
What is read may be of another version, or damaged: a value of another type is None, what is not known here is kept in
`other`, and an event that is not known is `Unknown`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import Field, FrozenInstanceError, field
from typing import Any, ClassVar, TypeAlias, dataclass_transform

from orchestrator.files.stored_files import count, moment, number
from orchestrator.process import Process

BY_LAUNCHER = "launcher"
"""Who starts a run again that is in no queue, as its `requeued` event says."""
CHOICES = ("device", "layers", "attention_backend", "tp_comm_overlap", "cuda_graphs")
"""What the ranks chose where the spec says `auto`: fields of `Started`."""

Text: TypeAlias = str | None
Texts: TypeAlias = tuple[str, ...] | None
Count: TypeAlias = int | None
Code: TypeAlias = int | None  # an exit code: negative after a signal
Moment: TypeAlias = float | None  # seconds since the epoch
Number: TypeAlias = float | None
Flag: TypeAlias = bool | None
Object: TypeAlias = Mapping[str, Any] | None
Items: TypeAlias = list[Any] | None
"""As they are; who reads them says which make sense."""
Parts: TypeAlias = Mapping[str, float] | None
"""Seconds by what took them."""


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else None


def _texts(value: Any) -> tuple[str, ...] | None:
    return tuple(map(str, value)) if isinstance(value, list) else None


def _parts(value: Any) -> dict[str, float] | None:
    if not isinstance(value, dict):
        return None
    return {part: seconds for part, each in value.items() if (seconds := number(each)) is not None}


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "Text": _text,
    "Texts": _texts,
    "Count": count,
    "Code": lambda value: value if type(value) is int and abs(value) < 1 << 32 else None,
    "Moment": moment,
    "Number": number,
    "Flag": lambda value: value if isinstance(value, bool) else None,
    "Object": lambda value: value if isinstance(value, dict) else None,
    "Items": lambda value: value if isinstance(value, list) else None,
    "Parts": _parts,
}
"""How a field is read, by the name of its type; a value that cannot be is None."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
class _Record:
    """Frozen fields, as annotated, that the constructor takes by keyword. No dataclass: each would compile methods of
    its own, and the forty of this file took a tenth of the time of `validate`.
    """

    types: ClassVar[dict[str, str]] = {}
    """The fields in their order, and how each is annotated."""
    defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        annotated = vars(cls).get("__annotations__", {})
        own = {name: kind for name, kind in annotated.items() if not kind.startswith("ClassVar")}
        cls.types = {**cls.types, **own}
        cls.defaults = {**cls.defaults, **{name: vars(cls)[name] for name in own if name in vars(cls)}}

    def __init__(self, **values: Any) -> None:
        if wrong := values.keys() - self.types.keys() or self.types.keys() - self.defaults.keys() - values.keys():
            raise TypeError(f"{type(self).__name__} has other fields: {', '.join(sorted(wrong))}")
        for name, default in self.defaults.items():
            if name not in values:
                made: Any = default.default_factory if isinstance(default, Field) else None
                values[name] = default if made is None else made()
        vars(self).update(values)

    def __setattr__(self, name: str, value: Any) -> None:
        raise FrozenInstanceError(name)

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"


class Event(_Record):
    """What all events have; one that is made is of this moment."""

    name: ClassVar[str]
    kinds: ClassVar[dict[str, type[Event]]] = {}
    """Those of one log, by name."""
    readers: ClassVar[dict[str, Callable[[Any], Any]]]
    """The fields of a line, in their order, and how each is read."""
    optional: ClassVar[set[str]]
    """Those that a line may lack."""
    time: Moment = field(default_factory=time.time)
    other: Mapping[str, Any] = field(default_factory=dict)

    def __init_subclass__(cls, name: str = "") -> None:
        super().__init_subclass__()
        cls.readers = {name: _READERS[kind] for name, kind in cls.types.items() if kind in _READERS}
        cls.optional = {name for name, default in cls.defaults.items() if default is None}
        if name:
            cls.name = name
            cls.kinds[name] = cls

    @property
    def kind(self) -> str:
        """Its name."""
        return self.name

    @property
    def of_launch(self) -> str | None:
        """The id of the launch that it belongs to, where it says so."""
        return getattr(self, "launch_id", None)

    @property
    def of_job(self) -> str | None:
        """The id of its job on a cluster."""
        return getattr(self, "job_id", None)

    @property
    def at(self) -> int | None:
        """The iteration that it is about."""
        return getattr(self, "iteration", None)

    def record(self) -> dict[str, Any]:
        """The object of its line."""
        values = {name: getattr(self, name) for name in self.readers if name != "time"}
        written = {name: value for name, value in values.items() if value is not None or name not in self.optional}
        return {"time": self.time, "event": self.kind, **written, **self.other}

    def said(self) -> dict[str, Any]:
        """The same without what is not known."""
        return {name: value for name, value in self.record().items() if value is not None}


class Unknown(Event):
    """An event of another version, or of somebody else."""

    stored_name: str
    launch_id: Text = None
    job_id: Text = None
    iteration: Count = None

    @property
    def kind(self) -> str:
        return self.stored_name


class Created(Event, name="created"):
    """The run directory was made, by a command that worked in `folder`."""

    run_id: Text
    config_hash: Text
    folder: Text


class Imported(Event, name="imported"):
    """Its weights came from elsewhere, and its optimizer's state with them where it says so."""

    source: Text
    family: Text
    optimizer: Flag = None


class Reshaped(Event, name="reshaped"):
    """Its checkpoint is that of another run, written anew for its layout."""

    source: Text
    iteration: Count


class Submitted(Event, name="submitted"):
    """It was put into a queue; `data_job_id`: of the job that makes its data. Without `executor`, SLURM has it."""

    job_id: Text
    cluster: Text
    executor: Text = None
    data_job_id: Text = None


class DataSubmitted(Event, name="data_submitted"):
    """The job that makes its data was put into a queue."""

    job_id: Text
    cluster: Text


class DataPrepared(Event, name="data_prepared"):
    """Its data was made from text: the paths of the data sets."""

    job_id: Text
    made: Texts
    seconds: Number


class DataFailed(Event, name="data_failed"):
    """Its data could not be made."""

    job_id: Text
    message: Text


class Launched(Event, name="launched"):
    """A launcher begins to start its ranks; `host`, `boot`, `pid` and `started` name its process."""

    launch_id: Text
    job_id: Text = None
    restart: Count = None
    nodes: Texts = None
    host: Text
    boot: Text
    pid: Count
    started: Count
    commit: Text = None
    """Of the code; earlier versions wrote it."""

    @property
    def process(self) -> Process:
        """The launcher."""
        return Process.from_record(self.said())


class Started(Event, name="started"):
    """Its ranks are about to train: as what, from where, and on what. `nodes`: where a job can do with fewer."""

    launch_id: Text
    token: Count
    pid: Count
    world_size: Count
    nodes: Count = None
    topology: Object
    iteration: Count
    samples: Count
    tokens: Count
    blend_since: Count
    device: Text
    layers: Text
    attention_backend: Text
    tp_comm_overlap: Flag
    cuda_graphs: Flag
    host_start_seconds: Number
    parameters: Count
    total_parameters: Count
    mfu: Object
    torch: Text
    megatron_core: Text

    @property
    def choices(self) -> dict[str, Any]:
        """What its ranks chose; None for what an earlier version did not say."""
        return {name: getattr(self, name) for name in CHOICES}


class Pretrained(Event, name="pretrained"):
    """Its first weights are those of a checkpoint, but `fresh` ones; `from_run`: the run that it lies in."""

    checkpoint: Text
    from_iteration: Count
    from_run: Text = None
    fresh: Texts = None


class Resumed(Event, name="resumed"):
    """It goes on from a checkpoint of its own."""

    iteration: Count
    checkpoint: Text


class FirstStep(Event, name="first_step"):
    """The first step of a start is done, and what took the time until then."""

    launch_id: Text
    iteration: Count
    seconds: Parts


class CheckpointSaved(Event, name="checkpoint_saved"):
    """A checkpoint was committed."""

    iteration: Count
    seconds: Number
    bytes: Count


class CheckpointFailed(Event, name="checkpoint_failed"):
    """A checkpoint could not be written."""

    iteration: Count
    message: Text


class CheckpointSkipped(Event, name="checkpoint_skipped"):
    """A start could not go on from a checkpoint, and looked for an earlier one."""

    path: Text
    message: Text


class Exported(Event, name="exported"):
    """A checkpoint was written in another layout."""

    iteration: Count
    format: Text
    path: Text
    bytes: Count
    seconds: Number


class ExportFailed(Event, name="export_failed"):
    """A checkpoint could not be written in another layout."""

    iteration: Count
    format: Text
    message: Text


class ExportStopped(Event, name="export_stopped"):
    """An export is left to the next start."""

    iteration: Count
    format: Text


class EvaluationSkipped(Event, name="evaluation_skipped"):
    """An evaluation is left to the next start."""

    iteration: Count


class StepSkipped(Event, name="step_skipped"):
    """A step changed no weights."""

    iteration: Count
    reason: Text


class Hang(Event, name="hang"):
    """No step was done for too long."""

    iteration: Count
    seconds: Number


class StopRequested(Event, name="stop_requested"):
    """The training ends early, as `by` asked."""

    by: Text
    iteration: Count


class Finished(Event, name="finished"):
    """All steps are done."""

    iteration: Count


class Exited(Event, name="exited"):
    """A launch is over: with which code of its program, why (`exits/causes.py`), after which step, and lines that show
    it. `node`: the machine at fault, or several separated by commas.
    """

    launch_id: Text
    code: Code
    cause: Text
    message: Text
    iteration: Count
    evidence: Texts
    node: Text = None


class ExitedOnCluster(Exited):
    """The same of a job: its line has the machine at fault always, null where there is none."""

    node: Text = field()


class Requeued(Event, name="requeued"):
    """After the end of a launch the run starts again: by its launcher, or put into the queue, without some nodes."""

    launch_id: Text
    job_id: Text = None
    cause: Text
    by: Text
    exclude: Texts = None
    delay: Number


class RequeueFailed(Event, name="requeue_failed"):
    """It could not be put back into the queue."""

    launch_id: Text
    job_id: Text
    message: Text


class Withdrawn(Event, name="withdrawn"):
    """A person keeps it from its next start: after the launch that it names, or out of the queue."""

    launch_id: Text = None
    job_id: Text = None
    by: Text


class GaveUp(Event, name="gave_up"):
    """After the end of a launch it does not start again."""

    launch_id: Text
    cause: Text
    reason: Text


class Notified(Event, name="notified"):
    """People were told of something: by which ways, and what went wrong with others."""

    launch_id: Text
    occasion: Text
    told: Texts
    failed: Object


def event_of(record: Mapping[str, Any], kinds: Mapping[str, type[Event]] = Event.kinds) -> Event | None:
    """The event of a stored object, of a run's log or of one with other `kinds`; None for what is none."""
    name = _text(record.get("event"))
    if name is None:
        return None
    kind = kinds.get(name, Unknown)
    said = {key: None if (given := record.get(key)) is None else reader(given) for key, reader in kind.readers.items()}
    said |= {"stored_name": name} if kind is Unknown else {}
    other = {key: value for key, value in record.items() if value is not None and key != "event" and key not in said}
    event = object.__new__(kind)
    vars(event).update(said, other=other)  # as its constructor would, which takes three times as long
    return event
