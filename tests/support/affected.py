"""The test files that a change is most likely to break, the nearest first: `python -m support.affected [BASE]`.

A change is what differs from BASE (origin/main, or else the last commit), committed or not. A test depends on what it
and its conftest.py files import, directly or through others, and on the programs of ours that these name in a string.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MOST = 100
"""Files that are printed. By some way nearly every test depends on nearly every module."""
_PROGRAM = re.compile(r"orchestrator(\.\w+)+")
_IMPORT = re.compile(r"^ *(?:from ([\w.]+) import (\([^)]*\)|.*)|import (.*))", re.MULTILINE)
Graph = dict[str, set[str]]
"""By file, below the root: the files that it depends on."""


def affected(changed: Iterable[str], dependencies: Mapping[str, set[str]], root: Path = ROOT) -> list[str]:
    """The test files that depend on changed ones, ordered by how many imports lie between."""
    dependants: Graph = {}
    for file, needed in dependencies.items():
        for each in needed:
            dependants.setdefault(each, set()).add(file)
    found: dict[str, None] = {}
    reached = sorted(changed)
    seen = set(reached)
    while reached:
        found |= dict.fromkeys(file for file in reached if Path(file).name.startswith("test_"))
        nearer = {file for each in reached for file in dependants.get(each, ())}
        reached = sorted(nearer - seen)
        seen |= nearer
    return [file for file in found if (root / file).exists()]


def dependencies() -> Graph:
    """What each file of the package and of the tests depends on."""
    files = [Path(line) for line in _git(ROOT, "ls-files", "--cached", "--others", "--exclude-standard")]
    modules = {_module(file): str(file) for file in files if file.suffix == ".py"}
    return {str(file): set(_needed(file, modules)) for file in files if file.suffix == ".py" and (ROOT / file).exists()}


def changed_since(base: str | None, root: Path = ROOT) -> set[str]:
    """Files that differ from a commit, and those that git does not know yet."""
    if base is None:
        known = subprocess.run(["git", "rev-parse", "-q", "--verify", "origin/main"], cwd=root, capture_output=True)
        base = "origin/main" if known.returncode == 0 else "HEAD"
    [common] = _git(root, "merge-base", base, "HEAD")
    tracked = _git(root, "diff", "--name-only", "--no-renames", common)
    return {*tracked, *_git(root, "ls-files", "--others", "--exclude-standard")}


def _needed(file: Path, modules: Mapping[str, str]) -> Iterator[str]:
    for name in _names((ROOT / file).read_text(encoding="utf-8")):
        if (needed := modules.get(name)) is not None:
            yield needed
    if file.parts[0] == "tests":
        yield from (str(folder / "conftest.py") for folder in file.parents if (ROOT / folder / "conftest.py").exists())


def _names(text: str) -> Iterator[str]:
    """Modules that a file imports, and those that its strings name. Read without parsing it, a tenth of the work: what
    only a comment names counts too.
    """
    for module, names, whole in _IMPORT.findall(text):
        yield from re.findall(r"[\w.]+", whole)
        if module:
            yield module
            yield from (f"{module}.{name}" for name in re.findall(r"\w+", names))
    for found in _PROGRAM.finditer(_IMPORT.sub("", text)):
        yield from (found.group(), f"{found.group()}.__main__")


def _module(file: Path) -> str:
    parts = file.with_suffix("").parts
    parts = parts[1:] if parts[0] == "tests" else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _git(root: Path, *arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    print(*affected(changed_since(sys.argv[1] if len(sys.argv) > 1 else None), dependencies())[:_MOST], sep="\n")
