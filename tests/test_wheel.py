"""The wheel works outside the repository, in an environment that holds its declared light dependencies and no torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from support.shipped import SHIPPED

ROOT = Path(__file__).resolve().parent.parent


class Installation:
    """An environment with the wheel in it, and a folder to work in."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.environment = environment
        self.folder = folder

    def run(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `orchestrator ARGUMENTS` and check its exit code."""
        return self._start(["orchestrator", *arguments], code)

    def python(self, program: str) -> str:
        """What a Python program prints in the environment."""
        return self._start(["python", "-c", program], 0).stdout.strip()

    def _start(self, command: list[str], code: int) -> subprocess.CompletedProcess[str]:
        program, *arguments = command
        variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        finished = subprocess.run(
            [self.environment / "bin" / program, *arguments],
            cwd=self.folder,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert finished.returncode == code, finished.stdout + finished.stderr
        return finished


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installation:
    """The wheel, built from this tree and installed with nothing but what it declares."""
    built = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", built, ROOT], check=True, timeout=120
    )
    (wheel,) = built.glob("*.whl")

    environment = tmp_path_factory.mktemp("environment")
    venv.create(environment, with_pip=False, symlinks=True)
    subprocess.run(
        [*pip, "--python", environment / "bin" / "python", "install", "--no-index", "--no-deps", "--no-compile", wheel],
        check=True,
        timeout=120,
    )
    (packages,) = environment.glob("lib/python*/site-packages")
    (metadata,) = packages.glob("megatron_orchestrator-*.dist-info")
    for dependency in light_dependencies(Distribution.at(metadata)):
        link_distribution(dependency, packages)
    return Installation(environment, tmp_path_factory.mktemp("elsewhere"))


def light_dependencies(wheel: Distribution) -> list[Distribution]:
    """Everything that the wheel requires without extras, and what that requires, as installed beside the tests."""
    found: dict[str, Distribution] = {}
    pending = [wheel]
    while pending:
        for line in pending.pop().requires or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                dependency = distribution(requirement.name)
                if dependency.name not in found:
                    found[dependency.name] = dependency
                    pending.append(dependency)
    return list(found.values())


def link_distribution(dependency: Distribution, packages: Path) -> None:
    """Make an installed distribution importable from another environment."""
    tops = {Path(file).parts[0] for file in dependency.files or [] if ".." not in Path(file).parts}
    for top in tops - {"__pycache__"}:
        target = packages / top
        if not target.exists():
            target.symlink_to(Path(str(dependency.locate_file(top))))


def test_nothing_heavy_is_there(installed: Installation) -> None:
    program = (
        "import importlib.util as u; print([n for n in ('torch', 'megatron', 'mlflow', 'numpy') if u.find_spec(n)])"
    )
    assert installed.python(program) == "[]"


def test_shipped_files_come_from_the_wheel(installed: Installation) -> None:
    for kind in ("templates", "jobs"):
        program = f"from orchestrator.resources import resource_root; print(resource_root({kind!r}))"
        folder = Path(installed.python(program))
        assert installed.environment in folder.parents
        assert sorted(path.name for path in folder.iterdir()) == sorted(path.name for path in (ROOT / kind).iterdir())


USERS_SCRIPT = """
from pathlib import Path

import orchestrator


def train(file: Path, rate: float) -> list[int]:
    job = orchestrator.load_job(file, overrides={"optimizer.lr": rate})
    reveal_type(job.spec.model.num_layers)
    plan = job.plan(gpu="H100")
    reveal_type(plan.forecast.time.step_seconds)
    tuned = job.tune(gpus=8, keep=["micro_batch_size"])
    reveal_type(tuned.layouts[0].mfu)
    try:
        run = tuned.job.run(runs_dir="runs", say=print)
    except orchestrator.SpecError as error:
        reveal_type(error.problems[0].message)
        raise
    run.resume({"schedule.train_iters": 20}, allow_changes=True)
    reveal_type(run.stop().iteration)
    reveal_type(run.logs(rank=0))
    reveal_type(orchestrator.find_run("tiny").path)
    return [checkpoint.iteration for checkpoint in run.checkpoints()]


train(Path("job.yaml"), "fast")
orchestrator.load_job("job.yaml").run(detach=True)
orchestrator.nothing
"""


def test_a_type_checker_knows_the_types(installed: Installation, tmp_path: Path) -> None:
    """Also where a script is wrong: its last three lines."""
    script = tmp_path / "script.py"
    script.write_text(USERS_SCRIPT)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", installed.environment / "bin" / "python"]
    command = [*mypy, "--cache-dir", os.devnull, script]
    checked = subprocess.run(command, cwd=installed.folder, capture_output=True, text=True)
    lines = checked.stdout.splitlines()
    revealed = [line.partition('Revealed type is "')[2].removesuffix('"') for line in lines if "Revealed type" in line]
    assert revealed == [
        "int",
        "float",
        "float | None",
        "str",
        "int | None",
        "list[tuple[str, str]]",
        "pathlib.Path",
    ], checked.stdout + checked.stderr
    errors = [line.partition("error: ")[2] for line in lines if "error: " in line]
    assert [error.rpartition("[")[2] for error in errors] == ["arg-type]", "call-arg]", "attr-defined]"], errors


JOBS = [str(path.relative_to(ROOT / "jobs")) for path in SHIPPED.values()]
OWN = {
    "validate": ["validate", "job.yaml"],
    "plan": ["plan", "job.yaml", "--json"],
    "render": ["render", "job.yaml"],
    "schema": ["schema"],
    "presets": ["schema", "--presets"],
}
"""Commands in the folder that `init` has made a job in, by what they are called here."""
EVERY_JOB = f"""
import contextlib, io, json
from orchestrator.cli.main import main
from orchestrator.resources import resource_root
words = {OWN}
for job in {JOBS}:
    for command in ("plan", "render"):
        words[f"{{command}} {{job}}"] = [command, str(resource_root("jobs") / job)]
said = {{}}
for name, each in words.items():
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(each)
    said[name] = code, out.getvalue(), err.getvalue()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def initialized(installed: Installation) -> Installation:
    """The same, with a job in its folder."""
    installed.run("init", "--yes")
    assert (installed.folder / "job.yaml").is_file()
    return installed


@pytest.fixture(scope="module")
def said(initialized: Installation) -> dict[str, tuple[int, str, str]]:
    """The exit code and the output of commands, those about each shipped job among them, all from one process."""
    answers: dict[str, tuple[int, str, str]] = json.loads(initialized.python(EVERY_JOB))
    return answers


def test_init_validate_plan_render(said: dict[str, tuple[int, str, str]]) -> None:
    assert {name: said[name][0] for name in OWN} == dict.fromkeys(OWN, 0), said
    assert json.loads(said["plan"][1])["parameters"]["total"] > 0
    assert "orchestrator.runtime" in said["render"][1]


@pytest.mark.parametrize("job", JOBS)
def test_shipped_jobs_plan_and_render(said: dict[str, tuple[int, str, str]], job: str) -> None:
    for command in ("plan", "render"):
        code, out, err = said[f"{command} {job}"]
        assert code == 0, out + err
    assert "orchestrator.runtime" in out


def test_schema_and_presets(said: dict[str, tuple[int, str, str]]) -> None:
    assert "parallelism" in json.loads(said["schema"][1])["properties"]
    assert "gpt2-large" in said["presets"][1]


def test_run_says_what_to_install(initialized: Installation) -> None:
    failed = initialized.run("run", "job.yaml", code=2)
    (line,) = failed.stderr.strip().splitlines()
    assert "pip install" in line
    assert "megatron-orchestrator[train]" in line
    assert not (initialized.folder / "runs").exists()
