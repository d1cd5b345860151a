"""A job as objects of Kubernetes: a ConfigMap with its spec, and a JobSet whose pods train it.

A function of the job and of what a cluster calls things. Values of secrets never come here: containers get them by
reference.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from orchestrator.errors import UserError
from orchestrator.executors.kubernetes.names import REPLICATED_JOB, is_label, is_subdomain, job_set_name, pod_address
from orchestrator.executors.kubernetes.pod import INCARNATION_VARIABLE, RESOLVED, WRITTEN
from orchestrator.fields.values import environment_references, megabytes
from orchestrator.run_directory.exits.causes import CAUSES
from orchestrator.safe_path import module_command
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved
from orchestrator.version import __version__

DEFAULT_SECRET = "orchestrator"
POD_MODULE = "orchestrator.executors.kubernetes.pod"
_CONTAINER = "trainer"
_SPEC_DIR = "/etc/orchestrator"
_SHARED_MEMORY = "/dev/shm"
_PORT = 29500
_GPU = "nvidia.com/gpu"
_MOST = 2**31 - 1
_SECRET_NAME = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?|API_?KEY|ACCESS_KEY|SECRET_KEY)$", re.I)
_HOW = "      --as kubernetes needs an image and a volume: --image REGISTRY/IMAGE:TAG --claim CLAIM:/PATH"


@dataclass(frozen=True)
class Claim:
    """A PersistentVolumeClaim and the folder where pods see it."""

    name: str
    path: str
    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> Claim:
        """CLAIM:/PATH or CLAIM:/PATH:ro. Raises UserError for anything else."""
        name, _, rest = text.partition(":")
        path, _, mode = rest.partition(":")
        if not is_subdomain(name) or not path.startswith("/") or mode not in ("", "ro"):
            raise UserError(
                f"--claim {text}: a claim is written CLAIM:/PATH, or CLAIM:/PATH:ro to read only: the name of a "
                "PersistentVolumeClaim, and an absolute path in the container",
                code="malformed_claim",
            )
        return cls(name, posixpath.normpath(path), mode == "ro")


@dataclass(frozen=True)
class Setting:
    """What a job spec does not say: where its pods run, and what they are given there."""

    image: str
    claims: Sequence[Claim]
    namespace: str | None = None
    secret: str = DEFAULT_SECRET


def render_manifest(job: JobSpec, written: str, setting: Setting, runs_dir: str | None = None) -> list[dict[str, Any]]:
    """The objects, to be created in this order. `written`: the spec as its author wrote it. `runs_dir`: instead of the
    job's own.

    Raises UserError for what no cluster could run, or would lose at a restart.
    """
    _check(setting)
    working_directory = setting.claims[0].path
    runs = posixpath.normpath(posixpath.join(working_directory, runs_dir or job.launch.runs_dir))
    _check_runs(runs, setting)
    _check_environment(job)
    name = job_set_name(job.name, job.config_hash[:8], job.launch.nodes)
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/managed-by": "orchestrator"}}
    if setting.namespace is not None:
        metadata["namespace"] = setting.namespace
    spec = {WRITTEN: written, RESOLVED: dump_resolved(job)}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True, "data": spec}
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": metadata,
        "spec": {
            # The address of the first pod must be known before its containers are ready.
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": min(job.launch.max_requeues, _MOST),
                "rules": [{"name": "stays", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}],
            },
            "replicatedJobs": [
                {"name": REPLICATED_JOB, "replicas": 1, "template": {"spec": _job(job, name, runs, setting)}}
            ],
        },
    }
    return [config_map, job_set]


def manifest_text(objects: Sequence[dict[str, Any]]) -> str:
    """The objects as YAML documents, which `kubectl create -f -` reads."""
    text = yaml.dump_all(objects, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)
    return f"# Rendered by orchestrator {__version__}, which does not run it: kubectl create -f FILE\n{text}"


class _Dumper(yaml.SafeDumper):
    """Texts of several lines stay readable, and no object is an alias of another."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _Dumper.represent_text)


