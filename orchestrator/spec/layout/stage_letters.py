"""The layout of a pipeline in letters, as megatron-core reads it: `Et*3|(tt|)*2L`.

`E` is the embedding, `t` a layer, `L` the output layer with the loss; `|` ends a chunk. `x*3` is a letter three times,
`(tt|)*3` a part. Commas are for the eye. Chunks come in the order in which a micro-batch passes them: first the first
chunk of every stage, then the second.
"""

from __future__ import annotations

import re
from functools import lru_cache

EMBEDDING, LAYER, LOSS, END = "E", "t", "L", "|"
_TERM = re.compile(r"(?:\((?P<part>[^()]+)\)|(?P<letter>[EtL|]))(?:\*(?P<times>\d{1,9}))?")
_LONGEST = 10_000
"""Letters and ends, all repetitions written out."""


@lru_cache(maxsize=256)
def chunks_of(text: str) -> tuple[str, ...]:
    """The letters of each chunk. Raises ValueError with what is wrong with the text."""
    written = text.replace(",", "")
    if "m" in written:
        raise ValueError("there is no letter m: layers of multi-token prediction are on the last stage")
    return tuple(_written_out(written).split(END))


def _written_out(text: str) -> str:
    out: list[str] = []
    place = length = 0
    while place < len(text):
        term = _TERM.match(text, place)
        if term is None or (term["part"] is not None and term["times"] is None):
            raise ValueError(f"{text[place:]!r} is not E, t, L, |, a letter*times or (a part without brackets)*times")
        part = _written_out(term["part"]) if term["part"] is not None else term["letter"]
        times = int(term["times"] or 1)
        length += len(part) * times
        if length > _LONGEST or times == 0:
            raise ValueError(f"{term[0]!r} is {'none' if times == 0 else 'more than a pipeline holds'}")
        out.append(part * times)
        place = term.end()
    return "".join(out)


def layers_in_letters(text: str, stages: int) -> tuple[tuple[int, ...], ...] | None:
    """[stage][chunk]: how many layers each holds; None where the text is wrong or does not divide by the stages."""
    try:
        chunks = chunks_of(text)
    except ValueError:
        return None
    if len(chunks) % stages:
        return None
    return tuple(tuple(chunk.count(LAYER) for chunk in chunks[stage::stages]) for stage in range(stages))


def evenly(num_layers: int, stages: int) -> str:
    """A layout of one chunk per stage, of lengths as equal as they can be."""
    least, more = divmod(num_layers, stages)
    chunks = [LAYER * (least + (stage < more)) for stage in range(stages)]
    return f"{EMBEDDING}{END.join(chunks)}{LOSS}"
