"""Launch scripts: exact text, valid shell, and nothing of a spec that a shell would interpret."""

import math
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

from orchestrator.cli.jobs.render import megatron_script
from orchestrator.errors import UserError
from orchestrator.launch.scripts.render import refuse_missing_python, render, shell_quote
from orchestrator.spec.job import JobSpec

GOLDEN = Path(__file__).parents[2] / "golden"
RUN_DIR = Path("/scratch/my runs/tiny/0123abcd")

CASES: dict[str, dict[str, Any]] = {
    "torchrun-one-machine": {
        "launch__env": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "${env:HF_TOKEN}", "NOTE": 'it\'s $HOME; `id` "x"'},
    },
    "torchrun-one-process": {"parallelism": {}, "launch": {"python": "/opt/my python/bin/python"}},
    "torchrun-two-machines": {
        "parallelism": {"tensor_model_parallel_size": 2, "data_parallel_size": 4},
        "batch__global_batch_size": 8,
        "launch": {"nodes": 2, "gpus_per_node": 4},
        "runtime": {"threads_per_rank": 6},
    },
}
MakeJob = Callable[..., JobSpec]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, make_job: MakeJob) -> tuple[str, JobSpec]:
    """A golden file's name and its job."""
    return request.param, make_job(**CASES[request.param])


def script(job: JobSpec, **options: bool) -> str:
    return render(job, run_dir=RUN_DIR, python="/usr/bin/python3.11", **options)


def test_script_is_exactly_the_golden_one(case: tuple[str, JobSpec]) -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    name, job = case
    assert script(job) == (GOLDEN / f"{name}.sh").read_text()


@pytest.mark.parametrize(
    ("layers", "parallelism", "env", "connections"),
    [
        (None, {}, {}, 1),
        (2, {}, {}, 8),
        (2, {"tensor_model_parallel_size": 2}, {}, 1),
        (2, {"context_parallel_size": 2}, {}, 1),
        (2, {}, {"CUDA_DEVICE_MAX_CONNECTIONS": "4"}, 4),
    ],
)
def test_offloading_alone_is_not_started_in_order(
    layers: int | None, parallelism: dict[str, int], env: dict[str, str], connections: int, make_job: MakeJob
) -> None:
    job = make_job(
        parallelism=parallelism,
        launch={"gpus_per_node": math.prod(parallelism.values()), "env": env},
        runtime={"cpu_offloading_num_layers": layers, "layers": "transformer_engine", "device": "auto"},
        model__num_layers=4,
    )
    assert f"export CUDA_DEVICE_MAX_CONNECTIONS={connections}\n" in script(job)
    assert f"export CUDA_DEVICE_MAX_CONNECTIONS={connections}\n" in megatron_script(job)[0]


def test_script_is_valid_shell(case: tuple[str, JobSpec]) -> None:
    subprocess.run(["bash", "-n"], input=script(case[1]), text=True, check=True)


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
def test_shellcheck_finds_nothing(case: tuple[str, JobSpec]) -> None:
    # SC2016 doubts that single quotes around `$` are meant: for values of a spec they always are.
    command = ["shellcheck", "--exclude=SC2016", "-"]
    found = subprocess.run(command, input=script(case[1]), text=True, capture_output=True)
    assert found.stdout == ""
    assert found.returncode == 0


def test_references_to_the_environment_are_never_written_down(make_job: MakeJob) -> None:
    assert "HF_TOKEN" not in script(make_job(launch__env={"HF_TOKEN": "x${env:HF_TOKEN}"}))


def test_from_scratch_is_passed_on(make_job: MakeJob) -> None:
    assert script(make_job(), from_scratch=True).endswith("0123abcd' \\\n  --from-scratch\n")


