"""`orchestrator cluster`: write, list and show cluster profiles."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from orchestrator.cli.common import AsJson, aligned, print_json
from orchestrator.cli.outputs import refuse_printed
from orchestrator.cluster_profiles import PROFILE, find_profile, read_profile
from orchestrator.errors import SpecError, UserError, file_refusal
from orchestrator.executors.slurm.commands import Answer
from orchestrator.executors.slurm.discovery import DiscoveredCluster, Partition, discover
from orchestrator.executors.slurm.profile_text import default_partition, profile_text
from orchestrator.login.connection import run_at
from orchestrator.planning.hardware.devices import device_named
from orchestrator.profile_files import PROFILE_NAME, is_file_name, known_profiles, user_folder
from orchestrator.quantities import spec_duration
from orchestrator.run_directory.rundir import write_atomically
from orchestrator.spec.cluster import ClusterSpec, check_login
from orchestrator.spec.loading import load_document_text
from orchestrator.spec.messages.suggestions import closest

_NOT_FOUND = 127
"""Exit status of a shell that does not find a command."""

app = typer.Typer(
    help="Write, list and show cluster profiles.",
    epilog="Example: orchestrator cluster init alps",
    no_args_is_help=True,
)


@app.command("init")
def init(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Name of the profile; the cluster's own name by default.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", metavar="NAME", help="Default partition of jobs.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Ask nothing; take every default.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where to write, e.g. clusters/NAME.yaml in a project; by default NAME.yaml in your own folder.",
            callback=refuse_printed,
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    login: Annotated[
        str | None,
        typer.Option(
            "--login",
            metavar="USER@HOST",
            help="Query the cluster of this login node with ssh, to submit from this machine.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Query the cluster that this machine belongs to, and write a commented profile.

    \b
    Example:
      orchestrator cluster init
      orchestrator cluster init alps --partition gpu --yes
      orchestrator cluster init -o clusters/alps.yaml
      orchestrator cluster init alps --login me@login.example.org
    """
    if name is None and output is not None:
        name = output.stem
    _check_request(name, output, force, login)
    ask = not yes and partition is None
    if ask and not sys.stdin.isatty():
        raise UserError(
            "there is no terminal for questions: add --yes to take the defaults, or --partition", code="no_terminal"
        )
    if login is None:
        found = discover()
    else:
        found = discover(partial(_run_at, login), user=_run_at(login, ["id", "-un"]).out.strip())
    name = name or _as_name(found.name)
    path = output or user_folder() / f"{name}.yaml"
    _refuse_overwriting(path, force)
    text = profile_text(found, _partition(found, partition, ask), name, login)
    profile = load_document_text(text, str(path), PROFILE).value
    _write(path, text)
    if as_json:
        print_json({"path": str(path), "profile": profile.model_dump(mode="json")})
        return
    typer.echo(f"wrote {path}: {_summary(profile)}.")
    if login is not None:
        typer.echo("Name the environment of your jobs there: virtual_env, python or modules.")
    typer.echo(f"Check it, then: orchestrator validate job.yaml --cluster {name}")


@app.command("list")
def list_(as_json: AsJson = False) -> None:
    """List the profiles that `launch.cluster` and `--cluster` can name: the project's, then your own.

    \b
    Example:
      orchestrator cluster list
    """
    rows, records = [["NAME", "PARTITION", "PARTITIONS", "FILE"]], []
    for name, path in known_profiles().items():
        record: dict[str, Any] = {"name": name, "path": str(path), "profile": None, "problems": 0}
        try:
            profile = read_profile(path).value
        except SpecError as error:  # one that is wrong must not hide the others
            record["problems"] = len(error.problems)
            rows.append([name, "-", f"invalid: orchestrator cluster show {name}", str(path)])
        else:
            record["profile"] = profile.model_dump(mode="json")
            rows.append([name, profile.partition or "-", ", ".join(profile.partitions) or "-", str(path)])
        records.append(record)
    if as_json:
        print_json(records)
    elif records:
        typer.echo(aligned(rows))
    else:
        typer.echo(f"no cluster profiles in clusters/ or {user_folder()}: `orchestrator cluster init` creates one")


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME|FILE", help="Name of a profile, or its file.")],
    as_json: AsJson = False,
) -> None:
    """Show a profile as it will be used, with all its errors.

    \b
    Example:
      orchestrator cluster show alps
      orchestrator cluster show alps --json
    """
    path = find_profile(name)
    profile = read_profile(path, found_by_name=not is_file_name(name)).value
    _refuse_what_is_not_there(path, profile)
    if as_json:
        print_json({"path": str(path), "profile": profile.model_dump(mode="json")})
        return
    typer.echo(f"{profile.name}: {path}")
    for field, value in profile.model_dump(mode="json", exclude_unset=True).items():
        if field not in ("name", "partitions") and value not in (None, [], {}):
            typer.echo(f"  {field:<16}{_shown(field, value)}")
    if profile.partitions:
        header = ["PARTITION", "NODES", "GPUS", "CPUS", "MEMORY", "TIME LIMIT"]
        typer.echo(aligned([header, *(_partition_row(key, profile) for key in profile.partitions)]))


