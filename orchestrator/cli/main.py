"""The `orchestrator` command: a table of commands, of which only the one that was typed is imported.

This is the one place that imports by name, and the one error boundary.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import takewhile
from typing import Annotated, Any, NamedTuple

from orchestrator.imports import staying, without_pydantic_plugins

with staying():
    import typer
    from typer.completion import install_callback, show_callback
    from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
    from typer.main import get_command

    from orchestrator.cli.common import print_json, stop_printing
    from orchestrator.errors import OrchestratorError, SpecError
    from orchestrator.profile_files import LOGIN_VARIABLE, known_profiles, may_name_login_node
    from orchestrator.run_directory.rundir import write_refusal
    from orchestrator.version import __version__


def value_name(option: TyperOption) -> str | None:
    """What help and the reference call an option's value: what it takes, in the words of a shell and not in Python's.
    None for a flag, which takes no value.
    """
    if option.is_flag:
        return None
    if option.metavar:
        return option.metavar
    described = option.type_descriptor
    if described.is_choice:
        return "|".join(str(getattr(each, "value", each)) for each in described.choices or ())
    name = max(option.opts, key=len).lstrip("-").replace("-", "_").upper()
    return _NUMBERS.get(described.annotation, name)


_NUMBERS: Mapping[Any, str] = {int: "N", float: "NUMBER"}


def _type_in_help(parameter: TyperArgument | TyperOption, ctx: Any) -> str | None:
    """What help writes behind a parameter's name. An argument's own name says what it is."""
    if isinstance(parameter, TyperArgument):
        return None if parameter.metavar else parameter.display_type(ctx)
    return value_name(parameter)


# Typer has no setting for this, and its commands make their parameters by these two classes.
TyperOption.display_type_rich = _type_in_help  # type: ignore[method-assign,assignment]
TyperArgument.display_type_rich = _type_in_help  # type: ignore[method-assign,assignment]


class Entry(NamedTuple):
    """A command: its module has a function `command`, or a group of commands `app`."""

    name: str
    file: str
    panel: str
    summary: str

    @property
    def module(self) -> str:
        """Its module, in the room of its panel."""
        return f"orchestrator.cli.{ROOMS[self.panel]}.{self.file}"


WRITE, RUN, LOOK, KEEP, PARTS = (
    *("Write and check a job", "Run it", "Look at runs"),
    *("Keep runs in order", "Data and models"),
)
ROOMS = {WRITE: "jobs", RUN: "runs", LOOK: "runs", KEEP: "runs.housekeeping", PARTS: "models"}

COMMANDS = (
    Entry("init", "init", WRITE, "Write a job spec from a few questions or a preset."),
    Entry("migrate", "migrate", WRITE, "Write a job spec from Megatron-LM's flags or Accelerate's YAML."),
    Entry("validate", "validate", WRITE, "Check a job spec: report all errors in one go, or a summary."),
    Entry("plan", "plan", WRITE, "Predict memory, speed and duration of a job, and report problems."),
    Entry("tune", "tune", WRITE, "Find the fastest layout that fits the GPUs, and write it as an overlay."),
    Entry("render", "render", WRITE, "Print the exact launch script."),
    Entry("cluster", "cluster", WRITE, "Describe a SLURM cluster: write a profile of it, list and show them."),
    Entry("bench", "bench", WRITE, "Measure how fast a job runs here, and where the time of a step goes."),
    Entry("calibrate", "calibrate", WRITE, "Measure a GPU's real performance, for plan and tune."),
    Entry("schema", "schema", WRITE, "Print the JSON schema of a job spec, or list the model presets."),
    Entry("run", "run", RUN, "Train, in the foreground; Ctrl-C saves and stops."),
    Entry("submit", "submit", RUN, "Train on a SLURM cluster; requeue automatically after a time limit."),
    Entry("sweep", "sweep", RUN, "Start, watch and compare many runs of one job."),
    Entry("resume", "resume", RUN, "Continue a run from its last checkpoint."),
    Entry("cancel", "cancel", RUN, "Stop a run cleanly."),
    Entry("drill", "drill", RUN, "Prove that a killed and resumed job has the same losses."),
    Entry("list", "list", LOOK, "List runs."),
    Entry("status", "status", LOOK, "Show the status of a run."),
    Entry("compare", "compare", LOOK, "Compare runs side by side: differences, results, curves."),
    Entry("logs", "logs", LOOK, "Print or follow the logs of a run."),
    Entry("dashboard", "dashboard", LOOK, "Show the runs of a folder in a browser, live."),
    Entry("notify", "notify", LOOK, "Send a test notification with the status of a run."),
    Entry("report", "report", LOOK, "Write a report on runs to send to colleagues: HTML or Markdown."),
    Entry("sync", "sync", LOOK, "Send missing metrics to MLflow and other trackers."),
    Entry("tag", "tag", KEEP, "Add tags to a run or a sweep, or remove them."),
    Entry("note", "note", KEEP, "Write a note on a run or a sweep."),
    Entry("rename", "rename", KEEP, "Give a run another name."),
    Entry("archive", "archive", KEEP, "Hide runs and sweeps from lists."),
    Entry("delete", "delete", KEEP, "Move runs, sweeps or checkpoints to the trash, or put them back."),
    Entry("prune", "prune", KEEP, "Empty the trash, which frees the disk."),
    Entry("data", "data", PARTS, "Turn text into indexed data sets, and inspect them."),
    Entry("checkpoint", "checkpoint", PARTS, "List, verify, export and import checkpoints."),
    Entry("evaluate", "evaluate", PARTS, "Measure a checkpoint: perplexity, LAMBADA, MNLI, RACE, lm-eval's tasks."),
    Entry("generate", "generate", PARTS, "Generate text from a checkpoint."),
    Entry("serve", "serve", PARTS, "Serve the model of a checkpoint over HTTP."),
)


MAY_RUN_ON_A_LOGIN_NODE = frozenset({RUN, LOOK, KEEP, PARTS})
"""Panels of commands that may; the module for it is imported where a profile names such a node."""


_COMPLETE = "_ORCHESTRATOR_COMPLETE"
"""The variable in which typer's scripts for the shells ask for completions."""


