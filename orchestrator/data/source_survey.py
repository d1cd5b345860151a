"""Which sources of a job are there, which are made from text first, and which are neither. Light: headers alone."""

from __future__ import annotations

from collections.abc import Container, Iterable
from functools import lru_cache
from os.path import normpath
from pathlib import Path
from typing import NamedTuple

from orchestrator.data.chat.conversation_packing import loss_mask_prefix
from orchestrator.data.chat.stored_images import images_prefix
from orchestrator.data.checks import conversations_problem, tokenizer_problem
from orchestrator.data.damage import refuse_damage
from orchestrator.data.indexed_dataset.header import IndexHeader, bin_path, idx_path, partial_path, read_index
from orchestrator.data.indexed_dataset.manifest import Manifest, manifest_path, read_manifest
from orchestrator.data.tokenizers.vocabulary import UNREADABLE_TOKENIZER, content_hash
from orchestrator.errors import DataError, Problem, UserError
from orchestrator.spec.job import JobSpec
from orchestrator.spec.sections.chat import BUILT_IN_TEMPLATES, TEMPLATES_SAID, ChatSpec
from orchestrator.spec.sections.data import BlendEntry, DataSpec, TokenizerSpec
from orchestrator.spec.vision import VisionSpec

LOOKED_THROUGH = 32 << 20
"""Bytes of the indices of a job that are read before it starts, in the order of the spec: 1.6 million documents, 0.05 s
at most. Those of larger data are read when the training starts."""

_TOKENIZER = ("data.tokenizer.path", "data.tokenizer")


class Source(NamedTuple):
    """One data set of a job. Without a header and without trouble it is made from its text."""

    place: str
    """Where the spec names it first: `data.blend[0]`."""
    entry: BlendEntry
    header: IndexHeader | None
    trouble: str | None
    """Why nothing can be trained on it."""
    is_unfit: bool = False
    """Whether it is on this machine, and damaged or made with another tokenizer than the job's."""
    code: str = "data"
    """The trouble's."""
    is_shared: bool = False
    """Whether the trouble is one of the job, which all data sets have that are to be made."""

    @property
    def is_to_be_made(self) -> bool:
        """Whether it is not there yet and can be made."""
        return self.header is None and self.trouble is None

    @property
    def note(self) -> str | None:
        """What a person should know of it; None when it is there and fits."""
        if self.is_to_be_made:
            return f"{self.entry.path} does not exist yet; it is made first, from {', '.join(self.entry.text or ())}"
        return self.trouble


def survey(
    data: DataSpec, *, sentences: bool = False, vision: VisionSpec | None = None, asked: bool = False
) -> list[Source]:
    """Every data set of a job once, in the order of the spec. `sentences`: the job's family reads sentences. `vision`:
    its model sees images. `asked`: whatever `data.prepare` says, what can be made is to be made. Of the indices no more
    than `LOOKED_THROUGH` is read.
    """
    tokenizer_hash, tokenizer_trouble = _tokenizer(data.tokenizer)
    sources = []
    unread = LOOKED_THROUGH
    for place, entry in _entries(data):
        code, is_shared = "data", False
        try:
            header, trouble = _look(entry, data.sources, may_be_made=asked or data.prepare == "auto")
            if header is not None and header.index_bytes <= unread:
                unread -= header.index_bytes
                _look_through(header, _state_of_files(header.prefix))
        except DataError as error:
            sources.append(Source(place, entry, None, str(error), is_unfit=True))
            continue
        if header is not None and tokenizer_hash is not None:
            trouble = _otherwise_made(entry, header, tokenizer_hash, sentences, data.chat, vision)
        elif header is None and trouble is None:
            trouble = tokenizer_trouble or _template_trouble(data)
            code, is_shared = UNREADABLE_TOKENIZER if tokenizer_trouble is not None else code, True
        is_unfit = trouble is not None and (header is not None or _is_here(entry))
        sources.append(Source(place, entry, header, trouble, is_unfit, code, is_shared))
    return sources


def survey_job(job: JobSpec) -> list[Source]:
    """Every data set of a job, as `survey` finds it."""
    return survey(job.data, sentences=job.model.reads_sentences, vision=job.model.vision)


def to_be_made(job: JobSpec) -> list[Source]:
    """The data sets of a job that are made from text before it can start."""
    return [source for source in survey_job(job) if source.is_to_be_made]


def data_problems(data: DataSpec, sources: list[Source], *, needed: bool) -> list[Problem]:
    """What is wrong with the data sets that `survey` found: those that are here and unfit. Where the job is to start
    here (`needed`), also those that are missing and cannot be made, and a tokenizer that cannot be read.
    """
    problems = source_problems(each for each in sources if needed or each.is_unfit)
    if needed and not data.random_tokens and UNREADABLE_TOKENIZER not in {each.code for each in problems}:
        _, trouble = _tokenizer(data.tokenizer)
        problems += [] if trouble is None else [Problem(trouble, _TOKENIZER, code=UNREADABLE_TOKENIZER)]
    return problems


def source_problems(sources: Iterable[Source]) -> list[Problem]:
    """The trouble of each source; once what several share."""
    problems: dict[tuple[str, str | None], Problem] = {}
    for source in sources:
        if source.trouble is not None:
            of_source = (source.place, source.place.partition("[")[0], "data.tokenizer")
            paths = _TOKENIZER if source.code == UNREADABLE_TOKENIZER else of_source
            owner = None if source.is_shared else source.place
            problems.setdefault((source.code, owner), Problem(source.trouble, paths, code=source.code))
    return list(problems.values())


