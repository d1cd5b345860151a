"""What becomes of a checkpoint that goes on as another job, said before anything is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.planning.vocabulary import padded_vocab_size
from orchestrator.spec.job import JobSpec

Verdict = Literal["fine", "changes", "impossible"]
_VERDICTS: dict[str, Verdict] = {"safe": "fine", "trajectory": "changes", "forbidden": "impossible"}
_TOKENIZER_FILES = ("data.tokenizer.path", "data.tokenizer.merges")
_RESHARDABLE = ("fully_reshardable", "fully_sharded_model_space")
"""megatron-core's formats of the optimizer's state that any layout reads."""


@dataclass(frozen=True)
class Finding:
    """One difference, or one part of the checkpoint. `changes`: training goes on, and takes another course."""

    what: str
    before: Any
    after: Any
    verdict: Verdict
    reason: str


def judge_reshape(
    old: JobSpec, new: JobSpec, optimizer: str | None, rows: int | None, *, same_tokenizer: bool = False
) -> list[Finding]:
    """Every difference between both jobs, and what it means for the checkpoint; worst first.

    `optimizer`: the format of the optimizer's state in the checkpoint, None where there is none. `rows`: rows of the
    embedding in it, None where that is not known. `same_tokenizer`: the files of both tokenizers are known to be equal.
    """
    found = []
    for change in diff_jobs(old, new):
        verdict, reason = _VERDICTS[change.kind], change.reason
        if change.path == "name":
            verdict, reason = "fine", "it becomes a run of that name"
        elif change.path in _TOKENIZER_FILES and same_tokenizer:
            verdict, reason = "fine", "the same tokenizer at another path"
        found.append(Finding(change.path, change.old, change.new, verdict, reason))
    found += [_optimizer(optimizer), *_vocabulary(new, rows), *_generators(old, new)]
    return sorted(found, key=lambda finding: ("impossible", "changes", "fine").index(finding.verdict))


def _optimizer(kind: str | None) -> Finding:
    what = "optimizer state"
    if kind is None:
        return Finding(what, None, None, "fine", "there is none: start a job from it with checkpoint.pretrained")
    if kind in _RESHARDABLE:
        return Finding(what, kind, kind, "fine", "it goes along")
    reason = "it is stored for the ranks that wrote it; save with a fully reshardable optimizer, or use pretrained"
    return Finding(what, kind, None, "impossible", reason)


def _vocabulary(new: JobSpec, rows: int | None) -> Iterator[Finding]:
    size = new.model.vocab_size
    if rows is None or size is None:
        return
    tp = new.parallelism.tensor_model_parallel_size
    padded = padded_vocab_size(size, new.model.make_vocab_size_divisible_by, tp)
    if padded != rows:
        yield Finding("padded vocabulary", rows, padded, "fine", "padding rows are added or removed when it is read")


def _generators(old: JobSpec, new: JobSpec) -> Iterator[Finding]:
    model = new.model
    if old.parallelism != new.parallelism and model.hidden_dropout + model.attention_dropout > 0:
        yield Finding("random generators", None, None, "fine", "other ranks: dropout draws anew from runtime.seed")
