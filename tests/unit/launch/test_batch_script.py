"""Batch scripts: exact text, valid shell, and nothing of a job or a profile that a shell or sbatch would interpret."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.refused import refused

from orchestrator.executors.slurm.batch_script import render_sbatch, slurm_time
from orchestrator.launch.executor_protocol import Place
from orchestrator.launch.scripts.render import directive
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.cluster import ClusterSpec, ContainerSpec
from orchestrator.spec.job import JobSpec

GOLDEN = Path(__file__).parents[2] / "golden"
MakeJob = Callable[..., JobSpec]
PLACE = Place(RunDir(Path("/scratch/my runs/tiny/0123abcd")), Path("/shared/ada/it's code"), "/opt/venv/bin/python")
FOUR_NODES: dict[str, Any] = {
    "parallelism": {"tensor_model_parallel_size": 2, "data_parallel_size": 8},
    "batch__global_batch_size": 8,
}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "slurm-plain": ({}, {}),
    "slurm-everything": (
        {
            **FOUR_NODES,
            "launch": {
                "nodes": 4,
                "time": "1d4h",
                "env": {"NOTE": "$HOME; `id`", "NCCL_DEBUG": "WARN", "HF_TOKEN": "${env:HF_TOKEN}"},
                "stop_margin": "5m",
                "qos": "long",
            },
        },
        {
            "partition": "booster",
            "account": "project7",
            "qos": "normal",
            "gpu_type": "h200",
            "cpus_per_gpu": 12,
            "memory_per_node": "0",
            "exclusive": True,
            "exclude": ["n13", "rack[2-3]n1"],
            "constraint": "a&b",
            "options": ["--mail-type=FAIL", "--comment=it's $HOME #1"],
            "modules": ["CUDA/13", "Python"],
            "virtual_env": "/opt/my venv",
            "setup": ["ulimit -c 0", 'export TMPDIR="/local/$SLURM_JOB_ID"'],
            "env": {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "mlx5"},
        },
    ),
    "slurm-pyxis": (
        {**FOUR_NODES, "launch": {"nodes": 2, "health_check": False}},
        {
            "gpu_request": "gpus-per-node",
            "container": {"image": "/images/torch 26.10.sqsh", "mounts": ["/data:/data:ro"]},
        },
    ),
    "slurm-apptainer": (
        {"launch": {"health_check": True}},
        {
            "gpu_request": "none",
            "container": {"runtime": "apptainer", "image": "/images/torch.sif", "options": ["--cleanenv"]},
        },
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, make_job: MakeJob) -> tuple[str, JobSpec, ClusterSpec]:
    """A golden file's name, its job and its cluster."""
    job, cluster = CASES[request.param]
    return request.param, make_job(**job), ClusterSpec(name="lab", **cluster)


@pytest.fixture
def make_job(make_job: MakeJob) -> MakeJob:
    """make_job(**changes): a job for GPUs, where they are."""
    return functools.partial(make_job, runtime={})


def test_script_is_exactly_the_golden_one(case: tuple[str, JobSpec, ClusterSpec]) -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    name, job, cluster = case
    assert render_sbatch(job, cluster, PLACE) == (GOLDEN / f"{name}.sbatch").read_text()


