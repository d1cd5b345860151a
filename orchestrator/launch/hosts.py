"""The hosts that a job names, in its spec or in a file, and where its run lies on them."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import UserError
from orchestrator.fields.nodelist import expand_nodelist
from orchestrator.fields.values import check_host
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.sections.launch import LaunchSpec

_MOST_BYTES = 1 << 20


def run_on_hosts(run: RunDir, launch: LaunchSpec) -> RunDir:
    """The run directory as its hosts know it."""
    return run if launch.copy_to is None else RunDir(Path(launch.copy_to) / run.name / run.run_id)


def hosts_of(launch: LaunchSpec) -> list[str]:
    """Every host once, in order. A file has one on each line, by its first word; `#` begins a comment.

    Raises UserError where the file cannot be read or names something that is no host, and where there are too few.
    """
    named = [*launch.hosts, *(_in_file(Path(launch.hosts_file)) if launch.hosts_file is not None else [])]
    hosts = list(dict.fromkeys(host for each in named for host in expand_nodelist(each)))
    if len(hosts) < launch.nodes:
        raise UserError(
            f"launch.hosts: {len(hosts)} {'host is' if len(hosts) == 1 else 'hosts are'} named for launch.nodes: "
            f"{launch.nodes}; name more, or write launch.nodes: {max(1, len(hosts))}",
            code="too_few_hosts",
        )
    return hosts


def _in_file(path: Path) -> list[str]:
    if not path.is_file():
        raise UserError(f"launch.hosts_file: there is no file {path}", code="file_not_found")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"launch.hosts_file: {path} cannot be read: {why}", code="unreadable_file") from error
    if len(content) > _MOST_BYTES:
        raise UserError(
            f"launch.hosts_file: {path} is larger than 1 MiB: it has one host on each line", code="hosts_file_too_large"
        )
    hosts = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split()
        if words:
            try:
                hosts.append(check_host(words[0]))
            except ValueError as error:
                raise UserError(
                    f"{path}:{number}: {words[0]!r} is not a host: {error}", code="malformed_host"
                ) from error
    return hosts
