"""Launch scripts. The only place where shell text is built, and the only importer of jinja2."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.errors import UserError
from orchestrator.fields.values import environment_references
from orchestrator.kernel_selection.cuda_connections import CONNECTIONS, device_connections
from orchestrator.resources import resource_root
from orchestrator.safe_path import RUNTIME_MODULE
from orchestrator.spec.job import JobSpec

if TYPE_CHECKING:
    import jinja2

SHIPPED_TEMPLATE = "torchrun.sh.j2"
_PLAIN_IN_DIRECTIVES = "=-_.,:/@+%[]"


class Quoted(str):
    """Text that is already quoted for a shell."""


def shell_quote(value: object) -> Quoted:
    """The value as one shell word that means exactly this text. Raises UserError for a NUL, which no shell can hold."""
    if isinstance(value, Quoted):
        return value
    text = str(value)
    if "\0" in text:
        raise UserError(f"{text!r} contains a NUL character, which cannot be passed to a program", code="nul_character")
    return Quoted(shlex.quote(text))


def directive(option: object) -> Quoted:
    """An option as the rest of a line that the scheduler reads itself: a backslash takes the meaning from the
    character after it. Raises UserError for what no such line can hold.
    """
    text = str(option)
    if any(ord(character) < 32 or ord(character) == 127 for character in text):
        raise UserError(
            f"{text!r} cannot be passed to SLURM: a line feed or control character would end the line",
            code="control_character",
        )
    return Quoted("".join(c if c.isalnum() or c in _PLAIN_IN_DIRECTIVES else f"\\{c}" for c in text))


def render(
    job: JobSpec,
    *,
    run_dir: Path,
    python: str,
    from_scratch: bool = False,
    module: str = RUNTIME_MODULE,
) -> str:
    """The script that starts the training of `run_dir` on one machine: a function of its arguments and the template.

    `launch.template` replaces the shipped template; it sees the same variables. Raises UserError when it cannot be read
    or rendered.
    """
    return render_program(
        job,
        python=job.launch.python or python,
        module=module,
        arguments=[str(run_dir), *(["--from-scratch"] if from_scratch else [])],
        processes_per_node=job.processes_per_node,
        nodes=job.launch.nodes,
        elastic=job.launch.min_nodes is not None,
    )


def render_program(
    job: JobSpec,
    *,
    python: str,
    module: str,
    arguments: Sequence[str],
    processes_per_node: int,
    nodes: int = 1,
    elastic: bool = False,
) -> str:
    """The script that starts any program of ours on several processes, with the environment of the job. `elastic`:
    NNODES of its environment says on how many nodes.
    """
    template = Path(job.launch.template) if job.launch.template else None
    context = {
        "environment": script_environment(job, processes_per_node),
        "python": python,
        "module": module,
        "arguments": list(arguments),
        "nodes": nodes,
        "elastic": elastic,
        "processes_per_node": processes_per_node,
    }
    return render_template(template, SHIPPED_TEMPLATE, context)


def render_template(own: Path | None, shipped: str, context: dict[str, Any]) -> str:
    """A template of the user's own, which may extend a shipped one, or the shipped one of that name.

    Raises UserError when it cannot be read or rendered.
    """
    import jinja2  # takes a tenth of what starts jobs to import, and most of that only looks at some

    folders = (str(resource_root("templates")), *([str(own.parent)] if own else []))
    source = own or resource_root("templates") / shipped
    try:
        return _compiled(folders, source.read_text(encoding="utf-8")).render(context)
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"the launch template {source} cannot be read: {_why(error)}", code="unreadable_launch_template"
        ) from error
    except jinja2.TemplateSyntaxError as error:
        raise UserError(
            f"{source}:{error.lineno}: the launch template is wrong: {error.message}", code="wrong_launch_template"
        ) from error
    except jinja2.UndefinedError as error:
        raise UserError(
            f"the launch template {source} uses something that does not exist: {error.message}.\n"
            f"      It may use: {', '.join(sorted(context))}",
            code="wrong_launch_template",
        ) from error
    except jinja2.TemplateError as error:
        raise UserError(
            f"the launch template {source} cannot be rendered: {error}", code="wrong_launch_template"
        ) from error


def _why(error: OSError | UnicodeDecodeError) -> str:
    """Without the number and the path that a person has read already."""
    return error.strerror or str(error) if isinstance(error, OSError) else f"it is not UTF-8 text: {error.reason}"


@lru_cache(maxsize=16)
def _compiled(folders: tuple[str, ...], text: str) -> jinja2.Template:
    """A template ready to be rendered: compiling takes a hundred times as long, and a sweep has many cells."""
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    # What a template forgets to quote is quoted all the same: `finalize` sees every expression. Whoever checks or plans
    # a job has not asked to run what its template holds.
    engine = ImmutableSandboxedEnvironment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        finalize=shell_quote,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    engine.filters.update(shell_quote=shell_quote, directive=directive, as_is=Quoted)
    return engine.from_string(text)


def refuse_missing_python(job: JobSpec) -> None:
    """Raises UserError when `launch.python` is nowhere on the PATH that the script searches."""
    python = job.launch.python
    path = dict(script_environment(job, job.processes_per_node)).get("PATH")
    if python is not None and shutil.which(python, path=path) is None:
        where = " with the PATH of launch.env" if path is not None else ""
        raise UserError(f"launch.python: {python} is not a program on this machine{where}", code="missing_python")


def script_environment(job: JobSpec, processes_per_node: int) -> list[tuple[str, str]]:
    """Variables that the script exports, sorted: our defaults, then what `launch.env` says.

    A value with `${env:NAME}` is left out: it must not be written down, so the training program sets it for itself.
    """
    environment = {CONNECTIONS: str(device_connections(job)), "PYTHONUNBUFFERED": "1"}
    threads = job.runtime.threads_per_rank or (1 if processes_per_node > 1 else None)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    environment |= {name: value for name, value in job.launch.env.items() if not environment_references(value)}
    return sorted(environment.items())