def test_script_is_valid_shell(case: tuple[str, JobSpec, ClusterSpec]) -> None:
    subprocess.run(["bash", "-n"], input=render_sbatch(*case[1:], PLACE), text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(case: tuple[str, JobSpec, ClusterSpec]) -> None:
    # SC2016 doubts that single quotes around `$` are meant, SC1091 wants to see what is sourced.
    command = ["shellcheck", "--exclude=SC2016,SC1091", "-"]
    found = subprocess.run(command, input=render_sbatch(*case[1:], PLACE), text=True, capture_output=True)
    assert found.stdout == ""
    assert found.returncode == 0


def directives(script: str) -> list[str]:
    """The options of a batch script as sbatch reads them: a backslash takes the meaning from the next character."""
    found = []
    for line in script.split("\n"):  # and nothing else ends a line for sbatch
        if line.startswith("#SBATCH "):
            option, characters = "", iter(line.removeprefix("#SBATCH "))
            for character in characters:
                assert character not in " #'\"", f"sbatch would stop at {character!r} in {line}"
                option += next(characters) if character == "\\" else character
            found.append(option)
    return found


def test_every_option_reaches_sbatch(make_job: MakeJob) -> None:
    job, cluster = CASES["slurm-everything"]
    found = directives(render_sbatch(make_job(**job), ClusterSpec(name="lab", **cluster), PLACE))
    assert "--comment=it's $HOME #1" in found
    assert "--account=project7" in found
    assert "--qos=long" in found
    assert "--time=1-04:00:00" in found
    assert "--signal=B:USR1@300" in found
    assert "--exclude=n13,rack[2-3]n1" in found
    assert "--gres=gpu:h200:4" in found


def run_script(script: str, folder: Path) -> tuple[list[str], list[str], set[str]]:
    """(modules and files sourced, words of the program, environment) of a script, run with stand-ins."""
    folder.mkdir(exist_ok=True)
    (folder / "work dir").mkdir(exist_ok=True)
    fake = folder / "fake python"
    fake.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\nprintf "==\\0"\nenv -0\n')
    fake.chmod(0o755)
    stand_ins = folder / "stand-ins"
    stand_ins.write_text('module() { printf "%s\\0" "$2"; }\nsource() { printf "%s\\0" "$1"; }\n')
    environment = {**os.environ, "BASH_ENV": str(stand_ins)}
    done = subprocess.run(["bash", "-c", script], capture_output=True, env=environment)
    assert done.stderr == b""
    assert done.returncode == 0
    said, _, variables = done.stdout.partition(b"==\0")
    words = said.decode().split("\0")[:-1]
    start = words.index("-m")
    return words[:start], words[start:], set(variables.decode(errors="surrogateescape").split("\0"))


def breaks_a_line(value: str) -> bool:
    """Whether SLURM, which reads its options line by line, could not be given this text."""
    return any(ord(character) < 32 or ord(character) == 127 for character in value)


def in_directives(option: str) -> Callable[..., bool]:
    return lambda value, script, *rest: option.format(value) in directives(script)


def among_words(word: str = "{}") -> Callable[..., bool]:
    return lambda value, script, setup, words, variables: word.format(value) in words


def in_setup(word: str) -> Callable[..., bool]:
    return lambda value, script, setup, words, variables: word.format(value) in setup


def in_environment(value: str, script: str, setup: list[str], words: list[str], variables: set[str]) -> bool:
    return f"VALUE={value}" in variables


CLUSTER_FIELDS: dict[str, tuple[Callable[[str], dict[str, Any]], Callable[..., bool]]] = {
    "partition": (lambda value: {"partition": value}, in_directives("--partition={}")),
    "account": (lambda value: {"account": value}, in_directives("--account={}")),
    "qos": (lambda value: {"qos": value}, in_directives("--qos={}")),
    "gpu_type": (lambda value: {"gpu_type": value}, in_directives("--gres=gpu:{}:2")),
    "memory_per_node": (lambda value: {"memory_per_node": value}, in_directives("--mem={}")),
    "constraint": (lambda value: {"constraint": value}, in_directives("--constraint={}")),
    "exclude": (lambda value: {"exclude": [value]}, in_directives("--exclude={}")),
    "options": (lambda value: {"options": [f"--comment={value}"]}, in_directives("--comment={}")),
    "modules": (lambda value: {"modules": [value]}, in_setup("{}")),
    "virtual_env": (lambda value: {"virtual_env": value}, in_setup("{}/bin/activate")),
    "env": (lambda value: {"env": {"VALUE": value}}, in_environment),
    "image": (
        lambda value: {"container": ContainerSpec.model_construct(runtime="pyxis", image=value, mounts=[], options=[])},
        among_words("--container-image={}"),
    ),
    "mounts": (
        lambda value: {
            "container": ContainerSpec.model_construct(runtime="apptainer", image="i", mounts=[value], options=[])
        },
        among_words(),
    ),
    "container options": (
        lambda value: {
            "container": ContainerSpec.model_construct(runtime="pyxis", image="i", mounts=[], options=[value])
        },
        among_words(),
    ),
}
READ_BY_SLURM = ("partition", "account", "qos", "gpu_type", "memory_per_node", "constraint", "exclude", "options")
values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=30)
hostile = st.sampled_from(
    [
        "$(touch pwned)",
        "`id`",
        "'",
        '"',
        "\\",
        "a\nb",
        "-n",
        "*",
        "!!",
        "${HOME}",
        "{{ x }}",
        "a #b",
        "a;b",
        "naïve ☃",
        "%j",
    ]
)