_COMPLETION = {"--install-completion": install_callback, "--show-completion": show_callback}
_SHELLS = ("bash", "zsh", "fish", "powershell", "pwsh")


class _Commands(TyperGroup):
    """Of `commands`, the typed one alone, and all others by their names and summaries: typer would look for parameters
    of each.

    Its flags for completion take the name of a shell, too: typer's own know the current one alone.
    """

    def __init__(self, *, commands: Any, **options: Any) -> None:
        summaries = {
            entry.name: TyperCommand(
                entry.name, callback=_not_imported, help=entry.summary, rich_help_panel=entry.panel
            )
            for entry in COMMANDS
        }
        super().__init__(commands={**summaries, **commands}, **options)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for number, argument in enumerate(takewhile(lambda word: word.startswith("-"), args)):
            flag, is_given, shell = argument.partition("=")
            if flag not in _COMPLETION:
                continue
            if not is_given:
                shell = next((word for word in args[number + 1 : number + 2] if not word.startswith("-")), "")
            if is_given or shell:
                if shell not in _SHELLS:
                    raise typer.BadParameter(f"{shell!r} is none of {', '.join(_SHELLS)}.", ctx, param_hint=flag)
                _COMPLETION[flag](ctx, self.params[0], shell)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:  # typer 0.29 has pydantic check values, and passes on what it says
            error.message = error.message.removeprefix("Value error, ")
            raise


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 0 done, 1 the job failed, 2 the input is wrong, 130 interrupted."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    as_json = "--json" in arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names need not be text, and a terminal need not know every character: say what can be said.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        with without_pydantic_plugins():
            code = _run(arguments, as_json)
        sys.stdout.flush()
    except OrchestratorError as error:
        _report(error, as_json)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        stop_printing()  # who read us has gone (`orchestrator list | head`)
        return 1
    except OSError as error:
        # The machine refused: permissions, a full disk, a file where a folder should be.
        if (refusal := write_refusal(error)) is not None:
            _report(refusal, as_json)
            return refusal.exit_code
        place = f": {error.filename}" if error.filename is not None else ""
        _report(OrchestratorError(f"{error.strerror or error}{place}", code="system_error"), as_json)
        return 1
    return code


