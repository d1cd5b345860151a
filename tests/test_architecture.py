"""The rules that docs/architecture.md states, and what must never be in the repository."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def run_and_list_modules(*arguments: str, cwd: Path) -> set[str]:
    """Top-level modules that are loaded after the command `orchestrator ARGUMENTS` has run in a fresh process."""
    program = (
        "import json, sys\n"
        "from orchestrator.cli.main import main\n"
        "code = main(sys.argv[1:]) if sys.argv[1:] else 0\n"
        "print('\\n' + json.dumps([code, sorted({name.partition('.')[0] for name in sys.modules})]))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr
    code, modules = json.loads(finished.stdout.splitlines()[-1])
    assert code == 0, finished.stdout + finished.stderr
    return set(modules)


@pytest.mark.parametrize(
    "arguments",
    [
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
    ],
    ids=lambda arguments: " ".join(arguments) or "import",
)
def test_light_commands_load_nothing_heavy(arguments: tuple[str, ...], tmp_path: Path) -> None:
    job = ROOT / "jobs" / "gpt-1.7b.yaml"
    words = [word.format(job=job, runs=tmp_path) for word in arguments]
    assert run_and_list_modules(*words, cwd=tmp_path) & HEAVY == set()


def test_imports_only_point_down() -> None:
    program = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    linted = subprocess.run(
        [sys.executable, "-c", program, "--no-logo", "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr
    assert re.search(r"Contracts: [1-9]\d* kept, 0 broken", linted.stdout)


def test_no_file_grows_too_long() -> None:
    long = {}
    for path in tracked_files():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py" and name not in LONGER:
            lines = len(path.read_text().splitlines())
            if lines > MOST_LINES:
                long[name] = lines
    assert long == {}, f"split these, or give a reason in {Path(__file__).name}"


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
        for node in ast.walk(ast.parse(path.read_text())):
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