@pytest.mark.parametrize("field", CLUSTER_FIELDS)
@given(value=values | hostile)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(20))
def test_hostile_values_of_a_profile_arrive_literally(
    field: str, value: str, make_job: MakeJob, tmp_path: Path
) -> None:
    change, arrives = CLUSTER_FIELDS[field]
    # Not through validation, which refuses some of them: rendering must be safe by itself.
    cluster = ClusterSpec(name="lab").model_copy(update=change(value))
    place = Place(RunDir(tmp_path / "runs" / "tiny" / "run"), tmp_path / "work dir", str(tmp_path / "fake python"))
    if field in READ_BY_SLURM and breaks_a_line(value):
        with refused("control_character", "SLURM"):
            render_sbatch(make_job(), cluster, place)
        return
    script = render_sbatch(make_job(), cluster, place)
    assert arrives(value, script, *run_script(script, tmp_path))


@given(value=values | hostile)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
def test_hostile_values_of_a_job_arrive_literally(value: str, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job()
    partition = "main" if breaks_a_line(value) else value
    update = {"env": {"VALUE": value}, "partition": partition}
    job = job.model_copy(update={"launch": job.launch.model_copy(update=update)})
    place = Place(RunDir(tmp_path / "runs" / "tiny" / "run"), tmp_path / "work dir", str(tmp_path / "fake python"))
    script = render_sbatch(job, ClusterSpec(name="lab"), place)
    assert in_environment(value, script, *run_script(script, tmp_path))
    assert f"--partition={partition}" in directives(script)


@given(name=values | hostile)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
def test_hostile_folders_arrive_literally(name: str, make_job: MakeJob, tmp_path: Path) -> None:
    run = RunDir(tmp_path / name.replace("/", "_") / "run")
    place = Place(run, tmp_path / "work dir", str(tmp_path / "fake python"))
    if breaks_a_line(name) or "\\" in name:
        with refused("path_not_for_slurm" if "\\" in name or "\n" in name else "control_character", "SLURM"):
            render_sbatch(make_job(), ClusterSpec(name="lab"), place)
        return
    script = render_sbatch(make_job(), ClusterSpec(name="lab"), place)
    _, words, _ = run_script(script, tmp_path)
    assert words.count(str(run.path)) == 3
    assert f"--output={str(run.launcher_log).replace('%', '%%')}" in directives(script)


@given(st.integers(1, 10**7))
def test_time_limits_are_slurms(seconds: int) -> None:
    days, _, clock = slurm_time(seconds).partition("-")
    hours, minutes, rest = map(int, clock.split(":"))
    assert ((int(days) * 24 + hours) * 60 + minutes) * 60 + rest == seconds


@pytest.mark.parametrize("value", ["a\nb", "a\rb", "a\tb", "\x1b[2J"])
def test_an_option_of_two_lines_is_refused(value: str) -> None:
    with refused("control_character", repr(f"--comment={value}")):
        directive(f"--comment={value}")


def test_a_part_of_the_template_can_be_overridden(make_job: MakeJob, tmp_path: Path) -> None:
    own = tmp_path / "mine.sbatch.j2"
    own.write_text(
        '{% extends "slurm.sbatch.j2" %}\n{% block setup %}\nsource /etc/site.sh {{ virtual_env }}\n{% endblock %}\n'
    )
    cluster = ClusterSpec(name="lab", virtual_env="/opt/it's", setup=["never"])
    script = render_sbatch(make_job(launch={"slurm_template": str(own)}), cluster, PLACE)
    assert "source /etc/site.sh '/opt/it'\"'\"'s'\n" in script
    assert "never" not in script
    assert "orchestrator.batch" in script


def test_what_a_wrong_template_may_use(make_job: MakeJob, tmp_path: Path) -> None:
    own = tmp_path / "mine.sbatch.j2"
    own.write_text('{% extends "slurm.sbatch.j2" %}{% block setup %}{{ gpus }}{% endblock %}')
    with refused("wrong_launch_template", "'gpus'", "processes_per_node"):
        render_sbatch(make_job(), ClusterSpec(name="lab", template=str(own)), PLACE)