def _job(job: JobSpec, name: str, runs: str, setting: Setting) -> dict[str, Any]:
    launch = job.launch
    pods = launch.nodes
    # Their sum is the time that one start may take: the pods save within the margin.
    limit = {} if launch.time is None else {"activeDeadlineSeconds": max(1, launch.time - launch.stop_margin)}
    codes = sorted({cause.exit_code for cause in CAUSES.values()} - {0})
    stays = {"containerName": _CONTAINER, "operator": "In", "values": codes}
    return {
        "completionMode": "Indexed",
        "completions": pods,
        "parallelism": pods,
        **limit,
        # One pod that fails ends them all, and the set starts all of them again: no rank can go on without the others.
        "backoffLimit": 0,
        "podFailurePolicy": {"rules": [{"action": "FailJob", "onExitCodes": stays}]},
        "successPolicy": {"rules": [{"succeededIndexes": "0"}]},
        "template": {"spec": _pod(job, name, runs, setting)},
    }


def _pod(job: JobSpec, name: str, runs: str, setting: Setting) -> dict[str, Any]:
    claims = list(dict.fromkeys(claim.name for claim in setting.claims))
    volumes = {claim: f"claim-{number}" for number, claim in enumerate(claims)}
    mounts: list[dict[str, Any]] = [
        {"name": "spec", "mountPath": _SPEC_DIR, "readOnly": True},
        {"name": "shared-memory", "mountPath": _SHARED_MEMORY},
    ]
    for claim in setting.claims:
        read_only = {"readOnly": True} if claim.read_only else {}
        mounts.append({"name": volumes[claim.name], "mountPath": claim.path, **read_only})
    command = module_command(POD_MODULE, _SPEC_DIR, runs, python=job.launch.python or "python3")
    container: dict[str, Any] = {
        "name": _CONTAINER,
        "image": setting.image,
        "command": [word.replace("$(", "$$(") for word in command],  # Kubernetes puts variables in otherwise
        "workingDir": setting.claims[0].path,
        "env": _environment(job, name, setting.secret),
        "resources": _resources(job),
        "volumeMounts": mounts,
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": job.launch.stop_margin,
        "automountServiceAccountToken": False,
        "containers": [container],
        "volumes": [
            {"name": "spec", "configMap": {"name": name}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            *({"name": volumes[claim], "persistentVolumeClaim": {"claimName": claim}} for claim in claims),
        ],
    }


def _resources(job: JobSpec) -> dict[str, Any]:
    """At least a CPU for each thread and each loader; all memory and GPUs that the job says, and no more."""
    on_cpu = job.runtime.device == "cpu"
    workers = job.data.num_workers if job.data.num_workers is not None else 0 if on_cpu else 2
    cpus = job.processes_per_node * ((job.runtime.threads_per_rank or 1) + workers)
    limits = {} if on_cpu else {_GPU: str(job.processes_per_node)}
    asked = job.launch.memory_per_node
    if asked is not None and megabytes(asked) > 0:  # 0: all of a node, which cannot be asked for here
        limits["memory"] = f"{megabytes(asked)}Mi"
    return {"requests": {"cpu": str(cpus), **limits}, **({"limits": limits} if limits else {})}


def _environment(job: JobSpec, name: str, secret: str) -> list[dict[str, Any]]:
    """What tells a pod which one it is, and what it is given of the secret."""
    label = "metadata.labels['jobset.sigs.k8s.io/{}']".format
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    environment: list[dict[str, Any]] = [
        {"name": "PYTHONUNBUFFERED", "value": "1"},
        {"name": "JOBSET_UID", "valueFrom": {"fieldRef": {"fieldPath": label("jobset-uid")}}},
        {"name": "JOBSET_RESTARTS", "valueFrom": {"fieldRef": {"fieldPath": label("restart-attempt")}}},
        {"name": INCARNATION_VARIABLE, "value": "$(JOBSET_UID).$(JOBSET_RESTARTS)"},
        {"name": "NODE_RANK", "valueFrom": {"fieldRef": {"fieldPath": index}}},
    ]
    if job.launch.nodes > 1:
        environment.append({"name": "MASTER_ADDR", "value": pod_address(name, 0)})
        environment.append({"name": "MASTER_PORT", "value": str(_PORT)})
    needed = _references(job)
    for variable in [*needed, *(each for each in _tracker_credentials(job) if each not in needed)]:
        optional = {} if variable in needed else {"optional": True}
        key = {"name": secret, "key": variable, **optional}
        environment.append({"name": variable, "valueFrom": {"secretKeyRef": key}})
    return environment


def _references(job: JobSpec) -> list[str]:
    """The variables that the spec refers to: without one of them no rank starts, or nobody is told."""
    texts = [*job.launch.env.values(), job.tracking.uri or "", job.notifications.webhook or ""]
    return list(dict.fromkeys(name for text in texts for name in environment_references(text)))


def _tracker_credentials(job: JobSpec) -> list[str]:
    """What the trackers of a job look for in the environment by themselves."""
    mlflow = ["MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"]
    wandb = job.tracking.wandb is not None and job.tracking.wandb.mode == "online"
    return [*(mlflow if job.tracking.mlflow and job.tracking.uri else []), *(["WANDB_API_KEY"] if wandb else [])]


def _check(setting: Setting) -> None:
    if not setting.image or setting.image.split() != [setting.image]:
        raise UserError(f"no image was given that pods could run: {setting.image!r}\n{_HOW}", code="no_image")
    if not setting.claims:
        raise UserError(
            f"no volume was given: pods would lose the run and its checkpoints when they end\n{_HOW}", code="no_volume"
        )
    paths = [claim.path for claim in setting.claims]
    for path in paths:
        if paths.count(path) > 1 or path in (_SPEC_DIR, _SHARED_MEMORY, "/"):
            why = "is given twice" if paths.count(path) > 1 else "is taken"
            raise UserError(
                f"--claim …:{path}: this path in the container {why}; choose another one", code="unusable_claim_path"
            )
    if setting.namespace is not None and not is_label(setting.namespace):
        raise UserError(
            f"--namespace {setting.namespace}: not a DNS label: lower-case letters, digits and -, at most 63",
            code="malformed_namespace",
        )
    if not is_subdomain(setting.secret):
        raise UserError(
            f"--secret {setting.secret}: not the name of a Secret: lower-case letters, digits, - and .",
            code="malformed_secret",
        )


def _check_runs(runs: str, setting: Setting) -> None:
    """The run must be where a later pod finds it."""
    holding = [claim for claim in setting.claims if _is_below(runs, claim.path)]
    holder = max(holding, key=lambda claim: len(claim.path), default=None)
    if holder is None or holder.read_only:
        why = "is on no claim" if holder is None else f"is on {holder.name}, which is read only"
        raise UserError(
            f"launch.runs_dir: {runs} {why}: a pod that starts again would not find its checkpoints.\n"
            "      Give a claim that holds it, --claim CLAIM:/PATH, or name another folder, --runs-dir DIR; "
            "a relative one is below the first claim's path",
            code="runs_folder_not_on_volume",
        )


def _is_below(path: str, folder: str) -> bool:
    return posixpath.commonpath([path, folder]) == folder


def _check_environment(job: JobSpec) -> None:
    """A value that is written in the spec is readable by whoever may read ConfigMaps."""
    for name, value in job.launch.env.items():
        if _SECRET_NAME.search(name) and value and not environment_references(value):
            raise UserError(
                f"launch.env.{name}: its value is written in the spec, and the manifest would show it.\n"
                f"      Write {name}: ${{env:{name}}}, and put the value into the Secret under that name",
                code="secret_in_spec",
            )
