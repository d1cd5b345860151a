"""A job as a JobSet: what the manifest says, held against the published schemas of its kinds, and what is refused."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubeflow_trainer_api.models.io_k8s_api_core_v1_config_map import IoK8sApiCoreV1ConfigMap
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from support.refused import refused

from orchestrator.executors.kubernetes.manifest import Claim, Setting, manifest_text, render_manifest
from orchestrator.executors.kubernetes.names import is_subdomain, job_set_name, pod_address, pod_name
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_resolved

GOLDEN = Path(__file__).parents[2] / "golden"
MakeJob = Callable[..., JobSpec]
Orchestrator = Callable[..., tuple[int, str, str]]
SETTING = Setting("registry.example.org/train:1", [Claim("work", "/shared")])
WRITTEN = "name: tiny\n# what a person wrote: 1é\n"
CASES: dict[str, tuple[dict[str, Any], Setting]] = {
    "kubernetes-plain": ({}, SETTING),
    "kubernetes-everything": (
        {
            "parallelism": {"tensor_model_parallel_size": 2, "data_parallel_size": 8},
            "batch__global_batch_size": 8,
            "launch": {
                "nodes": 4,
                "time": "1d",
                "stop_margin": "5m",
                "max_requeues": 7,
                "memory_per_node": "500G",
                "python": "/opt/$(venv)/bin/python",
                "env": {"NCCL_DEBUG": "WARN", "HF_TOKEN": "${env:HF_TOKEN}"},
            },
            "runtime": {"threads_per_rank": 4},
            "tracking": {"uri": "https://${env:USER_NAME}@mlflow.example.org", "wandb": {}},
            "notifications": {"webhook": "${env:WEBHOOK}"},
        },
        Setting(
            "registry.example.org/train@sha256:0123",
            [Claim("work", "/shared"), Claim("data", "/data", read_only=True), Claim("work", "/scratch")],
            "team-a",
            "tokens",
        ),
    ),
}


@pytest.fixture
def make_job(make_job: MakeJob) -> MakeJob:
    """make_job(**changes): a job for GPUs, where they are."""
    return functools.partial(make_job, **{"runtime": {}})


def rendered(job: JobSpec, setting: Setting = SETTING, **options: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    config_map, job_set = render_manifest(job, WRITTEN, setting, **options)
    return config_map, job_set


def pod_of(job_set: dict[str, Any]) -> dict[str, Any]:
    return job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def container_of(job_set: dict[str, Any]) -> dict[str, Any]:
    [container] = pod_of(job_set)["containers"]
    return container


def variables_of(job_set: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container_of(job_set)["env"]}


def assert_as_published(schema: Any, value: dict[str, Any]) -> None:
    """These models pass over what they do not know and fill in what is missing: both show in what they make of it."""
    assert schema.from_dict(value).to_dict() == value


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, make_job: MakeJob) -> tuple[str, JobSpec, Setting]:
    """A golden file's name, its job and its setting."""
    job, setting = CASES[request.param]
    return request.param, make_job(**job), setting


def test_job_set_is_exactly_the_golden_one(case: tuple[str, JobSpec, Setting]) -> None:
    """After a wanted change: write the new text to tests/golden and read the difference."""
    name, job, setting = case
    _, job_set = rendered(job, setting)
    hidden = manifest_text([job_set]).replace(job.config_hash[:8], "0123abcd")
    assert hidden.partition("\n")[2] == (GOLDEN / f"{name}.yaml").read_text()


def test_both_objects_are_as_the_published_schemas_say(case: tuple[str, JobSpec, Setting]) -> None:
    config_map, job_set = rendered(*case[1:])
    assert_as_published(IoK8sApiCoreV1ConfigMap, config_map)
    assert_as_published(JobsetV1alpha2JobSet, job_set)


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    """Every mapping whose keys the schemas name."""
    if isinstance(value, dict):
        yield value
    for key, item in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key not in ("data", "labels", "limits", "requests"):  # maps of names that a person chooses
            yield from mappings(item)


def test_a_misspelled_field_is_refused_wherever_it_stands(make_job: MakeJob) -> None:
    job, setting = CASES["kubernetes-everything"]
    objects = dict(
        zip((IoK8sApiCoreV1ConfigMap, JobsetV1alpha2JobSet), rendered(make_job(**job), setting), strict=True)
    )
    misspelled = 0
    for schema, original in objects.items():
        for place, found in enumerate(mappings(original)):
            for key in found:
                wrong = copy.deepcopy(original)
                there = list(mappings(wrong))[place]
                there[f"{key}s"] = there.pop(key)
                with pytest.raises((AssertionError, ValueError)):
                    assert_as_published(schema, wrong)
                misspelled += 1
    assert misspelled > 100


