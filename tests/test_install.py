"""`make install` takes a Python that fits, says in one line how to get one, and compiles nothing."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "scripts" / "install.sh"
Install = Callable[..., tuple[int, str, list[str]]]

# A Python of a version, by this one; what else it is told to do than answer whether it fits is written down.
PYTHON = """\
#!/bin/bash
case "$1" in
  -c) exec '{real}' -c "import sys; sys.version_info = (3, {minor}, 0); {lacks}; $2";;
  --version) echo "Python 3.{minor}.0";;
  *) echo "3.{minor} $*" >> "$CALLS"
     if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; fi
     [[ "$*" != *" show "* && "$*" != *"${{REFUSES-no such word}}"* ]];;
esac
"""
UV = """\
#!/bin/bash
echo "uv $*" >> "$CALLS"
[ -n "{finds}" ] && echo "{finds}"
"""


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """A folder of programs, the only one on PATH that has a Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("bash", "sed", "grep", "mkdir", "cp", "env"):
        found = shutil.which(name)
        assert found is not None
        (folder / name).symlink_to(found)
    return folder


@pytest.fixture
def install(tmp_path: Path, programs: Path) -> Install:
    """install(**variables) -> (exit code, what was said, what the programs were told)."""

    def run(**variables: str) -> tuple[int, str, list[str]]:
        calls = tmp_path / "calls"
        calls.touch()
        done = subprocess.run(
            ["bash", str(SCRIPT), str(tmp_path / "venv"), ".[train,dev]"],
            cwd=ROOT,
            env={"PATH": str(programs), "CALLS": str(calls), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        return done.returncode, done.stdout, calls.read_text().splitlines()

    return run


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def put_python(folder: Path, name: str, minor: int, *, lacks_venv: bool = False) -> Path:
    lacks = "sys.modules['ensurepip'] = None" if lacks_venv else "pass"  # as where Debian's python3-venv is missing
    return write(folder / name, PYTHON.format(real=sys.executable, minor=minor, lacks=lacks))


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"python3": 11}, 11),
        ({"python3": 13}, 13),
        ({"python3": 11, "python3.13": 13}, 11),  # the one that a person uses
        ({"python3": 14, "python3.11": 11, "python3.12": 12}, 12),  # else the newest that fits
        ({"python3": 9, "python3.14": 14, "python3.13": 13}, 13),
    ],
)
def test_a_python_that_fits_is_found(install: Install, programs: Path, there: dict[str, int], taken: int) -> None:
    for name, minor in there.items():
        put_python(programs, name, minor)
    code, said, calls = install()
    assert code == 0, said
    assert f"with Python 3.{taken}.0" in said
    assert {call.split()[0] for call in calls} == {f"3.{taken}"}


def test_one_without_its_venv_module_does_not_fit(install: Install, programs: Path) -> None:
    put_python(programs, "python3", 13, lacks_venv=True)
    put_python(programs, "python3.12", 12)
    assert "with Python 3.12.0" in install()[1]


def test_one_that_uv_has_is_taken_where_no_other_fits(install: Install, programs: Path, tmp_path: Path) -> None:
    (tmp_path / "uv's").mkdir()
    managed = put_python(tmp_path / "uv's", "python", 13)
    write(programs / "uv", UV.format(finds=managed))
    put_python(programs, "python3", 14)
    code, said, calls = install()
    assert (code, calls[0]) == (0, "uv python find --no-python-downloads >=3.11,<3.14")
    assert "with Python 3.13.0" in said


@pytest.mark.parametrize(
    ("has_uv", "said"),
    [
        (
            False,
            "Python 3.11 to 3.13 with its venv module is needed; install one with its venv module, or name it: "
            "make install PYTHON=…\n",
        ),
        (True, "Python 3.11 to 3.13 with its venv module is needed; get one with: uv python install 3.13\n"),
    ],
)
def test_one_line_says_how_to_get_one(install: Install, programs: Path, has_uv: bool, said: str) -> None:
    put_python(programs, "python3", 14)
    if has_uv:
        write(programs / "uv", UV.format(finds=""))
    code, told, calls = install()
    assert (code, told) == (1, said)
    assert [call for call in calls if not call.startswith("uv python find")] == []


def test_a_python_that_was_named_and_does_not_fit_is_not_replaced(install: Install, programs: Path) -> None:
    put_python(programs, "python3", 12)
    put_python(programs, "mine", 14)
    code, said, calls = install(PYTHON="mine")
    assert (code, calls) == (1, [])
    assert said.startswith("PYTHON=mine does not fit: Python 3.11 to 3.13 with its venv module is needed")


def test_nothing_is_compiled(install: Install, programs: Path) -> None:
    """Every package that is installed comes as a wheel, but for three that hold no more than Python."""
    put_python(programs, "python3", 13)
    code, said, calls = install()
    assert code == 0, said
    installing = [call for call in calls if " install " in call]
    assert len(installing) == 2  # torch, and the rest
    for call in installing:
        assert "--only-binary=:all: --no-binary=rouge-score,sqlitedict,word2number -c constraints.txt" in call


def test_what_has_no_wheel_is_said(install: Install, programs: Path) -> None:
    put_python(programs, "python3", 13)
    code, said, _ = install(REFUSES="-e .[train,dev]")
    assert code == 1
    assert "What has no wheel for Python 3.13.0 is not compiled" in said


def test_the_script_and_the_package_agree_on_versions() -> None:
    """Training needs megatron-core, and the markers say for which Pythons it has wheels."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    last = max(re.findall(r"python_version < '3\.(\d+)'", " ".join(project["optional-dependencies"]["train"])), key=int)
    script = SCRIPT.read_text()
    assert f"\nnewest={int(last) - 1}\n" in script
    [oldest] = re.findall(r"(?m)^oldest=(\d+)$", script)
    assert project["requires-python"].startswith(f">=3.{oldest},")
    named = [line.rpartition(" ")[2] for line in project["classifiers"] if "Python :: 3." in line]
    assert named == [f"3.{minor}" for minor in range(int(oldest), int(last))]


@pytest.mark.skipif("ORCHESTRATOR_TEST_REGISTRY" not in os.environ, reason="asks a package registry")
@pytest.mark.parametrize("minor", [11, 12, 13])
def test_every_package_has_a_wheel_for_every_python(minor: int, tmp_path: Path) -> None:
    """With uv, which resolves for Pythons that are not there. Slow and beyond loopback: only when asked."""
    uv = shutil.which("uv")
    assert uv is not None, "uv resolves for other Pythons: pip install uv"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    compiled_here = ("mamba", "flash")  # for the CUDA that is there; make install takes neither
    wanted = [line for name, lines in extras.items() if name not in compiled_here for line in lines]
    lines = [line for line in [*project["dependencies"], *wanted] if not line.startswith("megatron-orchestrator")]
    (tmp_path / "wanted.in").write_text("\n".join(lines))
    source = [word for name in ("rouge-score", "sqlitedict", "word2number") for word in ("--no-binary", name)]
    options = ["--python-version", f"3.{minor}", "--python-platform", "x86_64-manylinux_2_28", "--only-binary", ":all:"]
    command = [uv, "pip", "compile", "--quiet", *options, *source, "-c", "constraints.txt", str(tmp_path / "wanted.in")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
