"""What the pages say can be followed: links lead somewhere, jobs are valid, commands and options exist."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.main
from click.exceptions import Exit
from support.matrix import LAYOUTS, REFUSED

from orchestrator.cli.main import COMMANDS, build_app
from orchestrator.cluster_profiles import PROFILE
from orchestrator.conversion.exportability import export_warnings
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_document_text, load_job

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\(([^)#:]*)#([^)]+)\)")
FENCED = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"(?:^|`|\$ )(?:\.venv/bin/)?orchestrator ([a-z][^`\n]*)", re.MULTILINE)
TEST = re.compile(r"`(?:tests/)?(?:[\w/]+/)?(test_\w+)(?:\.py)?[`\[ ]")
FEATURES = ("fine-tune", "models", "parallelism", "performance", "training")
"""Pages of what can be trained, and how: each names the tests that show it."""
MAKE = re.compile(r"(?:^|`)make ([a-z][a-z-]*)", re.MULTILINE)


def page_id(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_to_files(page: Path) -> None:
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert broken == []


def headings(page: Path) -> set[str]:
    """The anchors that a page has, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_anchors_lead_to_headings(page: Path) -> None:
    found = ANCHOR.findall(page.read_text())
    assert [(to, anchor) for to, anchor in found if anchor not in headings(page.parent / to if to else page)] == []


def test_every_how_to_is_listed() -> None:
    folder = ROOT / "docs" / "how-to"
    pages = {page.name for page in folder.glob("*.md")} - {"README.md"}
    assert set(LINK.findall((folder / "README.md").read_text())) >= pages


def test_the_order_of_imports_is_the_one_that_is_checked() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = "\n".join(layer for layer in contracts[0]["layers"] if layer != "__main__")
    assert f"```\n{layers}\n```" in (ROOT / "docs" / "architecture.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_whole_jobs_are_valid(page: Path, tmp_path: Path) -> None:
    for language, text in FENCED.findall(page.read_text()):
        if language == "yaml" and text.startswith("name:") and "\nmodel:" in text:
            job = tmp_path / "job.yaml"
            job.write_text(text)
            assert list(export_warnings(load_job([job], []).job)) == [], "an example can be taken to Hugging Face"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_whole_profiles_are_valid(page: Path) -> None:
    for language, text in FENCED.findall(page.read_text()):
        if language == "yaml" and text.startswith("name:") and "\npartitions:" in text:
            load_document_text(text, page_id(page), PROFILE)


def test_the_readme_shows_what_plan_prints() -> None:
    """Every line of the block stands in the output, which names a GPU and so is the same on every machine."""
    readme = (ROOT / "README.md").read_text()
    [block] = [text for _, text in FENCED.findall(readme) if text.startswith("$ orchestrator plan")]
    asked, *shown, rest = block.splitlines()
    command_line = [sys.executable, "-m", *asked.removeprefix("$ ").split()]
    said = subprocess.run(command_line, cwd=ROOT, env={**os.environ, "COLUMNS": "100"}, capture_output=True, text=True)
    lines = [line.rstrip() for line in said.stdout.splitlines()]
    assert rest == "…"
    assert [line for line in shown if line not in lines] == []


def test_pictures_are_text_that_needs_nothing_else() -> None:
    for picture in (ROOT / "docs" / "images").iterdir():
        text = picture.read_text()
        assert re.findall(r"(?:href|src)=\"(?!#)|url\((?!&quot;#|#)|<script", text) == [], picture.name


def test_the_readme_shows_a_whole_job() -> None:
    jobs = [text for language, text in FENCED.findall((ROOT / "README.md").read_text()) if language == "yaml"]
    assert len(jobs) == 1
    assert jobs[0].startswith("name:")
    assert "\nmodel:" in jobs[0]


def commands_on(page: Path) -> Iterator[list[str]]:
    """The words of each `orchestrator …` on a page, up to a comment, a pipe, an ellipsis or `--`."""
    for text in COMMAND.findall(page.read_text().replace("\\\n", " ")):
        yield re.split(r"\s[#|>]|…|,\s|\s--\s", text)[0].split()


@cache
def command(name: str) -> Any:
    """One command of the command line, with its options."""
    return typer.main.get_command(build_app(name)).commands[name]  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_options_exist(page: Path) -> None:
    names = {entry.name for entry in COMMANDS}
    for words in commands_on(page):
        assert words[0] in names, f"orchestrator {words[0]}"
        found = command(words[0])
        if hasattr(found, "commands") and len(words) > 1:
            assert words[1] in found.commands, f"orchestrator {words[0]} {words[1]}"
            found = found.commands[words[1]]
        options = [option for each in found.params for option in (*each.opts, *each.secondary_opts)]
        known = {*options, "--help", "-h"}
        used = {word.partition("=")[0] for word in words[1:] if re.fullmatch(r"--?[a-z][a-z-]*(=.*)?", word)}
        assert used <= known, f"orchestrator {' '.join(words)}"


BLOCK_LINE = re.compile(r"^(?: {4}|[\w-]*\$ )?(?:\.venv/bin/)?orchestrator ([a-z].*)$", re.MULTILINE)
INDENTED = re.compile(r"(?:^ {4}.*\n?)+", re.MULTILINE)


def lines_in_blocks(page: Path) -> Iterator[list[str]]:
    """The words of each command in a block of a page, as a shell has them. A line with an ellipsis is no command."""
    text = page.read_text().replace("\\\n", " ")
    for block in (*(text for _, text in FENCED.findall(text)), *INDENTED.findall(FENCED.sub("", text))):
        for line in BLOCK_LINE.findall(block):
            if "…" not in line:
                yield shlex.split(re.split(r"\s#\s|\s[|>]\s", line)[0])


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_in_blocks_are_taken(page: Path) -> None:
    """The command line takes them as they stand: no argument is missing or too many, every value is of its option's."""
    for words in lines_in_blocks(page):
        found, rest = command(words[0]), words[1:]
        while rest and hasattr(found, "commands"):
            found, rest = found.commands[rest[0]], rest[1:]
        with suppress(Exit):  # --help
            found.make_context(words[0], rest)


def test_the_readme_names_every_command() -> None:
    """`status RUN` stands beside `orchestrator list`."""
    named = set(re.findall(r"`(?:orchestrator )?([a-z]+)\b", (ROOT / "README.md").read_text()))
    assert {entry.name for entry in COMMANDS} <= named


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+)(?: [a-z-]+)*:", (ROOT / "Makefile").read_text(), re.MULTILINE))
    targets |= {"test-slurm", "test-browser", "test-gpu"}
    for page in PAGES:
        assert set(MAKE.findall(page.read_text())) <= targets, page_id(page)


