"""The rules that docs/architecture.md states, and what must never be in the repository."""

from __future__ import annotations

import ast
import gc
import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from support.kind_comparisons import comparisons
from support.shipped import SHIPPED
from support.ties import moments, private_looks, replacements

ROOT = Path(__file__).resolve().parent.parent
HEAVY = {
    "mlflow",
    "megatron",
    "numpy",
    "pandas",
    "pyarrow",
    "scipy",
    "sklearn",
    "submitit",
    "tokenizers",
    "torch",
    "transformers",
}
MEGATRON_FLAGS = (
    "--num-layers 2 --hidden-size 64 --num-attention-heads 2 --seq-length 32 --micro-batch-size 1 --lr 1e-3 "
    "--train-iters 10 --mock-data --tokenizer-type NullTokenizer --vocab-size 99"
)
MOST_LINES = 450
# Files that may be longer, each with its reason.
LONGER: dict[str, str] = {}
MOST_MODULES = 15


@pytest.fixture(scope="module", autouse=True)
def _no_search_for_garbage() -> Iterator[None]:
    """A parsed file has no circles: to look for them costs as much as to parse it."""
    gc.disable()
    yield
    gc.enable()


def tracked_files() -> list[Path]:
    """Files of the repository as git knows them, new ones included."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    )
    return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]


LIGHT = {
    " ".join(arguments) or "import": arguments
    for arguments in (
        (),
        ("--help",),
        ("validate", "{job}"),
        ("plan", "{job}"),
        ("plan", "{job}", "--json"),
        ("render", "{job}"),
        ("render", "{job}", "--as", "megatron-lm"),
        ("migrate", "-o", "{runs}/job.yaml", "--", *MEGATRON_FLAGS.split()),
        ("schema",),
        ("list", "--runs-dir", "{runs}"),
        ("cluster", "list"),
    )
}
"""Commands, by what is typed."""
ONE_AFTER_ANOTHER = """
import contextlib, io, json, sys
from orchestrator.cli.main import main
found = []
for words in json.loads(sys.argv[1]):
    before = set() if not words else set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()):
        code = main(words) if words else 0
    found.append([code, sorted({name.partition(".")[0] for name in set(sys.modules) - before})])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, list[str]]]:
    """Of each command the exit code, and the modules that it is the first to load: all in one process."""
    folder = tmp_path_factory.mktemp("light")
    places = {"job": SHIPPED["gpt-1.7b"], "runs": folder}
    words = [[word.format(**places) for word in arguments] for arguments in LIGHT.values()]
    command = [sys.executable, "-c", ONE_AFTER_ANOTHER, json.dumps(words)]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 0, finished.stderr
    return dict(zip(LIGHT, json.loads(finished.stdout), strict=True))


@pytest.mark.parametrize("command", LIGHT)
def test_light_commands_load_nothing_heavy(command: str, loaded: dict[str, tuple[int, list[str]]]) -> None:
    code, modules = loaded[command]
    assert code == 0
    assert set(modules) & HEAVY == set()


def test_no_file_grows_too_long() -> None:
    long = {}
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py" and name not in LONGER:
            lines = len(path.read_text().splitlines())
            if lines > MOST_LINES:
                long[name] = lines
    assert long == {}, f"split these, or give a reason in {Path(__file__).name}"


def _crowded() -> dict[str, int]:
    """Folders of the package with too many modules, beside `__init__.py` and `__main__.py`, and how many."""
    modules = [path for path in (ROOT / "orchestrator").rglob("*.py") if not path.name.startswith("__")]
    counts = Counter(path.parent.relative_to(ROOT / "orchestrator").as_posix() for path in modules)
    return {folder: count for folder, count in counts.items() if count > MOST_MODULES}


def test_a_folder_of_many_modules_has_folders() -> None:
    assert _crowded() == {}, "give each a folder whose name tells what is in it"


_IMPORTS = re.compile(r"^ *(?:from (orchestrator[\w.]*) import (\([^)]*\)|.*)|import (orchestrator[\w.]*))", re.M)


