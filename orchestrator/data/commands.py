"""The commands of `orchestrator data` and of `python -m orchestrator.data`: one definition for both.

Light: what needs numpy or a tokenizer library is done by the functions that `build_app` is given.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import typer

from orchestrator.data.damage import refuse_damage, refuse_lost_images
from orchestrator.data.description import print_description
from orchestrator.data.request import (
    OnError,
    PrepareRequest,
    ShowRequest,
    TextDocuments,
    TokenizeRequest,
    TrainTokenizerRequest,
)
from orchestrator.data.tokenizers.vocabulary import looked_for
from orchestrator.errors import UserError
from orchestrator.fields.refusals import divisors_of
from orchestrator.fields.values import check_day
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_job, load_resolved
from orchestrator.spec.sections.chat import TEMPLATES_SAID
from orchestrator.spec.tokenizer_type import TYPES_BY_PATH, type_of_path
from orchestrator.spec.vision import VisionSpec

TokenizerType = Literal["byte_level", "huggingface", "gpt2_bpe", "wordpiece", "sentencepiece"]
Request = TokenizeRequest | PrepareRequest | TrainTokenizerRequest | ShowRequest


class Run(Protocol):
    """Carries out the heavy part of a command; returns its exit code."""

    def __call__(self, command: str, request: Request, as_json: bool) -> int: ...


Inputs = Annotated[
    list[Path],
    typer.Argument(
        metavar="INPUT...",
        help="Files (.jsonl, .json, .txt, .parquet; .gz, .bz2, .xz and .zst too) and directories of source files.",
        show_default=False,
    ),
]
JsonKeys = Annotated[
    list[str] | None,
    typer.Option(
        "--json-key", metavar="KEY", help="JSON field or parquet column with text; `text` by default; repeatable."
    ),
]
Globs = Annotated[
    list[str] | None,
    typer.Option("--glob", metavar="PATTERN", help="Files to take from directories, like '*.py'; repeatable."),
]
Excludes = Annotated[
    list[str] | None,
    typer.Option("--exclude", metavar="PATTERN", help="Files and folders of directories to leave out; repeatable."),
]
TxtDocuments = Annotated[TextDocuments, typer.Option("--txt-documents", help="What one document of a .txt file is.")]
OnErrorOption = Annotated[OnError, typer.Option("--on-error", help="What to do if a record cannot be read.")]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, help="Processes; one per core by default.", show_default=False)
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace existing files.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TypeOption = Annotated[
    TokenizerType | None,
    typer.Option(
        "--tokenizer-type",
        help="Kind of tokenizer; by default it follows from --tokenizer-path, or is byte_level without one.",
        show_default=False,
    ),
]
PathOption = Annotated[
    str | None,
    typer.Option(
        "--tokenizer-path",
        metavar="PATH",
        help="tokenizer.json or its folder (huggingface), vocab.json (gpt2_bpe), vocab.txt (wordpiece), "
        ".model (sentencepiece).",
        show_default=False,
    ),
]
MergesOption = Annotated[
    str | None, typer.Option("--tokenizer-merges", metavar="PATH", help="gpt2_bpe: merges.txt.", show_default=False)
]
CaseOption = Annotated[
    bool | None,
    typer.Option(
        "--tokenizer-lower-case/--tokenizer-keep-case",
        help="wordpiece: whether to lower-case the text; by default if no entry of the vocabulary has an upper-case "
        "letter.",
        show_default=False,
    ),
]
AppendEod = Annotated[bool, typer.Option("--append-eod", help="End each document with the end-of-document token.")]
SplitSentences = Annotated[
    bool, typer.Option("--split-sentences", help="Make each sentence a sequence, for BERT and T5.")
]
Chat = Annotated[
    bool,
    typer.Option("--chat", help="Read each line as a conversation; only the assistant's turns count in the loss."),
]
ChatTemplate = Annotated[
    str | None,
    typer.Option(
        "--chat-template",
        metavar="NAME",
        help=f"With --chat: {TEMPLATES_SAID}; the tokenizer's own by default.",
        show_default=False,
    ),
]
ChatDate = Annotated[
    str | None,
    typer.Option(
        "--chat-date",
        metavar="YYYY-MM-DD",
        help="With --chat: the date that a chat template takes as today; by default the day on which tokenization "
        "starts.",
        show_default=False,
    ),
]
ImageSize = Annotated[
    int | None,
    typer.Option(
        "--image-size",
        metavar="PIXELS",
        min=1,
        help="With --chat: read images, scaled and cropped to squares of this size.",
        show_default=False,
    ),
]
PatchSize = Annotated[
    int | None,
    typer.Option(
        "--patch-size",
        metavar="PIXELS",
        min=1,
        help="With --image-size: side of an image's patches, each of which is a token; 14 by default.",
        show_default=False,
    ),
]
ShardSize = Annotated[
    int,
    typer.Option(
        "--shard-size", metavar="MB", min=1, help="MB of text, and of pixels, after which finished work is stored."
    ),
]


def build_app(run: Run) -> typer.Typer:
    """The commands, with `run` for what is heavy."""
    app = typer.Typer(
        name="data",
        help="Turn text into indexed data sets, and inspect them.",
        epilog="Example: orchestrator data prepare job.yaml",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    _add_tokenize(app, run)
    _add_prepare(app, run)
    _add_train_tokenizer(app, run)
    _add_inspect(app, run)
    return app


def _add_tokenize(app: typer.Typer, run: Run) -> None:
    @app.command(
        "tokenize",
        help="Turn text into an indexed data set: PREFIX.bin, PREFIX.idx and PREFIX.manifest.json.\n\n"
        "After a kill, the same command continues from the last finished shard.",
        epilog="Example: orchestrator data tokenize corpus.jsonl --output-prefix data/corpus "
        "--tokenizer-type huggingface --tokenizer-path tokenizer.json --append-eod",
    )
    def tokenize(
        inputs: Inputs,
        output_prefix: Annotated[Path, typer.Option("--output-prefix", metavar="PREFIX", help="Where to write.")],
        tokenizer_type: TypeOption = None,
        tokenizer_path: PathOption = None,
        tokenizer_merges: MergesOption = None,
        tokenizer_lower_case: CaseOption = None,
        json_key: JsonKeys = None,
        append_eod: AppendEod = False,
        split_sentences: SplitSentences = False,
        chat: Chat = False,
        chat_template: ChatTemplate = None,
        chat_date: ChatDate = None,
        image_size: ImageSize = None,
        patch_size: PatchSize = None,
        glob: Globs = None,
        exclude: Excludes = None,
        txt_documents: TxtDocuments = "file",
        on_error: OnErrorOption = "fail",
        workers: Workers = None,
        shard_size: ShardSize = 64,
        overwrite: Overwrite = False,
        as_json: AsJson = False,
    ) -> None:
        if chat:
            _refuse_with_chat(json_key, append_eod, split_sentences)
        elif chat_template is not None:
            raise UserError(
                "--chat-template is how conversations become text: add --chat, or leave it out",
                code="option_without_chat",
            )
        _check_date(chat, chat_date)
        _check_images(chat, image_size, patch_size)
        kind = _type(tokenizer_type, tokenizer_path, tokenizer_merges) or "byte_level"
        _check_case(tokenizer_lower_case, kind)
        request = TokenizeRequest(
            **_text(inputs, json_key, glob, exclude, txt_documents, on_error),
            output_prefix=_prefix(output_prefix),
            tokenizer_type=kind,
            tokenizer_path=tokenizer_path,
            tokenizer_merges=tokenizer_merges,
            tokenizer_lower_case=tokenizer_lower_case,
            append_eod=append_eod,
            split_sentences=split_sentences,
            chat=chat,
            chat_template=chat_template,
            chat_date=chat_date,
            image_size=image_size,
            patch_size=patch_size,
            workers=workers,
            shard_size=shard_size,
            overwrite=overwrite,
        )
        raise typer.Exit(run("tokenize", request, as_json))


def _add_prepare(app: typer.Typer, run: Run) -> None:
    @app.command(
        "prepare",
        help="Make the missing data sets of a job from the text that its spec names.\n\n"
        "After a kill, the same command continues from the last finished shard.",
        epilog="Example: orchestrator data prepare job.yaml",
    )
    def prepare(
        jobs: Annotated[
            list[Path], typer.Argument(metavar="JOB.yaml...", help="Job spec, or a run directory.", show_default=False)
        ],
        overrides: Annotated[
            list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override one value; may be repeated.")
        ] = None,
        workers: Workers = None,
        as_json: AsJson = False,
    ) -> None:
        request = PrepareRequest(tuple(jobs), tuple(overrides or ()), workers)
        job_and_run(request)  # what is wrong with it is told here, as by every command
        raise typer.Exit(run("prepare", request, as_json))


def _add_train_tokenizer(app: typer.Typer, run: Run) -> None:
    @app.command(
        "train-tokenizer",
        help="Learn a byte-level BPE from text and write it as a tokenizer.json.",
        epilog="Example: orchestrator data train-tokenizer corpus.jsonl --output tokenizer.json --vocab-size 32000",
    )
    def train_tokenizer(
        inputs: Inputs,
        output: Annotated[Path, typer.Option("--output", metavar="FILE", help="The tokenizer.json to write.")],
        vocab_size: Annotated[int, typer.Option("--vocab-size", min=257, help="Maximum number of tokens.")] = 32000,
        json_key: JsonKeys = None,
        glob: Globs = None,
        exclude: Excludes = None,
        txt_documents: TxtDocuments = "file",
        on_error: OnErrorOption = "fail",
        overwrite: Overwrite = False,
        as_json: AsJson = False,
    ) -> None:
        request = TrainTokenizerRequest(
            **_text(inputs, json_key, glob, exclude, txt_documents, on_error),
            output=output,
            vocab_size=vocab_size,
            overwrite=overwrite,
        )
        raise typer.Exit(run("train-tokenizer", request, as_json))


def _add_inspect(app: typer.Typer, run: Run) -> None:
    @app.command(
        "inspect",
        help="Show what an indexed data set holds and where it came from, and whether its index is damaged.",
        epilog="Example: orchestrator data inspect data/corpus --show 2",
    )
    def inspect(
        prefix: Annotated[Path, typer.Argument(metavar="PREFIX", help="The data set: PREFIX.bin and PREFIX.idx.")],
        show: Annotated[
            int,
            typer.Option(
                "--show",
                metavar="N",
                min=0,
                help="Decode the first N documents; in conversations, counted tokens are between ⟦ and ⟧.",
            ),
        ] = 0,
        tokenizer_type: Annotated[
            TokenizerType | None,
            typer.Option(
                "--tokenizer-type", help="Tokenizer to decode with; the manifest's by default.", show_default=False
            ),
        ] = None,
        tokenizer_path: PathOption = None,
        tokenizer_merges: MergesOption = None,
        as_json: AsJson = False,
    ) -> None:
        if show:
            kind = _type(tokenizer_type, tokenizer_path, tokenizer_merges)
            request = ShowRequest(prefix, show, kind, tokenizer_path, tokenizer_merges)
            raise typer.Exit(run("inspect", request, as_json))
        refuse_damage([prefix])
        refuse_lost_images(prefix)
        print_description(prefix, as_json)


def _type(kind: str | None, path: str | None, merges: str | None) -> str | None:
    """The kind of tokenizer that the options mean; None when they name none."""
    if kind is None and path is not None:
        kind = type_of_path(path)
        if kind is None and not Path(path).exists():
            raise UserError(f"--tokenizer-path {path} does not exist{looked_for(Path(path))}", code="missing_tokenizer")
        if kind is None:
            raise UserError(
                f"--tokenizer-path {path}: its name does not show the kind of tokenizer; name it with "
                f"--tokenizer-type: {TYPES_BY_PATH}",
                code="unclear_tokenizer_type",
            )
    if kind == "byte_level" and path is not None:
        raise UserError(
            f"--tokenizer-path {path}: the byte_level tokenizer has no files; leave it out, or name a type",
            code="option_not_for_tokenizer",
        )
    if merges is not None and kind != "gpt2_bpe":
        raise UserError(
            "--tokenizer-merges is for gpt2_bpe, whose --tokenizer-path is a vocab.json",
            code="option_not_for_tokenizer",
        )
    return kind


def _keys(given: list[str] | None) -> tuple[str, ...]:
    keys = tuple(given or ("text",))
    if len(set(keys)) != len(keys):
        raise UserError(f"--json-key {', '.join(keys)}: each key once", code="duplicate_json_key")
    return keys


def _text(
    inputs: list[Path],
    json_key: list[str] | None,
    glob: list[str] | None,
    exclude: list[str] | None,
    txt_documents: TextDocuments,
    on_error: OnError,
) -> dict[str, Any]:
    """The fields of a `TextRequest`."""
    found = {"inputs": tuple(inputs), "json_keys": _keys(json_key), "txt_documents": txt_documents}
    return {**found, "globs": tuple(glob or ()), "excludes": tuple(exclude or ()), "on_error": on_error}


def _check_case(lower_case: bool | None, kind: str) -> None:
    if lower_case is not None and kind != "wordpiece":
        option = "--tokenizer-lower-case" if lower_case else "--tokenizer-keep-case"
        raise UserError(
            f"{option} is for wordpiece, but the tokenizer is {kind}, whose files determine it: leave it out",
            code="option_not_for_tokenizer",
        )


def _refuse_with_chat(json_key: list[str] | None, append_eod: bool, split_sentences: bool) -> None:
    reasons = {
        "--json-key": (_keys(json_key) != ("text",), "conversations are found by their own fields"),
        "--append-eod": (append_eod, "the chat template ends each turn"),
        "--split-sentences": (split_sentences, "a conversation stays whole"),
    }
    for option, (is_given, reason) in reasons.items():
        if is_given:
            raise UserError(f"{option} does not go with --chat: {reason}; leave it out", code="option_not_with_chat")


def _check_date(chat: bool, chat_date: str | None) -> None:
    if chat_date is None:
        return
    if not chat:
        raise UserError(
            "--chat-date is the date for chat templates: add --chat, or leave it out", code="option_without_chat"
        )
    try:
        check_day(chat_date)
    except ValueError as error:
        raise UserError(f"--chat-date {chat_date}: {error}", code="malformed_chat_date") from error


def _check_images(chat: bool, image_size: int | None, patch_size: int | None) -> None:
    """Raises UserError where the sizes of images and patches go with nothing, or not with each other."""
    if image_size is None:
        if patch_size is not None:
            raise UserError(
                "--patch-size is for images: add --image-size, or leave it out", code="patch_size_without_images"
            )
        return
    if not chat:
        raise UserError(
            "--image-size is for conversations with images: add --chat, or leave it out", code="option_without_chat"
        )
    patch = VisionSpec().patch_size if patch_size is None else patch_size
    if image_size % patch:
        default = ", the default," if patch_size is None else ""
        legal = divisors_of(image_size, "--patch-size", patch)
        nearest = " or ".join(map(str, (*legal.below[:1], *legal.above[:1])))
        raise UserError(
            f"--patch-size {patch}{default} does not divide --image-size {image_size}: write {nearest}",
            code="patch_does_not_divide_image",
        )


def _prefix(path: Path) -> Path:
    if path == Path("-"):
        raise UserError(
            "--output-prefix - would be standard output, where files cannot go: write a name, like corpus",
            code="output_is_standard_output",
        )
    if not path.name or path.is_dir():
        raise UserError(
            f"--output-prefix {path} is a folder; write a name in it, like {path / 'corpus'}", code="output_is_folder"
        )
    return path


def job_and_run(request: PrepareRequest) -> tuple[JobSpec, RunDir | None]:
    """The job that a request means, and the run directory that it was read from, if it was one.

    Raises SpecError when it is wrong.
    """
    run = RunDir(request.jobs[0].absolute())
    if len(request.jobs) == 1 and not request.overrides and run.resolved_generations():
        return load_resolved(run.resolved()), run
    return load_job(request.jobs, request.overrides).job, None