def _run(arguments: list[str], as_json: bool) -> int:
    typed = _typed(arguments, os.environ)
    command = command_of(typed)
    if _may_run_on_a_login_node(typed):
        code = importlib.import_module("orchestrator.cli.login_node").run(build_app(typed), arguments)
        if code is not None:
            return int(code)
    if not as_json:
        try:
            command(arguments, prog_name="orchestrator")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else 1
        return 0
    try:
        code = command(arguments, prog_name="orchestrator", standalone_mode=False)
    except typer.TyperException as error:
        print_json({"error": "UsageError", "message": error.format_message(), "exit_code": error.exit_code})
        return error.exit_code
    except typer.Abort:
        return 130
    return code if isinstance(code, int) else 0


def command_of(typed: str | None) -> Any:
    """`build_app` as what can be called, made once in a process that runs many commands."""
    return _made(typed, _imported(typed))


@cache
def _made(typed: str | None, imported: Any) -> Any:
    return get_command(_tree(typed, imported))


def _may_run_on_a_login_node(typed: str | None) -> bool:
    """Whether a command is one that may, and some profile may name such a node; not where it was sent to one."""
    panels = {entry.panel for entry in COMMANDS if entry.name == typed}
    if not panels & MAY_RUN_ON_A_LOGIN_NODE or _COMPLETE in os.environ or LOGIN_VARIABLE in os.environ:
        return False
    return any(map(may_name_login_node, known_profiles().values()))


def _typed(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """The command among the arguments; among the words to complete, where a shell asks for completions."""
    if _COMPLETE in environment:
        # typer's scripts for the shells: bash gives the words in the first variable, zsh and fish in the second.
        words = environment.get("COMP_WORDS") or environment.get("_TYPER_COMPLETE_ARGS") or ""
        arguments = words.split()[1:]
    return next((word for word in arguments if not word.startswith("-")), None)


def build_app(typed: str | None) -> typer.Typer:
    """The whole command tree, in which only the command `typed` is more than its name and summary."""
    return _tree(typed, _imported(typed))


def _imported(typed: str | None) -> Any:
    """The function of a command, or the group of commands; None for what is no command."""
    for entry in (each for each in COMMANDS if each.name == typed):
        is_new = entry.module not in sys.modules
        with staying() if is_new else contextlib.nullcontext():
            module = importlib.import_module(entry.module)
        return module.app if hasattr(module, "app") else module.command
    return None


def _tree(typed: str | None, imported: Any) -> typer.Typer:
    app = typer.Typer(
        name="orchestrator",
        cls=_Commands,
        help="Train transformers on GPU clusters from one YAML spec: checked, planned, launched and resumed.",
        epilog="Start with: orchestrator init, then orchestrator run job.yaml",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    panel = next((entry.panel for entry in COMMANDS if entry.name == typed), None)
    if isinstance(imported, typer.Typer):
        app.add_typer(imported, name=typed, rich_help_panel=panel)
    elif imported is not None:
        app.command(typed, rich_help_panel=panel)(imported)
    return app


def _not_imported() -> None:
    raise AssertionError("the command that was typed is always imported")


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"orchestrator {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def _report(error: OrchestratorError, as_json: bool) -> None:
    if not as_json:
        print(f"error: {error}" if not isinstance(error, SpecError) else str(error), file=sys.stderr)
        return
    record: dict[str, object] = {
        "error": type(error).__name__,
        **({} if error.code is None else {"code": error.code}),
        "message": str(error),
        "exit_code": error.exit_code,
    }
    if isinstance(error, SpecError):
        print_json({**record, "problems": [problem.to_dict() for problem in error.problems]})
    else:
        print_json(record)