def run_with_fake_python(
    job: JobSpec, folder: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the script of a job whose Python prints its arguments and environment, each ended by a NUL."""
    folder.mkdir(exist_ok=True)
    fake = folder / "fake python"
    fake.write_text('#!/bin/sh\nprintf "%s\\0" "$@"\nprintf "==\\0"\nenv -0\n')
    fake.chmod(0o755)
    text = render(job, run_dir=folder / "run dir", python=str(fake))
    return subprocess.run(["bash", "-c", text], capture_output=True, env=environment or dict(os.environ))


values = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)


@given(values | st.sampled_from(["$(touch pwned)", "`id`", "'", "\\", "a\nb", "-n", "*", "!!", "${HOME}", "{{ x }}"]))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(40))
def test_hostile_values_arrive_literally(make_job: MakeJob, tmp_path: Path, value: str) -> None:
    job = make_job()
    # Not through validation, which refuses some of them: rendering must be safe by itself.
    job = job.model_copy(update={"launch": job.launch.model_copy(update={"env": {"VALUE": value}})})
    done = run_with_fake_python(job, tmp_path)
    assert done.stderr == b""
    arguments, _, environment = done.stdout.partition(b"==\0")
    assert f"VALUE={value}".encode() in environment.split(b"\0")
    assert arguments.split(b"\0")[-2] == str(tmp_path / "run dir").encode()


def test_value_with_nul_is_refused() -> None:
    with refused("nul_character"):
        shell_quote("a\0b")


def test_several_machines_need_their_addresses(make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job(**CASES["torchrun-two-machines"])
    done = run_with_fake_python(job, tmp_path)
    assert done.returncode != 0
    assert b"set MASTER_ADDR to the address of the first machine" in done.stderr
    environment = {**os.environ, "MASTER_ADDR": "node1", "NODE_RANK": "1", "ORCHESTRATOR_LAUNCH_ID": "today"}
    done = run_with_fake_python(job, tmp_path, environment)
    assert b"--node-rank\x001\x00" in done.stdout
    assert b"--master-addr\0node1\0--master-port\x0029500\0" in done.stdout


@pytest.fixture
def own_template(make_job: MakeJob, tmp_path: Path) -> Callable[[str], JobSpec]:
    """A job with a launch template of this text."""

    def job_with(text: str) -> JobSpec:
        path = tmp_path / "mine.sh.j2"
        path.write_text(text)
        return make_job(launch__template=str(path))

    return job_with


def test_own_template_replaces_the_shipped_one_and_is_quoted_even_when_it_forgets(own_template: MakeJob) -> None:
    text = script(own_template("srun {{ python }} {{ module | shell_quote }} {{ arguments[0] }}\n"))
    assert text == "srun /usr/bin/python3.11 orchestrator.runtime '/scratch/my runs/tiny/0123abcd'\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ok\n{% if %}\n", "mine.sh.j2:2: the launch template is wrong"),
        ("{{ gpus }}", "'gpus' is undefined.\n      It may use: arguments, elastic, environment, module, nodes"),
    ],
)
def test_wrong_template_says_where_and_what(own_template: MakeJob, text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        script(own_template(text))
    assert message in str(caught.value)


def test_missing_template(make_job: MakeJob) -> None:
    with refused("unreadable_launch_template", "nowhere.j2"):
        script(make_job(launch__template="nowhere.j2"))


def test_quoting_twice_is_quoting_once() -> None:
    assert shell_quote(shell_quote("it's")) == shell_quote("it's")


def test_python_is_looked_for_where_the_script_does(make_job: MakeJob, tmp_path: Path) -> None:
    python = tmp_path / "my-python"
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    refuse_missing_python(make_job(launch__python="my-python", launch__env={"PATH": str(tmp_path)}))
    with refused("missing_python", "my-python"):
        refuse_missing_python(make_job(launch__python="my-python"))
    with refused("missing_python", "bash", "launch.env"):
        refuse_missing_python(make_job(launch__python="bash", launch__env={"PATH": str(tmp_path)}))


@pytest.mark.parametrize(
    "expression",
    [
        "cycler.__init__.__globals__.os.system(touch)",
        "''.__class__.__mro__[1].__subclasses__()",
        "arguments.append('x')",
        "'{0.__class__}'.format(python)",
    ],
)
def test_a_template_runs_nothing(make_job: MakeJob, tmp_path: Path, expression: str) -> None:
    """`validate` and `plan` render it, too."""
    template = tmp_path / "own.sh.j2"
    template.write_text(f"{{% set touch = 'touch {tmp_path}/touched' %}}{{{{ {expression} }}}}")
    with refused("wrong_launch_template", template):
        script(make_job(launch__template=str(template)))
    assert not (tmp_path / "touched").exists()
