"""What a change of a field means for a run that goes on, for the field's declaration."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Literal

from orchestrator.fields.metadata import Metadata

JobSections = Any
"""Those of `spec.job_sections`, which lie above: blocks of models, below the spec, declare fields too."""
ChangeClass = Literal["safe", "trajectory", "forbidden"]


class OnResume(Metadata):
    """What a change means of the field that is declared with it, or of all fields of a section that have none: by a
    rule, where it depends on the jobs.
    """

    __slots__ = ("_rule",)

    def __init__(self, rule: Callable[[JobSections, JobSections], Meaning]) -> None:
        self._rule = rule

    def judge(self, old: JobSections, new: JobSections, experts_change_format: bool) -> Meaning:
        """What it means between these jobs. `experts_change_format`: experts multiply in FP8 in one, in 16 bits in the
        other, though the layers' format is the same: kernels are chosen above this package, so the caller says it.
        """
        return self._rule(old, new)


class Meaning(OnResume):
    """It is the same for all jobs."""

    __slots__ = ("kind", "reason")

    def __init__(self, kind: ChangeClass, reason: str) -> None:
        super().__init__(lambda old, new: self)
        self.kind, self.reason = kind, reason


class UnlessExpertsChangeFormat(OnResume):
    """Of a field by which experts may come to multiply in another format: what it means where they do not."""

    __slots__ = ()

    def judge(self, old: JobSections, new: JobSections, experts_change_format: bool) -> Meaning:
        return EXPERT_PRODUCTS if experts_change_format else self._rule(old, new)


class AtTheStart(OnResume):
    """Of a field that acts where a run starts, and wherever a change is safe never again: it does not affect a run that
    goes on, but who edits the field usually wants another training.
    """

    __slots__ = ()


def safe(reason: str) -> Meaning:
    """The losses agree with those of the unchanged run up to rounding."""
    return Meaning("safe", reason)


def trajectory(reason: str) -> Meaning:
    """Training goes on, with other losses."""
    return Meaning("trajectory", reason)


def forbidden(reason: str) -> Meaning:
    """The run cannot go on as the changed job, most often because its checkpoint does not fit."""
    return Meaning("forbidden", reason)


def at_the_start(reason: str) -> AtTheStart:
    """It acts there alone."""
    return AtTheStart(lambda old, new: safe(reason))


GLOBAL_BATCH = trajectory("each step sees another number of samples")
SHAPE = forbidden("the checkpoint's weights have another shape or meaning")
LAYOUT = safe("checkpoints are read at any layout; losses agree, not bitwise")
LOGIC = trajectory("the model computes something else from the same weights")
RATE = trajectory("the learning rate of the steps to come changes")
UPDATE = trajectory("the optimizer takes other steps")
ORDER = trajectory("the samples to come are others")
ROUNDING = trajectory("every step rounds differently")
SCALING = trajectory("which steps overflow in fp16, and are skipped, changes")
EXPERT_PRODUCTS = trajectory(
    "experts multiply in FP8 in one job, in 16 bits in the other: every step rounds differently"
)
BALANCE = trajectory("the gradient that balances the experts changes")
ADAPTERS = forbidden("the checkpoint has other adapters; start another run from it")
LOSS = trajectory("the loss is computed otherwise")
TOKENS = forbidden("token ids may have another meaning")
VOCABULARY = forbidden("the embedding has another number of rows, or its rows another meaning")
PARAMETER_GROUPS = forbidden("the checkpoint's optimizer has other groups of parameters")
LENGTH = trajectory("the length sets the decay and how much data is drawn")
TIMING = safe("only when communication happens changes")
MISSING_DATA = safe("only how a missing data set would be made changes")
RECOMPUTED = safe("recomputation gives the same values")
GIVING_UP = safe("only when the job gives up changes")
NOT_BITWISE = safe("losses agree, not bitwise")
ORIGIN = at_the_start("where the weights came from: the run goes on from its own checkpoint")
INITIAL = at_the_start("weights are initialised once, and they are in the checkpoint")


@OnResume
def global_batch(old: JobSections, new: JobSections) -> Meaning:
    if old.global_batch_size == new.global_batch_size:
        return safe("the global batch is the same")
    return GLOBAL_BATCH


def unless_experts_change_format(otherwise: Meaning) -> OnResume:
    """The same for all jobs in which they do not."""
    return UnlessExpertsChangeFormat(lambda old, new: otherwise)


layout = unless_experts_change_format(LAYOUT)


@UnlessExpertsChangeFormat
def micro_batch(old: JobSections, new: JobSections) -> Meaning:
    if old.model.balances_groups_of_tokens or new.model.balances_groups_of_tokens:
        return trajectory("experts are balanced over other groups of tokens")
    if old.global_batch_size == new.global_batch_size:
        return safe("the global batch is the same; losses agree, not bitwise")
    return GLOBAL_BATCH


class _PartsOfSequences(OnResume):
    """Of a degree that shares out the tokens of a sequence."""

    __slots__ = ()

    def judge(self, old: JobSections, new: JobSections, experts_change_format: bool) -> Meaning:
        meaning = super().judge(old, new, experts_change_format)
        return meaning if meaning.kind != "safe" else layout.judge(old, new, experts_change_format)


@_PartsOfSequences
def parts_of_sequences(old: JobSections, new: JobSections) -> Meaning:
    if old.model.assigns_by_rank or new.model.assigns_by_rank:
        return trajectory("experts are given out among other groups of tokens")
    return LAYOUT


@OnResume
def replicas(old: JobSections, new: JobSections) -> Meaning:
    balanced_together = old.model.balances_replicas or new.model.balances_replicas
    if balanced_together and old.data_parallel_size != new.data_parallel_size:
        return trajectory("experts are balanced over the micro-batches of all replicas at a time, which are others")
    return LAYOUT


@OnResume
def distributed_optimizer(old: JobSections, new: JobSections) -> Meaning:
    if "fp32" in (old.precision.dtype, new.precision.dtype):
        return forbidden("in fp32 the plain and the distributed optimizer store their state differently")
    return safe("the state is read either way; losses agree, not bitwise")


@AtTheStart
def seed(old: JobSections, new: JobSections) -> Meaning:
    if old.model.hidden_dropout == old.model.attention_dropout == 0.0:
        return safe("weights are in the checkpoint, and there is no dropout")
    return trajectory("dropout draws other masks")


@OnResume
def positions(old: JobSections, new: JobSections) -> Meaning:
    if "learned_absolute" not in (old.model.position_embedding_type, new.model.position_embedding_type):
        return safe("there is no table of positions")
    if old.model.positions == new.model.positions:
        return safe("the table of positions has the same length")
    return SHAPE


@OnResume
def activation(old: JobSections, new: JobSections) -> Meaning:
    if {old.model.activation, new.model.activation} == {"gelu", "gelu_tanh"}:
        return trajectory("the tanh approximation differs from GeLU by up to 0.0005")
    return SHAPE


@OnResume
def sequence(old: JobSections, new: JobSections) -> Meaning:
    if "learned_absolute" in (old.model.position_embedding_type, new.model.position_embedding_type) and (
        old.model.positions != new.model.positions
    ):
        return forbidden("the table of learned positions has another length")
    return trajectory("the data is cut into other samples")


def place(path: str | None) -> str | None:
    """The absolute path, so that spellings of the same path are equal."""
    return None if path is None else os.path.abspath(path)


@OnResume
def sources(old: JobSections, new: JobSections) -> Meaning:
    before, after = ([(place(entry.path), entry.weight) for entry in job.data.blend or []] for job in (old, new))
    if before == after:
        return safe("the same data sets; only how a missing one would be made changes")
    return ORDER


@OnResume
def training_part(old: JobSections, new: JobSections) -> Meaning:
    if old.data.training_share == new.data.training_share:
        return safe("evaluation sees other data; training does not change")
    return trajectory("another part of each source is for training: the samples to come are others")


@OnResume
def decoupled_rate(old: JobSections, new: JobSections) -> Meaning:
    if (old.optimizer.decoupled_lr is None) != (new.optimizer.decoupled_lr is None):
        return PARAMETER_GROUPS
    return RATE


@OnResume
def momentum(old: JobSections, new: JobSections) -> Meaning:
    if old.optimizer.state_tensors != new.optimizer.state_tensors:
        return forbidden("the optimizer's state is another one")
    return UPDATE


def same_or(size: Callable[[JobSections], object], otherwise: Meaning) -> OnResume:
    """Safe when what follows from a field is the same although the field was written differently."""

    def judge(old: JobSections, new: JobSections) -> Meaning:
        if size(old) == size(new):
            return safe("written differently, with the same result")
        return otherwise

    return OnResume(judge)
