"""Making the data sets of a job that are not there, from their text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from orchestrator.data.indexed_dataset.header import idx_path
from orchestrator.data.indexed_dataset.manifest import Manifest
from orchestrator.data.progress import Display
from orchestrator.data.request import TokenizeRequest
from orchestrator.data.source_survey import Source, survey
from orchestrator.data.tokenization import tokenize
from orchestrator.data.written_text import write_missing
from orchestrator.errors import DataIsHeld, UserError
from orchestrator.spec.sections.data import DataSpec
from orchestrator.spec.vision import VisionSpec


def prepare(
    data: DataSpec,
    workers: int | None,
    tell: Callable[[str], object],
    *,
    sentences: bool = False,
    vision: VisionSpec | None = None,
) -> list[tuple[Source, Manifest]]:
    """Make what is missing, one after the other; returns what was made. What is there already, or appears meanwhile, is
    left as it is, and what an interrupted call left unfinished is gone on with. `sentences`: the job's family reads
    sentences; `vision`: its model sees images.

    Raises UserError, before anything is made, for what is neither there nor can be made, or was made with another
    tokenizer; and what `tokenize` raises.
    """
    sources = survey(data, sentences=sentences, vision=vision, asked=True)
    if troubles := [f"{source.place}: {source.trouble}" for source in sources if source.trouble is not None]:
        raise UserError("\n       ".join(troubles), code="data_set_cannot_be_made")
    made = []
    for source in sources:
        if source.is_to_be_made:
            write_missing(source.entry, data.sources, tell)
            tell(f"{source.entry.path}: made from {', '.join(source.entry.text or ())}")
            request = tokenize_request(source, data, workers, sentences=sentences, vision=vision)
            manifest = _make(source, request, tell)
            if manifest is not None:
                made.append((source, manifest))
    return made


def tokenize_request(
    source: Source,
    data: DataSpec,
    workers: int | None,
    *,
    sentences: bool = False,
    vision: VisionSpec | None = None,
) -> TokenizeRequest:
    """What makes a source from its text. Families that read `sentences` end documents with tokens of their own, and
    chat templates turns. A model with `vision` gets the images of conversations."""
    entry, tokenizer = source.entry, data.tokenizer
    sees = vision if data.has_conversations else None
    return TokenizeRequest(
        inputs=tuple(Path(path) for path in entry.text or ()),
        json_keys=(entry.json_key,),
        output_prefix=Path(entry.path),
        tokenizer_type=tokenizer.type,
        tokenizer_path=tokenizer.path,
        tokenizer_merges=tokenizer.merges,
        tokenizer_lower_case=tokenizer.lower_case,
        append_eod=entry.append_eod and not sentences and not data.has_conversations,
        split_sentences=sentences,
        chat=data.has_conversations,
        chat_template=data.conversations.template if data.has_conversations else None,
        chat_date=data.conversations.date if data.has_conversations else None,
        image_size=sees.image_size if sees is not None else None,
        patch_size=sees.patch_size if sees is not None else None,
        image_encoder=sees.type if sees is not None and sees.type != VisionSpec().type else None,
        pooled_tokens=sees.pooled_tokens if sees is not None else None,
        merge_size=sees.merge_size if sees is not None and sees.kind.keeps_shape else None,
        smallest_image_size=sees.native.smallest_image_size if sees is not None and sees.kind.keeps_shape else None,
        workers=workers,
    )


def _make(source: Source, request: TokenizeRequest, tell: Callable[[str], object]) -> Manifest | None:
    """Make one; None when another process was faster."""
    try:
        try:
            with Display() as display:
                (manifest,) = tokenize(request, display)
        except DataIsHeld:
            tell(f"{source.entry.path}: another process is making it; waiting for it")
            with Display() as display:
                (manifest,) = tokenize(request, display, wait=True)
    except UserError:
        if not idx_path(Path(source.entry.path)).exists():
            raise
        tell(f"{source.entry.path}: another process has made it")
        return None
    return manifest