def _imported(path: Path) -> set[str]:
    """Everything of the package that a file imports, whole names. A tenth of the work of parsing it."""
    found = set()
    for module, names, whole in _IMPORTS.findall(path.read_text()):
        parts = re.findall(r"(\w+)(?: as \w+)?", re.sub("#.*", "", names))
        found |= {f"{module}.{name}" for name in parts} or {whole}
    return found


def test_folders_of_a_room_import_each_other_one_way() -> None:
    """What stands directly in a room is on no side: it may import the room's folders, and they it."""
    package = ROOT / "orchestrator"
    imported: dict[Path, set[str]] = defaultdict(set)  # by all that is below a folder
    for path in package.rglob("*.py"):
        names = _imported(path)
        for folder in path.relative_to(ROOT).parents:
            imported[ROOT / folder] |= names
    folders = [path.parent for path in package.rglob("__init__.py")]
    for room in {folder.parent for folder in folders} - {ROOT}:
        start = ".".join(room.relative_to(ROOT).parts)
        needs: dict[str, set[str]] = {}
        for folder in folders:
            if folder.parent == room:
                names = {name for name in imported[folder] if name.startswith(f"{start}.")}
                inside = {name.removeprefix(f"{start}.").partition(".")[0] for name in names}
                needs[folder.name] = {name for name in inside - {folder.name} if (room / name).is_dir()}
        TopologicalSorter(needs).prepare()  # a circle is a CycleError, which names its folders


def test_every_reason_for_a_long_file_is_still_needed() -> None:
    for name, reason in LONGER.items():
        assert reason
        assert len((ROOT / name).read_text().splitlines()) > MOST_LINES, f"{name} is short again: remove its exception"


def test_programs_are_started_in_one_way() -> None:
    """`module_command` alone says `-m`, and no list of words begins with this Python: what is started without `-P`
    imports from the working directory.
    """
    found = []
    for path in (ROOT / "orchestrator").rglob("*.py"):
        source = path.read_text()
        if '"-m"' not in source and "sys.executable" not in source:
            continue
        for node in ast.walk(ast.parse(source)):
            is_option = isinstance(node, ast.Constant) and node.value == "-m"
            first = node.elts[0] if isinstance(node, ast.List | ast.Tuple) and node.elts else None
            if is_option or (first is not None and ast.unparse(first) == "sys.executable"):
                found.append((path.relative_to(ROOT / "orchestrator").as_posix(), ast.unparse(node)))
    assert {name for name, _ in found} == {"safe_path.py"}, found


def test_templates_start_python_safely() -> None:
    starts = [
        line.strip()
        for path in (ROOT / "templates").glob("*.j2")
        for line in path.read_text().splitlines()
        if re.search(r"(^|\s)-m\s", line)
    ]
    assert len(starts) == 7
    assert [line for line in starts if not re.search(r"\}\} -P (-u )?-m ", line)] == []


# Spelled in parts, so that this file passes its own test.
FORBIDDEN = {
    "a package registry's host": re.compile(
        "|".join(
            ("py" + r"pi\.(org|python)", "python" + "hosted", r"(?:down)load\.py" + "torch", r"registry\.np" + "mjs")
        )
    ),
    "a path of one machine": re.compile(r"(?<![\w.])/(?:work/(?:main|shared|\.)|root/|home/\w+/|Users/\w+/)"),
}


def test_nothing_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        for what, pattern in FORBIDDEN.items():
            found += [f"{path.relative_to(ROOT)}: {what}: {match.group()}" for match in pattern.finditer(text)]
    assert found == []


SLURM_COMMANDS = re.compile(r"\b(?:sbatch|sacct|squeue|scontrol|scancel|srun|sinfo|sacctmgr)\b", re.IGNORECASE)
NAMES_SLURM = {
    "migration": "other people's scripts, which it reads",
    "run_directory/rundir.py": "launch.sbatch, the file's name since the first version",
    "dashboard/pages/run_spec_and_plan.py": "the same file",
    "spec/cluster.py": "the profile of a SLURM cluster: what its fields are called there",
}


