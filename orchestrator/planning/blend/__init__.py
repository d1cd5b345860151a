"""What a job takes from each source of its blends, by the index headers alone: samples, tokens and epochs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from os.path import normpath
from typing import NamedTuple

from orchestrator.data.chat.conversation_packing import pack, usable
from orchestrator.data.checks import (
    PARTS,
    Part,
    conversations_problem,
    length_problems,
    part_of,
    used_parts,
)
from orchestrator.data.indexed_dataset.header import IndexHeader, tokens_before
from orchestrator.data.samples.predicted_blend import Draws, asked_of_sources, built, length_of, samples_of
from orchestrator.data.source_survey import Source, survey_job
from orchestrator.planning.blend.findings import notes, warnings
from orchestrator.planning.blend.report import BlendReport, Conversations, PartPlan, SourcePlan
from orchestrator.planning.training_schedule.batch import BatchSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.chat import ChatSpec
from orchestrator.spec.sections.data import BlendEntry, DataSpec
from orchestrator.spec.vision import VisionSpec

TRAIN, VALIDATION, TEST = range(len(PARTS))


class SampleCounts(NamedTuple):
    """Samples to build for each part."""

    train: int
    validation: int
    """For one evaluation, where the next one reads the same; else for those that Megatron-LM builds its set for."""
    test: int


def samples_needed(job: JobSpec, batch: BatchSchedule) -> SampleCounts:
    """What the training asks its data sets for. Test data is not read during training."""
    spec = job.evaluation
    times = int(spec.eval_interval is not None or spec.eval_at_start)
    if spec.eval_interval is not None and not spec.same_samples:
        times = batch.train_iters // spec.eval_interval + 1
    return SampleCounts(batch.drawn_samples, times * spec.eval_iters * job.global_batch_size, 0)


def evaluations(job: JobSpec, batch: BatchSchedule) -> int:
    """Evaluations over the whole job."""
    spec, steps = job.evaluation, batch.train_iters
    count = int(spec.eval_at_start)
    if spec.eval_interval is not None:
        count += steps // spec.eval_interval + (spec.eval_at_end and steps % spec.eval_interval > 0)
    return count


def blend_report(job: JobSpec, batch: BatchSchedule, there: Sequence[Source] | None = None) -> BlendReport:
    """The report on the blends of a job. `there`: what `survey` found. It is exact: what the indices will hold."""
    data, needed = job.data, samples_needed(job, batch)
    sources = survey_job(job) if there is None else there
    found = {normpath(source.entry.path): source for source in sources}
    train = _part(job, batch, TRAIN, needed.train, 1, found)
    times = evaluations(job, batch) if job.evaluation.same_samples else 1
    validation = _part(job, batch, VALIDATION, needed.validation, times, found)
    return BlendReport(
        train=train,
        validation=validation,
        test=_part(job, batch, TEST, needed.test, 0, found),
        stops=() if data.random_tokens else tuple(dict.fromkeys(_stops(job, needed, found))),
        warnings=tuple(warnings(data, train, validation)),
        notes=tuple(notes(train)),
    )


def _stops(job: JobSpec, needed: SampleCounts, found: dict[str, Source]) -> Iterator[str]:
    """What `check_data` will refuse when the training starts."""
    headers = {
        entry.path: header
        for blend in (job.data.blend, job.data.validation, job.data.test)
        for entry in blend or ()
        if (header := found[normpath(entry.path)].header) is not None
    }
    family, length, vision = job.model.family, job.model.seq_length, job.model.vision
    for part in used_parts(job.data, family, headers, needed):
        yield from length_problems(part, headers[part.path], job.data, family, length, vision)


def split_shares(data: DataSpec) -> tuple[float, float, float]:
    """Parts of each source of `blend` that are for training, validation and test: 0 for what has its own sources."""
    weights = data.split_weights
    train, validation, test = (weight / (sum(weights) or 1.0) for weight in weights)
    return (train, validation, test)


def _blend_of(data: DataSpec, number: int) -> Sequence[BlendEntry]:
    """The sources of a part; none where neither its own list nor the split gives it any."""
    if data.random_tokens:
        return ()
    own = (None, data.validation, data.test)[number]
    return own or (data.blend or () if data.split_weights[number] > 0 else ())


def _part(
    job: JobSpec, batch: BatchSchedule, number: int, samples: int, times: int, found: dict[str, Source]
) -> PartPlan:
    blend = _blend_of(job.data, number)
    weights = [entry.weight for entry in blend]
    if not blend:
        return PartPlan(PARTS[number], samples, times, ())
    draws = Draws(weights)
    counts = draws.counts(samples)
    is_blend = len(blend) > 1 and samples > 0
    asked = asked_of_sources(weights, samples) if is_blend else [samples] * len(blend)
    given = draws.counts(length_of(weights, samples)) if is_blend else asked
    alone = samples if number == VALIDATION and job.data.validation and len(blend) > 1 else None
    sources = []
    for place, entry in enumerate(blend):
        draw = _Draw(draws.shares[place], counts[place], alone, asked[place], given[place])
        row = _row(job, number, entry, found[normpath(entry.path)], draw)
        if number == TRAIN and row.samples_held and draw.samples > row.samples_held:
            first = draws.position(place, row.samples_held)
            row = row._replace(second_epoch_step=batch.iteration_of(first) + 1)
        sources.append(row)
    return PartPlan(PARTS[number], samples, times, tuple(sources))


class _Draw(NamedTuple):
    """What a blend wants of a source."""

    share: float
    samples: int
    alone: int | None
    asked: int
    """Samples that it asks it to build, a few more than its share."""
    given: int
    """Samples that it gives where all of the blend is drawn: it is asked for these where it would have fewer."""


def _row(job: JobSpec, number: int, entry: BlendEntry, source: Source, draw: _Draw) -> SourcePlan:
    length = job.model.seq_length
    used = max(draw.samples, draw.alone or 0) * length
    row = SourcePlan(
        path=entry.path,
        share=draw.share,
        samples=draw.samples,
        samples_alone=draw.alone,
        tokens_used=used,
        tokens_held=None,
        samples_held=None,
        documents=None,
        epochs=None,
        second_epoch_step=None,
        epochs_are_mixed=False,
        note=source.note,
        made_first=source.is_to_be_made,
    )
    header = source.header
    if header is None:
        return row
    part = part_of(job.data, job.model.family, number, header, entry.path)
    held = tokens_before(header, part.stop) - tokens_before(header, part.start)
    if job.model.reads_sentences:
        # How many samples a document gives depends on where its sentences end: epochs are not known beforehand.
        return row._replace(tokens_held=held, documents=part.documents)
    if job.data.has_conversations:
        return _of_conversations(job, part, header, draw, row._replace(tokens_held=held, documents=part.documents))
    is_built = draw.asked > 0 and held > length
    is_short = is_built and built(held, draw.asked, length).samples < draw.given
    asked = draw.given if is_short else draw.asked
    return row._replace(
        tokens_held=held,
        samples_held=samples_of(held, length),
        documents=part.documents,
        epochs=used / held if held else None,
        epochs_are_mixed=is_built and built(held, asked, length).in_order is None,
    )


def _of_conversations(job: JobSpec, part: Part, header: IndexHeader, draw: _Draw, row: SourcePlan) -> SourcePlan:
    """What is known of a source of conversations: their lengths say how they are packed."""
    if conversations_problem(part.path, header, job.model.vision) is not None:
        return row
    sequences, conversations = _packed(
        header, part.start, part.stop, job.data.conversations, job.model.seq_length, job.data.seed, job.model.vision
    )
    return row._replace(
        samples_held=sequences,
        epochs=max(draw.samples, draw.alone or 0) / sequences if sequences else None,
        conversations=conversations,
    )


@lru_cache(maxsize=32)
def _packed(
    header: IndexHeader, start: int, stop: int, chat: ChatSpec, length: int, seed: int, vision: VisionSpec | None
) -> tuple[int, Conversations]:
    """Samples that the conversations of a part give, and what becomes of these."""
    found = usable(header, start, stop, chat, length, vision)
    sequences = len(pack(found.lengths, length, seed, chat.packing))
    filled = sum(found.lengths) / (sequences * length) if sequences else 0.0
    return sequences, Conversations(found.kept, found.cut, found.dropped, filled, found.crowded, found.images)
