"""Cluster profiles: finding and loading one."""

from __future__ import annotations

from pathlib import Path

from orchestrator.errors import Problem, SpecError, UserError
from orchestrator.fields.formatting import shorten
from orchestrator.profile_files import PROJECT_FOLDER, SUFFIX, is_file_name, known_profiles, profile_file, user_folder
from orchestrator.spec.cluster import ClusterSpec, check_cluster
from orchestrator.spec.loading import LoadedDocument, load_document
from orchestrator.spec.messages.document import Document
from orchestrator.spec.messages.suggestions import closest

PROFILE = Document(
    ClusterSpec,
    noun="cluster profile",
    such_as="`name:` and `partition:`",
    written_by="orchestrator cluster init",
    also_called={
        "time_limit": "time",
        "walltime": "time",
        "mem": "memory_per_node",
        "memory": "memory_per_node",
        "cpus_per_task": "cpus_per_gpu",
        "gres": "gpu_request",
        "queue": "partition",
        "gpus": "partitions.NAME.gpus_per_node",
        "num_gpus": "partitions.NAME.gpus_per_node",
        "gpus_per_node": "partitions.NAME.gpus_per_node",
        "cpus": "partitions.NAME.cpus_per_node",
        "max_nodes": "partitions.NAME.nodes",
        "num_nodes": "partitions.NAME.nodes",
        "project": "account",
        "charge_account": "account",
        "venv": "virtual_env",
        "virtualenv": "virtual_env",
        "conda_env": "setup: [conda activate NAME]",
        "module": "modules",
        "module_load": "modules",
        "environment": "env",
        "env_vars": "env",
        "image": "container.image",
        "container_image": "container.image",
        "container_mounts": "container.mounts",
        "sbatch_options": "options",
        "extra_args": "options",
        "exclude_nodes": "exclude",
        "features": "constraint",
    },
    check=check_cluster,
)


def load_profile(name: str, start: Path | None = None) -> ClusterSpec:
    """The profile of that name, or in that file. Raises UserError, naming the nearest, when there is none, and
    SpecError with every problem of one that is wrong.
    """
    return read_profile(find_profile(name, start), found_by_name=not is_file_name(name)).value


def find_profile(name: str, start: Path | None = None) -> Path:
    """The file of a profile, of its name or its file. Raises UserError, naming the nearest, when there is none."""
    path = profile_file(name, start)
    if path is None:
        message, hint = unknown_profile(name, start)
        raise UserError(f"{message}: {hint}", code="unknown_profile")
    return path


def read_profile(path: Path, *, found_by_name: bool = True) -> LoadedDocument[ClusterSpec]:
    """The profile in a file, with its places. Raises SpecError with every problem in it: one that is found by its name
    is called as its file is.
    """
    loaded = load_document(path, PROFILE)
    if found_by_name and loaded.value.name != path.stem:
        message = f"this profile's file is named {path.stem}, but its name is {loaded.value.name}"
        hint = f"write name: {path.stem}, or rename the file to {loaded.value.name}{SUFFIX}"
        raise SpecError(problems=[loaded.places.placed(Problem(message, ("name",), hint, code="profile_name"))])
    return loaded


def unknown_profile(name: str, start: Path | None = None) -> tuple[str, str]:
    """What to say of a name that no profile has: (what is wrong, the way out)."""
    known = list(known_profiles(start))
    if is_file_name(name):
        names = f"name another, or one of {', '.join(known)}" if known else "name another"
        return f"there is no cluster profile {shorten(name)}: no such file", names
    near = closest(name, known)
    meant = f"did you mean {' or '.join(near)}? " if near else ""
    hint = f"{meant}(known: {', '.join(known)})" if known else "`orchestrator cluster init` on a login node writes one"
    folders = f"{PROJECT_FOLDER}/ or {user_folder()}"
    return f"there is no cluster profile {shorten(repr(name))} in {folders}", hint