def test_the_text_says_what_the_objects_say(case: tuple[str, JobSpec, Setting]) -> None:
    objects = list(rendered(*case[1:]))
    text = manifest_text(objects)
    assert list(yaml.safe_load_all(text)) == objects
    assert "&" not in text  # no anchors
    assert f"  job.yaml: |\n    {WRITTEN.splitlines()[0]}\n" in text


def test_the_spec_in_it_is_the_job(make_job: MakeJob, tmp_path: Path) -> None:
    """As a volume of a ConfigMap has it, behind two links: the run in the cluster has the id of one here."""
    job = make_job(launch={"env": {"HF_TOKEN": "${env:HF_TOKEN}"}})
    config_map, job_set = rendered(job)
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..data").symlink_to("..2026")
    for name, content in config_map["data"].items():
        (tmp_path / "..2026" / name).write_text(content)
        (tmp_path / name).symlink_to(f"..data/{name}")
    loaded = load_resolved(tmp_path / "resolved.json")
    assert (loaded, loaded.config_hash) == (job, job.config_hash)
    assert job_set["metadata"]["name"] == f"tiny-{job.config_hash[:8]}"


NAMES = st.from_regex(re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", re.ASCII), fullmatch=True)
RUN_IDS = st.from_regex(re.compile(r"[0-9a-f]{8}", re.ASCII), fullmatch=True)
SERVICE = re.compile(r"[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)  # RFC 1035


@given(name=NAMES, run_id=RUN_IDS, pods=st.integers(1, 100_000))
@settings(suppress_health_check=[HealthCheck.too_slow])
def test_every_name_is_one_that_kubernetes_takes(name: str, run_id: str, pods: int) -> None:
    made = job_set_name(name, run_id, pods)
    assert SERVICE.fullmatch(made)
    assert made.endswith(f"-{run_id}")
    last = f"{pod_name(made, pods - 1)}-abcde"
    assert SERVICE.fullmatch(last), last
    assert is_subdomain(pod_address(made, pods - 1))


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("gpt-small", "gpt-small-0123abcd"),
        ("GPT_3.5", "gpt-3-5-0123abcd"),
        ("7b", "job-7b-0123abcd"),
        ("a" * 80, "a" * 39 + "-0123abcd"),
        ("x--.", "x-0123abcd"),
    ],
)
def test_names_of_jobs(name: str, made: str) -> None:
    assert job_set_name(name, "0123abcd", 4) == made


@pytest.mark.parametrize(
    ("memory", "limit"), [(None, None), ("0", None), ("500G", "512000Mi"), ("4096", "4096Mi"), ("1T", "1048576Mi")]
)
def test_memory_is_asked_for_where_the_job_says_how_much(
    make_job: MakeJob, memory: str | None, limit: str | None
) -> None:
    resources = container_of(rendered(make_job(launch={"memory_per_node": memory}))[1])["resources"]
    assert resources["limits"].get("memory") == resources["requests"].get("memory") == limit


def test_a_job_for_the_cpu_asks_for_no_gpu(make_job: MakeJob) -> None:
    _, job_set = rendered(make_job(runtime={"device": "cpu"}))
    assert container_of(job_set)["resources"] == {"requests": {"cpu": "2"}}


def test_secrets_are_named_and_their_values_never_written(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = ("HF_TOKEN", "USER_NAME", "WEBHOOK", "WANDB_API_KEY", "MLFLOW_TRACKING_TOKEN")
    for name in variables:
        monkeypatch.setenv(name, f"the value of {name}")
    job, setting = CASES["kubernetes-everything"]
    objects = rendered(make_job(**job), setting)
    assert "the value of" not in manifest_text(objects)
    given_to_pods = variables_of(objects[1])
    for name in variables:
        optional = {} if name in ("HF_TOKEN", "USER_NAME", "WEBHOOK") else {"optional": True}
        assert given_to_pods[name] == {"secretKeyRef": {"name": "tokens", "key": name, **optional}}


def test_a_job_without_secrets_needs_none(make_job: MakeJob) -> None:
    assert "secretKeyRef" not in manifest_text(rendered(make_job()))


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "WANDB_API_KEY", "db_password"])
def test_a_secret_that_is_written_out_is_refused(make_job: MakeJob, name: str) -> None:
    with refused("secret_in_spec", f"launch.env.{name}", f"{name}: ${{env:{name}}}"):
        rendered(make_job(launch={"env": {name: "abc123"}}))


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "NCCL_DEBUG", "MAX_TOKENS"])
def test_other_values_may_be_written(make_job: MakeJob, name: str) -> None:
    rendered(make_job(launch={"env": {name: "1"}}))


