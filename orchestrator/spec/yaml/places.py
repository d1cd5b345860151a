"""Where each key of a job was written, and the order of problems."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import NamedTuple

from orchestrator.errors import Location, Problem
from orchestrator.fields.formatting import show
from orchestrator.spec.yaml.reader import LocatedValue

_PART = re.compile(r"[^.\[\]]+|\[\d+\]")


class Places(NamedTuple):
    """The places of a composed job."""

    root: LocatedValue
    sources: list[str]
    """Everything that a person wrote, in the order of merging."""

    def location(self, path: str) -> Location | None:
        """Where the key of a dotted path was written; None for one that was not."""
        found = self._find(path)
        return found.location if found else None

    def placed(self, problem: Problem) -> Problem:
        """The problem with its place: that of one of its fields that a person wrote."""
        if problem.location is not None:
            return problem
        location, whole = self._last_written(problem.paths)
        paths = problem.paths
        if whole in paths and paths[0].startswith(
            f"{whole}["
        ):  # an item of a flat list, whose numbers a person does not see
            paths = (whole, *(path for path in paths if path != whole))
        hints = [problem.hint] if problem.hint else []
        hints += [note for path in problem.paths if (note := self._elsewhere(path, location))]
        return replace(problem, paths=paths, location=location, hint="\n".join(hints) or None)

    def ordered(self, problems: list[Problem]) -> list[Problem]:
        """Each problem once, in the order of places."""

        def key(problem: Problem) -> tuple[int, int, int]:
            location = problem.location
            if location is None:
                return (len(self.sources), 0, 0)
            rank = self.sources.index(location.source) if location.source in self.sources else len(self.sources)
            return (rank, location.line or 0, location.column or 0)

        return sorted(dict.fromkeys(problems), key=key)

    def _find(self, path: str) -> LocatedValue | None:
        written = self.root
        for part in _PART.findall(path):
            content = written.content
            if isinstance(content, dict) and part in content:
                written = content[part]
            elif isinstance(content, list) and part.startswith("["):
                item = content[int(part[1:-1])] if int(part[1:-1]) < len(content) else None
                if item is None or not isinstance(item.content, dict):
                    return None  # the numbers of a flat blend's items are not those of its entries
                written = item
            else:
                return None
        return written

    def _last_written(self, paths: tuple[str, ...]) -> tuple[Location, str]:
        """(the place, the path of the field there). It is what a person wrote last: that made the contradiction. Where
        a person wrote none of the fields, it is the name of the preset, or the section.
        """
        located = {path: location for path in paths if (location := self.location(path))}
        written = {path: location for path, location in located.items() if location.source in self.sources}
        if written:
            last = max(self.sources.index(location.source) for location in written.values())
            return next((each, path) for path, each in written.items() if each.source == self.sources[last])
        if located and (location := self.location("model.preset")):
            return location, "model.preset"
        for path in paths:
            while "." in path or "[" in path:
                path = path[: max(path.rfind("."), path.rfind("["))]
                if location := self.location(path):
                    return location, path
        # What --set changed has nothing to do with what is in no file.
        files = [source for source in self.sources if not source.startswith("--set ")]
        return Location((files or self.sources)[-1]), ""

    def _elsewhere(self, path: str, location: Location) -> str | None:
        """A note on a field that takes part in the problem and is written in another source."""
        found = self._find(path)
        if found is None or found.location.source == location.source:
            return None
        value = "" if isinstance(found.content, dict | list) else f" = {found.text or show(found.content)}"
        return f"{path}{value} comes from {found.location}"