def test_tests_that_pages_name_exist() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    functions = {name for file in files for name in re.findall(r"^ *def (test_\w+)", file.read_text(), re.MULTILINE)}
    known = {file.stem for file in files} | functions
    named = {page: set(TEST.findall(page.read_text())) for page in PAGES if "benchmarks" not in page.parts}
    assert {page_id(page): names - known for page, names in named.items() if names - known} == {}
    paths = {path for page in PAGES for path in re.findall(r"\btests/[\w/]+\.py", page.read_text())}
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
    assert [name for name in FEATURES if not named[ROOT / "docs" / "how-to" / f"{name}.md"]] == []


def test_the_table_of_layouts_is_the_one_that_is_tested() -> None:
    """What goes with what, family by family: refused, or equal to one process."""
    rows = {
        "TP 2": ("tp2",),
        "TP 2 with SP": ("tp2-sp",),
        "PP 2": ("pp2",),
        "PP 2, interleaved": ("pp2-interleaved",),
        "PP 2, stages of unequal length": ("pp2-uneven", "pp2-embedding-alone"),
        "DP 2, with and without distributed optimizer and overlap": ("dp2", "dp2-plain-optimizer", "dp2-no-overlap"),
        "FSDP, DP 2": ("dp2-fsdp",),
        "FSDP in groups of 2, DP 4": ("dp4-fsdp2",),
        "EP 2": ("ep2",),
        "CP 2": ("cp2",),
        "TP 2 · PP 2 with SP": ("tp2-pp2-sp",),
        "TP 2 · PP 2 with SP, interleaved": ("tp2-pp2-interleaved-sp",),
    }
    assert {name for names in rows.values() for name in names} == LAYOUTS.keys() - {"plain-optimizer"}
    page = (ROOT / "docs" / "how-to" / "parallelism.md").read_text()
    table = page.partition("Supported combinations.")[2].partition("\n## ")[0]
    [heading, _, *lines] = re.findall(r"^\|(.*)\|$", table, re.MULTILINE)
    families = [cell.strip().lower() for cell in heading.split("|")[1:]]
    assert families == ["gpt", "experts", "bert", "t5"]
    cells = {line.split("|")[0].strip(): [cell.strip()[0] == "=" for cell in line.split("|")[1:]] for line in lines}
    assert cells == {row: [(family, names[0]) not in REFUSED for family in families] for row, names in rows.items()}


ROOMS = {path.stem for path in (ROOT / "orchestrator").iterdir()}
MODULE = re.compile(r"`(?:orchestrator\.)?([a-z]\w*(?:\.\w+)+)")


def _is_there(name: str) -> bool:
    """Whether `a.b.c` is a module or folder, or a name in one."""
    folder, parts = ROOT / "orchestrator", name.split(".")
    for place, part in enumerate(parts):
        source = folder / f"{part}.py" if (folder / f"{part}.py").exists() else folder / "__init__.py"
        if not (folder / part).is_dir():
            rest = parts[place + 1 :] if source.stem == part else parts[place:]
            return all(re.search(rf"\b{each}\b", source.read_text()) for each in rest[:1])
        folder /= part
    return True


def test_modules_that_are_named_exist() -> None:
    """Of names that begin with a room, but for keys of a job: on two pages, and in what packages promise."""
    pages = [ROOT / "docs" / "reference" / "file-formats.md"]
    packages = (ROOT / "orchestrator").rglob("__init__.py")
    promises = [ast.get_docstring(ast.parse(package.read_text())) or "" for package in packages]
    said = MODULE.findall("\n".join([*(page.read_text() for page in pages), *promises]))
    modules = [name for name in said if name.split(".")[0] in ROOMS and not name.endswith(".py")]
    keys = {f"{section}.{key}" for section, field in JobSpec.model_fields.items() for key in _keys_of(field.annotation)}
    assert len(modules) > 50
    assert [name for name in modules if not _is_there(name) and ".".join(name.split(".")[:2]) not in keys] == []


def _keys_of(section: Any) -> set[str]:
    return set(getattr(section, "model_fields", {}))
