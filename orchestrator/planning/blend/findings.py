"""What is to be said about what a job takes from its data: what is hardly meant so, and what is worth knowing."""

from __future__ import annotations

from collections.abc import Iterator
from os.path import normpath

from orchestrator.planning.blend.report import Conversations, PartPlan, SourcePlan
from orchestrator.spec.sections.data import BlendEntry, DataSpec

SENSIBLE_EPOCHS = 4
"""Up to so many epochs repeated tokens are worth nearly as much as new ones (Muennighoff et al. 2023, "Scaling
Data-Constrained Language Models")."""
_FEW_DOCUMENTS = 5
"""With fewer documents than this a validation loss says little about others."""


def warnings(data: DataSpec, train: PartPlan, validation: PartPlan) -> Iterator[str]:
    """What is hardly meant so: sources that are read very often or hardly at all, or that are evaluated on what they
    trained; validation parts that are too small.
    """
    for source in train.sources:
        yield from _share_warnings(source, train)
    yield from _twice(data.blend or [], "data.blend")
    yield from _twice(data.validation or [], "data.validation")
    trained = {normpath(entry.path) for entry in data.blend or ()}
    for entry in data.validation or ():
        if normpath(entry.path) in trained:
            yield f"{entry.path} is in data.blend and in data.validation: it is evaluated on its training data"
    if validation.samples:
        for source in validation.sources:
            yield from _validation_warnings(source)


def notes(train: PartPlan) -> Iterator[str]:
    """What is worth knowing and may well be meant so: how conversations become samples, and which sources are read
    again, from which step on."""
    for source in train.sources:
        if source.conversations is not None and source.samples_held:
            yield _packing(source, source.conversations)
        if source.epochs is None or source.second_epoch_step is None or source.epochs > SENSIBLE_EPOCHS:
            continue
        yield f"{source.path} is read {source.epochs:.2f} times{_again(source)}"


def _packing(source: SourcePlan, found: Conversations) -> str:
    images = f" with {found.images:,} images" if found.images else ""
    text = (
        f"{source.path}: {found.kept:,} conversations{images} for training are {source.samples_held:,} sequences "
        f"an epoch, {found.filled:.1%} full"
    )
    if found.cut:
        text += f"; {found.cut:,} are longer than a sequence and are truncated"
    if too_long := found.dropped - found.crowded:
        text += f"; {too_long:,} more are left out for their length"
    if found.crowded:
        text += f"; {found.crowded:,} are skipped, with more images than model.vision.images_per_sequence"
    return text


def _share_warnings(source: SourcePlan, train: PartPlan) -> Iterator[str]:
    expected = source.share * train.samples
    if len(train.sources) > 1 and expected < 1:
        given = "one sample" if source.samples else "no sample"
        yield (
            f"{source.path} gives {given} of {train.samples:,}: its weight is {source.share:.2g} of all; "
            "give it more weight, or leave it out"
        )
    if source.epochs is not None and source.epochs > SENSIBLE_EPOCHS:
        way_out = f"more than {SENSIBLE_EPOCHS} epochs have diminishing returns; "
        if len(train.sources) > 1:
            most = source.share * SENSIBLE_EPOCHS / source.epochs
            way_out += f"{SENSIBLE_EPOCHS} epochs are a share of {most:.2%} instead of {source.share:.2%}"
        else:
            way_out += f"{SENSIBLE_EPOCHS} epochs are {SENSIBLE_EPOCHS * _tokens_of_epoch(source):,} tokens"
        yield f"{source.path} is read {source.epochs:.2f} times{_again(source)}: {way_out}"


def _tokens_of_epoch(source: SourcePlan) -> int:
    """As the length of a training counts them: of sequences that conversations do not fill, every position."""
    if source.conversations is not None and source.samples_held:
        return source.samples_held * (source.tokens_used // source.samples)
    return source.tokens_held or 0


def _again(source: SourcePlan) -> str:
    """From when on it is read again."""
    if source.second_epoch_step is None:
        return ""
    mixed = ", with its epochs shuffled together" if source.epochs_are_mixed else ""
    return f" (again from step {source.second_epoch_step:,} on{mixed})"


def _twice(blend: list[BlendEntry], name: str) -> Iterator[str]:
    paths = [normpath(entry.path) for entry in blend]
    for path in dict.fromkeys(path for path in paths if paths.count(path) > 1):
        yield f"{path} occurs {paths.count(path)} times in {name}: each one draws its samples from the beginning"


def _validation_warnings(source: SourcePlan) -> Iterator[str]:
    needed = max(source.samples, source.samples_alone or 0)
    if source.samples_held and source.epochs is not None and needed > source.samples_held:
        yield (
            f"validation reads {needed:,} samples of {source.path}, whose validation part holds "
            f"{source.samples_held:,}: it reads them {source.epochs:.2f} times; "
            "hold out more, or lower evaluation.eval_iters"
        )
    elif source.documents is not None and 0 < source.documents < _FEW_DOCUMENTS:
        yield (
            f"the validation part of {source.path} is {source.documents} "
            f"document{'s' if source.documents > 1 else ''}: its loss says little about others"
        )