def test_one_folder_names_the_commands_of_slurm() -> None:
    package = ROOT / "orchestrator"
    files = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if SLURM_COMMANDS.search(path.read_text())
    ]
    outside = [file for file in files if not file.startswith(("executors/slurm/", *NAMES_SLURM))]
    assert outside == []


READS_RUNS = (
    *("bench", "cli/runs", "dashboard", "evaluation", "executors", "inference", "launch", "review", "run_directory"),
    *("sweeps", "tracking", "tuning", "runtime/callbacks", "runtime/records", "runtime/checkpointing"),
    *("cli/run_start.py", "self_contained_checkpoints.py", "spec/loading.py"),
)
# How often a file of these opens or reads others itself, and why these are no files of a run directory.
OPENS_OTHERS = {
    "cli/runs/report.py": (1, "a note that a person names"),
    "dashboard/assets.py": (1, "files of this package"),
    "launch/code/snapshot.py": (1, "the code of the folder that a person works in"),
    "launch/code/sent_project.py": (1, "what another machine has sent with the command"),
    "launch/code/code_version.py": (1, "git's index of the folder that a person works in"),
    "executors/slurm/refusals.py": (1, "the script that was submitted, for what it asked"),
    "launch/hosts.py": (1, "a file that a person names"),
    "executors/kubernetes/pod.py": (1, "the ConfigMap of a pod"),
    "launch/machine.py": (1, "what the driver says in /proc"),
    "launch/notifications/channels.py": (1, "the null device"),
    "launch/processes/launch_processes.py": (2, "what the kernel says in /proc"),
    "launch/scripts/render.py": (1, "a template of a job's author"),
    "self_contained_checkpoints.py": (1, "a tokenizer of a job's author"),
    "run_directory/checkpoints/commit_markers.py": (1, "what was just written; files of data sets, which may be links"),
    "run_directory/exclusive_files.py": (1, "a file that it creates exclusively"),
    "run_directory/results/evaluation_request.py": (2, "files that a person has measured a checkpoint on"),
    "run_directory/rundir.py": (2, "a file that it writes and renames, and what is made durable"),
}


_OPENS = re.compile(r"\b(open|FileResponse|read_text|read_bytes|copyfile|copy2)\(")


def _opens(path: Path) -> int:
    """How many calls of a file open or read others by their path."""
    source = path.read_text()
    if not _OPENS.search(source):
        return 0
    return sum(_is_open(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))


def _is_open(call: ast.Call) -> bool:
    match call.func:
        case ast.Name("open" | "FileResponse"):
            return True
        case ast.Attribute(ast.Name("os" | "io"), "open"):
            return True
        case ast.Attribute(_, "read_text" | "copyfile" | "copy2"):
            return True
        case ast.Attribute(_, "read_bytes"):  # that of a RunDir is told which file
            return not call.args
        case ast.Attribute(_, "open"):
            return bool(call.args) and isinstance(call.args[0], ast.Constant)
        case _:
            return False


def test_files_of_run_directories_are_opened_in_one_place() -> None:
    """Anybody may have put a pipe, a link or a terabyte there: `stored_files` opens them, for everybody."""
    package = ROOT / "orchestrator"
    places = [package / name for name in READS_RUNS]
    files = [path for place in places for path in ([place] if place.is_file() else place.rglob("*.py"))]
    found = {path.relative_to(package).as_posix(): count for path in files if (count := _opens(path))}
    assert found == {name: count for name, (count, reason) in OPENS_OTHERS.items() if reason}


# How often a file compares kinds of models by name, optional sections with None, or blocks with classes, and why.
COMPARES_KINDS = {
    "migration/from_megatron.py": (1, "a job names its family where it is not the spec's default"),
    "spec/rules/model/bert.py": (3, "the rules of this family"),
    "spec/rules/model/t5.py": (7, "the rules of this family"),
}


