"""How the layers divide among the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.errors import Problem
from orchestrator.fields.paths import PP, VP
from orchestrator.fields.refusals import Refusal, Unavailable, around, divisors_of, multiples_of, quotient, ratio
from orchestrator.models.layers import prediction_layers
from orchestrator.spec.job_sections import JobSections
from orchestrator.spec.layout.stage_letters import EMBEDDING as EMBEDDING_LETTER
from orchestrator.spec.layout.stage_letters import LAYER, chunks_of
from orchestrator.spec.layout.stage_letters import LOSS as LOSS_LETTER
from orchestrator.spec.layout.stages import layers_of_chunks
from orchestrator.spec.rules.base import Rule

LAYERS = "model.num_layers"
LETTERS = "parallelism.pipeline_model_parallel_layout"
FIRST = "parallelism.num_layers_in_first_pipeline_stage"
LAST = "parallelism.num_layers_in_last_pipeline_stage"
EMBEDDING = "parallelism.account_for_embedding_in_pipeline_split"
LOSS = "parallelism.account_for_loss_in_pipeline_split"


def _written(job: JobSections, *paths: str) -> dict[str, int]:
    """Those of the four fields that are set, with their values."""
    values = {path: getattr(job.parallelism, path.rpartition(".")[2]) for path in paths}
    return {path: int(value) for path, value in values.items() if value}


def uneven_stages(job: JobSections) -> Iterator[Problem]:
    """The split is said in one way, and there are stages to split the layers among."""
    sizes, counted = _written(job, FIRST, LAST), _written(job, EMBEDDING, LOSS)
    letters = (LETTERS,) if job.parallelism.pipeline_model_parallel_layout is not None else ()
    if letters and (sizes or counted):
        message = "defines every chunk, but other fields do so too"
        yield Problem(message, (*letters, *sizes, *counted), "keep one way of distributing the layers")
    for path in (*letters, *sizes, *counted):
        if job.parallelism.pipeline_model_parallel_size == 1:
            hint = "leave it out, or write a pipeline_model_parallel_size of 2 or more"
            yield Problem("is about the stages of a pipeline, and PP = 1", (path, PP), hint)
    if sizes and counted:
        message = "the layers of the first or last stage are set, but the embedding or the loss also counts as a layer"
        yield Problem(message, (*sizes, *counted), "keep one way of distributing the layers")


def layers_by_stages(job: JobSections) -> Iterator[Problem]:
    """Every stage, and every chunk of a stage, holds equally many layers."""
    layers, pp = job.model.num_layers, job.parallelism.pipeline_model_parallel_size
    chunks = job.parallelism.num_model_chunks
    if job.model.family.is_encoder_decoder:  # rules.t5: each half by itself
        return
    if _written(job, FIRST, LAST) or job.parallelism.pipeline_model_parallel_layout is not None:
        raise Unavailable("an even split")
    counted = _written(job, EMBEDDING, LOSS)
    extra = len(counted)
    units = layers + extra
    if units % (pp * chunks) == 0:
        return
    total = f"(num_layers + {extra})" if extra else "num_layers"
    if chunks == 1:
        message = f"{total} / PP must be whole: {quotient(units, pp)}"
        offers = [divisors_of(units, PP, pp)]
        paths: tuple[str, ...] = (PP, LAYERS, *counted)
    else:
        message = f"{total} / (PP · VP) must be whole: {units} / ({pp} · {chunks}) = {ratio(units, pp * chunks)}"
        offers = [divisors_of(units // pp, VP, chunks), divisors_of(units // chunks, PP, pp)]
        paths = (VP, PP, LAYERS, *counted)
    yield Refusal(
        message,
        paths,
        numbers=(units, extra, pp, chunks),
        offers=(*offers, multiples_of(pp * chunks, LAYERS, layers, less=extra)),
    )


def layers_between_stages(job: JobSections) -> Iterator[Problem]:
    """What the first and the last stage leave divides evenly among the stages between them."""
    sizes = _written(job, FIRST, LAST)
    layers, pp = job.model.num_layers, job.parallelism.pipeline_model_parallel_size
    if not sizes or pp == 1 or _written(job, EMBEDDING, LOSS):
        return
    chunks, left, stages = job.parallelism.num_model_chunks, layers - sum(sizes.values()), pp - len(sizes)
    taken = " - ".join(str(count) for count in sizes.values())
    paths = (*sizes, PP, VP, LAYERS)
    offers = (*(around(path, count) for path, count in sizes.items()), around(LAYERS, layers))
    if stages == 0:
        if left != 0:
            message = (
                f"there are only the first and the last stage, which must hold all layers: {layers} - {taken} = {left}"
            )
            yield Refusal(message, paths, "leave out one of them", numbers=(layers, *sizes.values()), offers=offers)
        return
    if left < stages * chunks or left % (stages * chunks):
        per = f"{stages}" if chunks == 1 else f"({stages} · {chunks})"
        message = (
            f"the {stages} other stage{'s share' if stages > 1 else ' takes'} the layers that are left, one or more "
            f"per {'stage' if chunks == 1 else 'chunk'}: ({layers} - {taken}) / {per} = {ratio(left, stages * chunks)}"
        )
        yield Refusal(message, paths, numbers=(layers, *sizes.values(), stages, chunks), offers=offers)


def chunks_of_uneven_stages(job: JobSections) -> Iterator[Problem]:
    """All chunks of a stage are equally long, on the first and the last stage too."""
    chunks = job.parallelism.num_model_chunks
    for path, count in _written(job, FIRST, LAST).items():
        if count % chunks:
            message = f"its layers / VP must be whole: {quotient(count, chunks)}"
            offers = (multiples_of(chunks, path, count), divisors_of(count, VP, chunks))
            yield Refusal(message, (path, VP), numbers=(count, chunks), offers=offers)


def pipeline_layout(job: JobSections) -> Iterator[Problem]:
    """In letters every layer is there once, the embedding is first, the loss last, and no chunk is empty."""
    text, pp = job.parallelism.pipeline_model_parallel_layout, job.parallelism.pipeline_model_parallel_size
    if text is None or pp == 1 or job.model.family.is_encoder_decoder:
        return
    try:
        chunks = chunks_of(text)
    except ValueError as error:
        yield Problem(str(error), (LETTERS,), "such as Et*3|(tt|)*2L", code="pipeline_layout_syntax")
        return
    vp = job.parallelism.num_model_chunks
    if len(chunks) != pp * vp:
        message = f"has {len(chunks)} chunks, and PP · VP is {pp} · {vp} = {pp * vp}"
        hint = f"write {pp * vp} chunks, with {pp * vp - 1} |"
        if len(chunks) % pp == 0:
            hint = f"write virtual_pipeline_model_parallel_size: {len(chunks) // pp}, or {hint.removeprefix('write ')}"
        yield Problem(message, (LETTERS, VP, PP), hint)
    whole = "".join(chunks)
    for letter, name, place in ((EMBEDDING_LETTER, "embedding", 0), (LOSS_LETTER, "loss", -1)):
        ends = chunks[place].startswith(letter) if place == 0 else chunks[place].endswith(letter)
        if whole.count(letter) != 1 or not ends:
            message = f"the {name} ({letter}) is the {'first' if place == 0 else 'last'} of all, and there once"
            yield Problem(message, (LETTERS,), f"{'begin' if place == 0 else 'end'} with {letter}")
    if (layers := whole.count(LAYER)) != job.model.num_layers:
        yield Problem(f"has {layers} t, but num_layers is {job.model.num_layers}", (LETTERS, LAYERS))
    if empty := [number for number, chunk in enumerate(chunks) if not chunk]:
        yield Problem(f"chunk {empty[0]} (from 0) is empty", (LETTERS,), "give each chunk a t, the E or the L")


def layer_before_predictions(job: JobSections) -> Iterator[Problem]:
    """The chunk with the layers that predict further tokens has the last of the others."""
    model = job.model
    if not prediction_layers(model) or model.family.is_encoder_decoder:
        return
    if layers_of_chunks(model.num_layers, job.parallelism)[-1][-1] == 0:
        message = "leaves the last chunk no layer, behind which those of multi-token prediction would be"
        yield Problem(message, (LOSS, "model.mtp_num_layers"), "leave it out, or have fewer chunks")


RULES: tuple[Rule, ...] = (
    uneven_stages,
    layers_by_stages,
    layers_between_stages,
    chunks_of_uneven_stages,
    pipeline_layout,
    layer_before_predictions,
)