@pytest.mark.parametrize(
    ("setting", "refusal"),
    [
        (Setting("", SETTING.claims), ("no_image", "''", "--image")),
        (Setting("two words", SETTING.claims), ("no_image", "'two words'")),
        (Setting("image", []), ("no_volume", "--claim")),
        (Setting("image", [Claim("a", "/a"), Claim("b", "/a")]), ("unusable_claim_path", ":/a: ", "twice")),
        (Setting("image", [Claim("a", "/dev/shm")]), ("unusable_claim_path", ":/dev/shm: ")),
        (Setting("image", [Claim("a", "/")]), ("unusable_claim_path", ":/: ")),
        (
            Setting("image", [Claim("a", "/a", read_only=True)]),
            ("runs_folder_not_on_volume", "launch.runs_dir: /a/runs", " a, ", "read only"),
        ),
        (Setting("image", SETTING.claims, namespace="Team_A"), ("malformed_namespace", "--namespace Team_A")),
        (Setting("image", SETTING.claims, secret="my secret"), ("malformed_secret", "--secret my secret")),
    ],
)
def test_what_no_cluster_could_run_is_refused(make_job: MakeJob, setting: Setting, refusal: tuple[str, ...]) -> None:
    with refused(*refusal):
        rendered(make_job(), setting)


@pytest.mark.parametrize(
    "text", ["", "work", "work:", "work:here", "Work:/shared", "work:/shared:rw", ":/shared", "a:/b:ro:x"]
)
def test_a_claim_that_makes_no_sense_is_refused(text: str) -> None:
    with refused("malformed_claim", f"--claim {text}: "):
        Claim.parse(text)


def test_runs_must_lie_where_a_later_pod_finds_them(make_job: MakeJob) -> None:
    with refused("runs_folder_not_on_volume", "launch.runs_dir", "/elsewhere"):
        rendered(make_job(), runs_dir="/elsewhere")
    with refused("runs_folder_not_on_volume", "launch.runs_dir", "/workshop"):
        rendered(make_job(), runs_dir="../workshop")
    assert container_of(rendered(make_job(), runs_dir="../shared/a/..")[1])["command"][-1] == "/shared"


IMAGE = ("--as", "kubernetes", "--image", "train:1")


def test_the_command_prints_the_manifest(orchestrator: Orchestrator, job_file: Path, runs_dir: Path) -> None:
    arguments = (
        "render",
        job_file,
        *IMAGE,
        "--claim",
        "work:/shared",
        "--claim",
        "data:/data:ro",
        "--namespace",
        "lab",
    )
    code, text, err = orchestrator(*arguments)
    assert (code, err) == (0, "")
    config_map, job_set = yaml.safe_load_all(text)
    assert config_map["data"]["job.yaml"] == job_file.read_text()
    assert config_map["metadata"] == job_set["metadata"]
    assert job_set["metadata"]["namespace"] == "lab"
    assert container_of(job_set)["command"][-1] == "/shared/runs"  # and not where the runs of this machine lie
    assert json.loads(orchestrator(*arguments, "--json")[1])["objects"] == [config_map, job_set]
    assert not runs_dir.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--as", "kubernetes"), "--image"),
        (IMAGE, "no volume was given"),
        ((*IMAGE, "--claim", "work"), "--claim work: a claim is written"),
        (("--image", "train:1"), "--image would have no effect without --as kubernetes"),
        (("--as", "megatron-lm", "--claim", "a:/a", "--secret", "s"), "--claim and --secret would have no effect"),
    ],
)
def test_the_command_refuses(
    orchestrator: Orchestrator, job_file: Path, arguments: tuple[str, ...], message: str
) -> None:
    code, out, err = orchestrator("render", job_file, *arguments)
    assert (code, out) == (2, "")
    assert message in err