def test_what_a_model_does_is_asked_of_its_family() -> None:
    """Outside `models/` nobody compares a family's name, asks whether an optional section is None, or which class a
    block is: `model.family` has traits, sections have properties such as `has_experts`, and every block says what it
    has.
    """
    package = ROOT / "orchestrator"
    files = {path.relative_to(package).as_posix(): path for path in package.rglob("*.py")}
    found = {
        name: places
        for name, path in files.items()
        if not name.startswith("models/") and (places := comparisons(path.read_text()))
    }
    excepted = {name: len(found.pop(name, ())) for name in COMPARES_KINDS}
    assert excepted == {name: count for name, (count, reason) in COMPARES_KINDS.items() if reason}
    others = [f"{name}:{line}: {text}" for name, places in sorted(found.items()) for line, text in places]
    assert others == []


def test_what_an_optimizer_does_is_asked_of_its_kind() -> None:
    """Nobody compares its name, but the section that has the table."""
    compares = re.compile(r"\boptimizer\.name\s*(?:[!=]=|(?:not )?in\b)")
    package = ROOT / "orchestrator"
    found = [path for path in package.rglob("*.py") if compares.search(path.read_text())]
    assert [path.relative_to(package).as_posix() for path in found] == []


READS_RAW_EVENTS: set[str] = set()
# Files outside `run_directory/events/` that look into the objects of an event log: it may only get shorter.
_OF_AN_EVENT = ("event", "launched", "started", "exited", "submitted")


def _reads_raw_event(node: ast.AST) -> bool:
    """Whether it is `x["event"]`, `x.get("event")`, or takes a field out of what is called an event."""
    match node:
        case ast.Subscript(given, ast.Constant(str(key))):
            pass
        case ast.Call(ast.Attribute(given, "get"), [ast.Constant(str(key)), *_]):
            pass
        case _:
            return False
    return key == "event" or (isinstance(given, ast.Name) and given.id in _OF_AN_EVENT)


def test_events_are_typed_everywhere_but_in_their_room() -> None:
    package = ROOT / "orchestrator"
    files = [path for path in package.rglob("*.py") if package / "run_directory" / "events" not in path.parents]
    said = re.compile(rf'"event"|\b({"|".join(_OF_AN_EVENT)})(\[|\.get\()')
    sources = {path: text for path in files if said.search(text := path.read_text())}
    found = {path for path, text in sources.items() if any(map(_reads_raw_event, ast.walk(ast.parse(text))))}
    assert {path.relative_to(package).as_posix() for path in found} == READS_RAW_EVENTS


# What ties tests to how code is written (support/ties.py), and how often it may be so: these may only go down.
MOST_TIES = {replacements: 103, moments: 26, private_looks: 18}


@pytest.mark.parametrize(("ties", "most"), MOST_TIES.items(), ids=lambda each: getattr(each, "__name__", ""))
def test_tests_are_tied_to_what_code_does(ties: Callable[[str], list[int]], most: int) -> None:
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "tests").rglob("*.py")}
    found = [f"{name}:{line}" for name, source in sorted(files.items()) for line in ties(source)]
    assert len(found) == most, "lower the limit" if len(found) < most else f"{len(found)}: see {found}"


def test_ties_are_counted() -> None:
    source = (
        "from orchestrator.launch import runs, _private\n"
        "monkeypatch.setattr(runs, '_NAME', 1)\n"
        "before(monkeypatch, 'orchestrator.launch.runs._write', print)\n"
        "runs.made[0]._later\n"
        "runs.Made()._replace(a=1)\n"
        "other._own\n"
    )
    assert (replacements(source), moments(source), sorted(private_looks(source))) == ([2], [3], [1, 2, 3, 4])
    first, *others = source.splitlines()
    assert private_looks(first) == [1]
    alone = [private_looks(f"from orchestrator.launch import runs\n{line}") for line in others]
    assert alone == [[2], [2], [2], [], []]