def _refuse_what_is_not_there(path: Path, profile: ClusterSpec) -> None:
    """Raises UserError for names in a profile that lead nowhere: each job for the cluster would be refused for them."""
    wrong = []
    if profile.gpu is not None:
        try:
            device_named(profile.gpu)
        except UserError as error:
            wrong.append(f"gpu: {error}")
    if profile.template is not None and not Path(profile.template).is_file():
        wrong.append(f"template: {profile.template} does not exist; leave it out to use the shipped one")
    if wrong:
        raise UserError("\n       ".join(f"{path}: {each}" for each in wrong), code="wrong_profile")


def _run_at(login: str, command: Sequence[str]) -> Answer:
    """Run one of SLURM's commands on a login node."""
    done = run_at(login, command)
    if done.returncode == _NOT_FOUND:
        raise UserError(
            f"SLURM's commands are not on {login} (no {command[0]} in the PATH of a login shell)", code="missing_slurm"
        )
    return Answer(command[0], done.returncode, done.stdout, done.stderr)


def _check_request(name: str | None, output: Path | None, force: bool, login: str | None) -> None:
    """What can be refused before the cluster is asked."""
    if login is not None:
        try:
            check_login(login)
        except ValueError as error:
            raise UserError(f"--login {login}: {error}", code="malformed_host") from None
    if name is not None and PROFILE_NAME.fullmatch(name) is None:
        raise UserError(
            f"{name!r} is not a valid profile name: letters, digits, '.', '_' and '-', at most 80",
            code="malformed_profile_name",
        )
    if output is not None and output.suffix != ".yaml":
        raise UserError(
            f"{output}: the name of a profile file ends in .yaml; -o clusters/{output.name}.yaml would do",
            code="profile_not_yaml",
        )
    if output is not None and name != output.stem:
        raise UserError(
            f"a profile has the name of its file: {name} would have to be {output.with_name(f'{name}.yaml')}",
            code="profile_name_differs",
        )
    if output is not None or name is not None:
        _refuse_overwriting(output or user_folder() / f"{name}.yaml", force)


def _refuse_overwriting(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise UserError(
            f"{path} already exists: choose another name, or overwrite it with --force", code="output_exists"
        )


def _as_name(text: str) -> str:
    """A cluster's name as a profile may be called."""
    name = "".join(character if PROFILE_NAME.fullmatch(f"a{character}") else "-" for character in text).lstrip("._-")
    return name[:80] or "cluster"


def _partition(found: DiscoveredCluster, asked: str | None, ask: bool) -> Partition:
    by_name = {partition.name: partition for partition in found.partitions}
    proposed = default_partition(found)
    if asked is None and ask and len(by_name) > 1:
        for partition in found.partitions:
            typer.echo(f"  {partition.name}: {_described(partition)}")
        while (asked := typer.prompt("Partition of jobs that name none", default=proposed.name)) not in by_name:
            typer.echo(f"  there is no partition {asked}")
    if asked is None:
        return proposed
    if asked not in by_name:
        near = closest(asked, by_name)
        hint = f"did you mean {' or '.join(near)}? " if near else ""
        raise UserError(
            f"{found.name} has no partition {asked}: {hint}(there are: {', '.join(by_name)})", code="unknown_partition"
        )
    return by_name[asked]


def _described(partition: Partition) -> str:
    gpus = f"{partition.gpus_per_node} GPUs ({', '.join(partition.gpu_types) or 'no type'})"
    limit = spec_duration(partition.time_limit) if partition.time_limit else "no limit"
    state = "" if partition.is_up else ", not up now"
    nodes = f"{partition.nodes} node{'' if partition.nodes == 1 else 's'}"
    return f"{nodes}, {gpus if partition.gpus_per_node else 'no GPUs'} on each, {limit}{state}"


def _summary(profile: ClusterSpec) -> str:
    return f"partition {profile.partition} of {len(profile.partitions)}"


def _write(path: Path, text: str) -> None:
    with file_refusal(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)


def _shown(field: str, value: Any) -> str:
    if field == "time":
        return spec_duration(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items() if item)
    return str(value)


def _partition_row(name: str, profile: ClusterSpec) -> list[str]:
    partition = profile.partitions[name]
    memory = f"{partition.memory_per_node} MB" if partition.memory_per_node else "-"
    numbers = (partition.nodes, partition.gpus_per_node, partition.cpus_per_node)
    limit = spec_duration(partition.time_limit) if partition.time_limit else "-"
    mark = " (default)" if name == profile.partition else ""
    return [f"{name}{mark}", *("-" if number is None else str(number) for number in numbers), memory, limit]
