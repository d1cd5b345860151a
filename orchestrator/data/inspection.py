"""Documents of an indexed data set as text."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from orchestrator.data.chat.conversation_packing import COUNTS, PATCH, loss_mask_prefix
from orchestrator.data.chat.stored_images import vision_of
from orchestrator.data.checks import mask_problem
from orchestrator.data.damage import refuse_damage, refuse_lost_images
from orchestrator.data.indexed_dataset.header import HEADER, IndexHeader, bin_path, idx_path, read_index
from orchestrator.data.indexed_dataset.manifest import read_manifest
from orchestrator.data.request import ShowRequest, tokenizer_spec
from orchestrator.data.tokenizers.tokenizer import Tokenizer, load_tokenizer
from orchestrator.errors import UserError
from orchestrator.spec.vision import MARK


def first_documents(request: ShowRequest) -> Iterator[str]:
    """The text of the first documents; of conversations, with what counts marked.

    Raises UserError when no tokenizer is known or it is not the data's, DataError where the index is damaged."""
    header = read_index(request.prefix)
    refuse_damage([request.prefix])
    refuse_lost_images(request.prefix)
    tokenizer = _tokenizer(request)
    ends = _document_ends(header, min(request.show, header.documents))
    ids = np.fromfile(bin_path(request.prefix), dtype=header.dtype, count=int(ends[-1]))
    if len(ids) and int(ids.max()) >= tokenizer.vocab_size:
        raise UserError(
            f"{request.prefix} contains token id {int(ids.max())}, but the tokenizer has {tokenizer.vocab_size} "
            f"tokens: "
            "it was made with another one (choose with --tokenizer-type and --tokenizer-path)",
            code="tokenizer_differs",
        )
    mask, patches = _mask(request, header, len(ids)), _patches(request)
    for first, last in pairwise(ends):
        if mask is None:
            yield tokenizer.decode(ids[first:last].tolist())
        else:
            yield _with_mask(tokenizer, ids[first:last], mask[first:last], patches)


def _document_ends(header: IndexHeader, count: int) -> Any:
    """Where the first documents begin and the last of them ends, in tokens."""
    path = idx_path(header.prefix)
    marks = np.fromfile(path, dtype="<i8", count=count + 1, offset=HEADER.size + 12 * header.sequences)
    lengths = np.fromfile(path, dtype="<i4", count=int(marks[-1]), offset=HEADER.size)
    return np.concatenate([[0], np.cumsum(lengths, dtype="<i8")])[marks]


def _mask(request: ShowRequest, header: IndexHeader, tokens: int) -> Any:
    """The mask of the first tokens; None for what is no data set of conversations. Raises UserError where the mask
    is not there, is torn or is another's."""
    manifest = read_manifest(request.prefix)
    if manifest is None or manifest.counted_tokens is None:
        return None
    if problem := mask_problem(str(request.prefix), header):
        raise UserError(problem, code="damaged_mask")
    return np.fromfile(bin_path(loss_mask_prefix(request.prefix)), dtype="u1", count=tokens)


def _patches(request: ShowRequest) -> int:
    """Tokens of an image of a data set; 1 where it has none."""
    vision = vision_of(read_manifest(request.prefix))
    return 1 if vision is None else vision.tokens_per_image


def _with_mask(tokenizer: Tokenizer, ids: Any, mask: Any, patches: int) -> str:
    """A conversation as text, with what counts between ⟦ and ⟧ and a mark for an image of so many `patches`."""
    places = np.flatnonzero(np.diff(mask)) + 1
    parts = [
        (
            MARK * max(1, len(part) // patches) if marks[0] == PATCH else tokenizer.decode(part.tolist()),
            marks[0] == COUNTS,
        )
        for part, marks in zip(np.split(ids, places), np.split(mask, places), strict=True)
    ]
    return "".join(f"⟦{text}⟧" if counts else text for text, counts in parts)


def _tokenizer(request: ShowRequest) -> Tokenizer:
    manifest = read_manifest(request.prefix)
    if request.tokenizer_type is not None:
        chosen = tokenizer_spec(
            type=request.tokenizer_type, path=request.tokenizer_path, merges=request.tokenizer_merges
        )
        return load_tokenizer(chosen)
    if manifest is None:
        raise UserError(
            f"{request.prefix} has no manifest: name its tokenizer with --tokenizer-type", code="missing_manifest"
        )
    return load_tokenizer(manifest.tokenizer)
