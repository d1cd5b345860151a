"""What other packages add, found by the entry points that they declare: this is the one place that looks for them.

    [project.entry-points."orchestrator.trackers"]
    csv = "my_package.tracker:CsvTracker"

A spec names an entry point. Nothing is looked for, and no code of another package is imported, before a job names what
this package does not have itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from orchestrator.errors import UserError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

TRACKERS: Final = "orchestrator.trackers"
BLOCKS: Final = "orchestrator.blocks"
DATA_SOURCES: Final = "orchestrator.data_sources"
EXECUTORS: Final = "orchestrator.executors"


def load(group: str, name: str) -> Any:
    """What the entry point of that name leads to. Raises UserError where no package has one, where several have it, and
    where it cannot be imported: the distribution and the entry point are in the message.
    """
    found = _entry_points(group)
    named = [each for each in found if each.name == name]
    if not named:
        import difflib  # every command imports this module, and hardly one comes here

        there = sorted({each.name for each in found})
        near = difflib.get_close_matches(name, there, n=2, cutoff=0.5) or there[:5]
        known = f"; there {'is' if len(near) == 1 else 'are'} {', '.join(near)}" if near else ""
        raise UserError(
            f"no installed package has an entry point {name} in the group {group}{known}", code="missing_plugin"
        )
    if len(named) > 1:
        raise UserError(
            f"several packages have an entry point {name} in the group {group}: {_list(named)}; keep one",
            code="ambiguous_plugin",
        )
    try:
        return named[0].load()
    except Exception as error:  # whatever another package's code raises
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{_list(named)} cannot be loaded: {why}", code="unloadable_plugin") from error


def refused(group: str, name: str, options: Mapping[str, Any]) -> str | None:
    """Why a plugin cannot be used with these options; None where it can. Its `Options` take them as keywords; one that
    has no `Options` takes none.
    """
    try:
        plugin = load(group, name)
    except UserError as error:
        return str(error)
    try:
        getattr(plugin, "Options", dict if not options else _takes_none)(**options)
    except Exception as error:  # a ValueError of pydantic's, a TypeError of a dataclass's
        said = " ".join(str(error).split()) or type(error).__name__
        return f"{described(group, name)} does not accept these options: {said}"
    return None


def described(group: str, name: str) -> str:
    """The distribution and the entry point, for messages."""
    return _list([each for each in _entry_points(group) if each.name == name])


def _takes_none(**options: Any) -> None:
    raise ValueError("it takes none")


def _entry_points(group: str) -> list[EntryPoint]:
    from importlib.metadata import entry_points  # a twentieth of the time of `validate`, which hardly ever needs it

    return list(entry_points(group=group))


def _list(found: list[EntryPoint]) -> str:
    return ", ".join(
        f"{each.dist.name if each.dist else 'a package'} (entry point {each.name} = {each.value}, group {each.group})"
        for each in found
    )
