"""Hooks of mkdocs.yml: the repository's pages as a site, with no copy of them.

A page of the site has the path that it has below `docs/`, a page of the repository's root the path that it has there. A
link to any other file leads to a copy of it in `files/`, one to a folder without a README to a list of what is in it. A
navigation entry that names a folder lists its pages.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the folders that the navigation names."""
    config.nav = [_listed(entry) for entry in config.nav or []]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what lies outside of docs/, and lists of folders that have no page."""
    for name in ROOT_PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for page in [path for path in sources() if path.suffix == ".md"]:
        for target in LINK.findall(_prose(page.read_text())):
            found = posixpath.normpath(posixpath.join(page.parent.relative_to(ROOT).as_posix(), target))
            path = place(found)
            if files.get_file_from_path(path) is not None:
                continue
            if path.startswith("files/") and (ROOT / found).is_file():
                files.append(File.generated(config, path, abs_src_path=str(ROOT / found)))
            elif (ROOT / found).is_dir() and found.startswith("docs/"):
                listing = File.generated(config, path, content=_listing(ROOT / found))
                listing.inclusion = InclusionLevel.NOT_IN_NAV
                files.append(listing)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links as the site has them, and blank lines where GitHub's Markdown needs none."""
    here = page.file.src_uri
    source = here if here in ROOT_PAGES else f"docs/{here}"

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        return "](" + posixpath.relpath(place(target), posixpath.dirname(here) or ".")

    parts = FENCE.split(markdown)
    parts[::2] = [_spaced(LINK.sub(link, part)) for part in parts[::2]]
    return "".join(parts)


def sources() -> list[Path]:
    """Every page of the repository that the site has."""
    return [*(ROOT / name for name in ROOT_PAGES), *sorted((ROOT / "docs").rglob("*.md"))]


def place(path: str) -> str:
    """Where a path of the repository is on the site."""
    if path.startswith("docs/"):
        inside = path.removeprefix("docs/")
        return inside if posixpath.splitext(inside)[1] else f"{inside}/README.md"
    return path if path in ROOT_PAGES else f"files/{path}"


def _listed(entry: Any) -> Any:
    """A navigation entry. A folder by itself stands for its pages but the first, `Title: folder/` for all of them."""
    if not isinstance(entry, dict):
        return entry
    [(title, value)] = entry.items()
    if isinstance(value, str):
        return {title: [*_first_of(value), *_pages_of(value)]} if value.endswith("/") else entry
    return {title: [each for part in value for each in _parts(part)]}


def _parts(entry: Any) -> list[Any]:
    return _pages_of(entry) if isinstance(entry, str) and entry.endswith("/") else [_listed(entry)]


def _first_of(folder: str) -> list[str]:
    return [f"{folder}README.md"] if (ROOT / "docs" / folder / "README.md").exists() else []


def _pages_of(folder: str) -> list[str]:
    pages = sorted((ROOT / "docs" / folder).glob("*.md"))
    return [f"{folder}{page.name}" for page in pages if page.name != "README.md"]


def _listing(folder: Path) -> str:
    """A page with a link to each page and file of a folder."""
    lines = [f"# {folder.name.capitalize()}", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file():
            title = path.read_text().partition("\n")[0].removeprefix("# ") if path.suffix == ".md" else path.name
            lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines) + "\n"


def _prose(text: str) -> str:
    return FENCE.sub("", text)


def _spaced(text: str) -> str:
    """A list or a table begins behind a blank line; GitHub takes one behind a line of text too."""
    lines: list[str] = []
    for line in text.split("\n"):
        kind = _kind(line)
        if kind and lines and lines[-1].strip() and not lines[-1].startswith((" ", "#")) and _kind(lines[-1]) != kind:
            lines.append("")
        lines.append(line)
    return "\n".join(lines)


def _kind(line: str) -> str:
    found = re.match(r"- |\d+\. |\|", line)
    return "" if found is None else "table" if found[0] == "|" else "list"