def find(sources: list[Source], path: str) -> Source:
    """The source of that path, however it is written."""
    return next(source for source in sources if normpath(source.entry.path) == normpath(path))


def _look(entry: BlendEntry, written: Container[str], *, may_be_made: bool) -> tuple[IndexHeader | None, str | None]:
    """(header, trouble) of a source: the header where it is there, no trouble where it is there or can be made.
    `written`: files of text that are written first.

    Raises DataError for one that is damaged.
    """
    prefix = Path(entry.path)
    if entry.text is None or idx_path(prefix).exists():
        try:
            return read_index(prefix), None
        except DataError:
            raise
        except UserError as error:
            return None, str(error)
    absent = [path for path in entry.text if path not in written and not Path(path).exists()]
    if absent:
        return None, f"no indexed data set at {prefix}, nor the text to make it from: {', '.join(absent)}"
    if not may_be_made:
        return None, (
            f"no indexed data set at {prefix}, and data.prepare is never: "
            "`orchestrator data prepare JOB.yaml` makes it from its text"
        )
    if bin_path(prefix).exists() and not partial_path(prefix).exists():
        return None, (
            f"{bin_path(prefix)} exists without {idx_path(prefix)}: copy its index next to it, or remove it to make "
            "both from text"
        )
    return None, None


@lru_cache(maxsize=256)
def _look_through(header: IndexHeader, state: tuple[tuple[int, ...], ...]) -> None:
    """Raises DataError for an index that is damaged within. One that is whole is read again only when the `state` of
    its files has changed: a sweep plans hundreds of jobs with the same data.
    """
    refuse_damage([header.prefix])


def _state_of_files(prefix: Path) -> tuple[tuple[int, ...], ...]:
    """Which files `refuse_damage` looks at, and of what size and time: nothing for those that are not there."""
    prefixes = (loss_mask_prefix(prefix), images_prefix(prefix))
    beside = [name(each) for each in prefixes for name in (idx_path, bin_path)]
    return tuple(_state(path) for path in (idx_path(prefix), manifest_path(prefix), *beside))


def _state(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _template_trouble(data: DataSpec) -> str | None:
    """Why no conversations can be made: the template is a file that is not there."""
    template = data.conversations.template if data.has_conversations else None
    if template is None or template in BUILT_IN_TEMPLATES or Path(template).is_file():
        return None
    return f"data.chat.template {template} is not a file; write {TEMPLATES_SAID}"


def _is_here(entry: BlendEntry) -> bool:
    """Whether both files are there, readable or not."""
    prefix = Path(entry.path)
    return idx_path(prefix).is_file() and bin_path(prefix).is_file()


def _entries(data: DataSpec) -> list[tuple[str, BlendEntry]]:
    """Each data set once, with its place. Of several entries, the one that says what text it is made from."""
    found: dict[str, tuple[str, BlendEntry]] = {}
    for name in ("blend", "validation", "test"):
        for number, entry in enumerate(getattr(data, name) or ()):
            place, earlier = found.get(normpath(entry.path), (f"data.{name}[{number}]", entry))
            found[normpath(entry.path)] = (place, earlier if earlier.text is not None else entry)
    return list(found.values())


def _otherwise_made(
    entry: BlendEntry,
    header: IndexHeader,
    tokenizer_hash: str,
    sentences: bool,
    chat: ChatSpec | None,
    vision: VisionSpec | None,
) -> str | None:
    """What is wrong when a data set was made with another tokenizer, chat template or size of images, or of documents
    where sentences or conversations are read; None too when nobody knows."""
    try:
        manifest = read_manifest(Path(entry.path))
        problem = tokenizer_problem(entry.path, tokenizer_hash)
    except DataError as error:
        return str(error)
    if problem is None and chat is not None:
        problem = conversations_problem(entry.path, header, vision)
    if problem is not None or manifest is None:
        return problem
    made_on = manifest.options.get("chat_date")
    if chat is not None and None not in (chat.date, made_on) and chat.date != made_on:
        return (
            f"{entry.path} was made with {made_on} as today's date, and data.chat.date is {chat.date}: make it again "
            f"at "
            "another path, or leave out date"
        )
    if chat is not None and (made := _other_template(manifest, chat)) is not None:
        return (
            f"{entry.path} was made with the chat template {made}, and data.chat.template is {chat.template}: "
            "make it again at another path, or leave out template"
        )
    if manifest.counted_tokens is not None and chat is None:
        return (
            f"{entry.path} contains conversations, but the job would train on all of their text: write `chat: {{}}` in "
            "data, or make it again at another path without --chat"
        )
    if (manifest.sentences is not None) == sentences:
        return None
    holds, reads, way = ("whole documents", "sentences", "with") if sentences else ("sentences", "documents", "without")
    return (
        f"{entry.path} holds {holds}, but the job's model reads {reads}: make it again at another path, {way} "
        f"--split-sentences"
    )


def _other_template(manifest: Manifest, chat: ChatSpec) -> str | None:
    """The chat template of a data set where it is surely another than the job names: of two files nobody knows."""
    made, wanted = manifest.options.get("chat_template"), chat.template
    if not isinstance(made, str) or wanted is None or made == wanted:
        return None
    return made if made in BUILT_IN_TEMPLATES or wanted in BUILT_IN_TEMPLATES else None


def _tokenizer(tokenizer: TokenizerSpec) -> tuple[str | None, str | None]:
    """(hash, trouble) of the job's tokenizer; no hash where its files cannot be read."""
    try:
        return content_hash(tokenizer), None
    except UserError as error:
        return None, str(error)
