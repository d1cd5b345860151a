"""Finding and loading cluster profiles."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from support.problems import codes, problems_of
from support.refused import refused

from orchestrator.cluster_profiles import PROFILE, load_profile
from orchestrator.profile_files import known_profiles, user_folder
from orchestrator.spec.cluster import ClusterSpec, PartitionSpec
from orchestrator.spec.loading import load_document_text
from orchestrator.spec.schema.shape import leaf_paths, shape_at

GOOD = """\
name: alps
partition: gpu
partitions:
  gpu: {nodes: 16, gpus_per_node: 8, cpus_per_node: 96, memory_per_node: 1000000, time_limit: 1d}
  cpu: {nodes: 4}
account: research
gpu_type: h200
cpus_per_gpu: 12
memory_per_node: 0
time: 4h
exclude: ["gpu[001-003]", gpu007]
options: [--mail-type=FAIL]
modules: [cuda/12.4]
setup:
  - source $HOME/site.sh
  - export X=${X:-1}
env: {NCCL_DEBUG: WARN}
container: {image: /images/train.sqsh, mounts: ["/data:/data:ro"]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with an empty folder of profiles, and a person with none of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "project" / "clusters").mkdir(parents=True)
    user_folder().mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def write(folder: Path, name: str, text: str = GOOD) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(text.replace("name: alps", f"name: {name}"))
    return path


def test_a_whole_profile(project: Path) -> None:
    write(project / "clusters", "alps")
    profile = load_profile("alps")
    assert profile.partitions["gpu"].time_limit == 86400
    assert profile.memory_per_node == "0"
    assert profile.setup[1] == "export X=${X:-1}", "a shell line is the shell's"
    assert load_profile("alps", project) == load_profile("alps")
    assert ClusterSpec.model_validate_json(profile.model_dump_json()) == profile


def test_the_projects_profile_goes_before_the_persons(project: Path) -> None:
    write(user_folder(), "alps", "name: alps\naccount: mine\n")
    write(user_folder(), "own", "name: own\n")
    assert load_profile("alps").account == "mine"
    theirs = write(project / "clusters", "alps")
    assert load_profile("alps").account == "research"
    assert known_profiles() == {"alps": Path("clusters/alps.yaml"), "own": user_folder() / "own.yaml"}
    assert known_profiles(project)["alps"] == theirs


def test_home_without_xdg(project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert user_folder() == tmp_path / "home" / ".config" / "orchestrator" / "clusters"


def test_an_unknown_name(project: Path) -> None:
    with refused("unknown_profile", "'alps'", "clusters/", "`orchestrator cluster init`"):
        load_profile("alps")
    write(project / "clusters", "alps")
    write(user_folder(), "own")
    with refused("unknown_profile", "'apls'") as caught:
        load_profile("apls")
    assert str(caught.value).endswith("did you mean alps? (known: alps, own)")
    with refused("unknown_profile", "(known: alps, own)"):
        load_profile("../clusters/alps")


def test_a_profile_is_named_by_its_file_too(project: Path, tmp_path: Path) -> None:
    """Wherever it lies, and whatever it is called there."""
    team = tmp_path / "team"
    team.mkdir()
    (team / "newest.yaml").write_text(GOOD)
    assert load_profile(str(team / "newest.yaml")).name == "alps"
    assert load_profile("../team/newest.yaml").name == "alps"
    assert load_profile("team/newest.yaml", tmp_path).name == "alps"
    with refused("unknown_profile", "team/none.yaml"):
        load_profile("team/none.yaml")
    (team / "wrong.yaml").write_text("name: alps\ntime: forever\n")
    [problem] = problems_of(lambda: load_profile(str(team / "wrong.yaml")))
    assert codes([problem]) == ["invalid_value time"]
    assert str(problem.location) == f"{team}/wrong.yaml:2:1"


WRONG = {
    "name: wrong\npartion: gpu\ntime: forever\n": ["unknown_key partion", "invalid_value time"],
    "name: wrong\nmem: 500G\n": ["unknown_key mem"],
    "name: wrong\ngpus: 8\n": ["unknown_key gpus"],
    "name: wrong\npartitions:\n  gpu: {gpus: 8}\n": ["unknown_key partitions.gpu.gpus"],
    "name: wrong\npartition: a,b\npartitions: {a: {}}\n": ["unknown_partition partition"],
    "name: wrong\npartition: gpuu\npartitions:\n  gpu: {nodes: 0, gpu_per_node: 8}\n": [
        "unknown_partition partition",
        "out_of_range partitions.gpu.nodes",
        "unknown_key partitions.gpu.gpu_per_node",
    ],
    "name: wrong\nmemory_per_node: 500 GB\noptions: [mail-type=FAIL]\naccount: two words\n": [
        "invalid_value memory_per_node",
        "invalid_value options[0]",
        "invalid_value account",
    ],
    "name: wrong\ngpu_request: none\ngpu_type: h200\n": ["gpu_type_without_request gpu_type"],
    "name: other\n": ["profile_name name"],
    "name: wrong\nsweep: {grid: {}}\nbase: job.yaml\n": ["unknown_key sweep", "unknown_key base"],
    "- gpu\n": ["not_a_mapping"],
    "": ["empty_document"],
    "name: wrong\nenv: {2X: a}\n": ["invalid_name env.2X"],
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_profile(project: Path, text: str) -> None:
    (project / "clusters" / "wrong.yaml").write_text(text)
    assert codes(problems_of(lambda: load_profile("wrong"))) == WRONG[text]


def test_a_profile_can_extend_another(project: Path) -> None:
    write(user_folder(), "alps")
    folder = project / "clusters"
    (folder / "mine.yaml").write_text(f"extends: {user_folder() / 'alps.yaml'}\nname: mine\npartition: cpu\n")
    profile = load_profile("mine")
    assert (profile.name, profile.partition, profile.account) == ("mine", "cpu", "research")


def test_a_profile_made_without_a_file_keeps_the_rules() -> None:
    found = problems_of(lambda: ClusterSpec(name="x", partition="a,b", partitions={"a": PartitionSpec()}))
    assert codes(found) == ["unknown_partition partition"]


def test_a_file_that_cannot_be_read(project: Path) -> None:
    (project / "clusters" / "folder.yaml").mkdir()
    assert codes(problems_of(lambda: load_profile("folder"))) == ["not_a_file"]


@pytest.mark.parametrize("name", PROFILE.foreign_names)
def test_every_foreign_name_leads_to_a_field(name: str) -> None:
    path = PROFILE.foreign_names[name].partition(":")[0]
    assert shape_at(tuple(path.split(".")), PROFILE.shape) is not None
    assert name not in set(leaf_paths(ClusterSpec))


def test_gpus_belong_to_a_partition() -> None:
    for text, field in (
        ("name: a\ngpus: 8\n", "partitions.NAME.gpus_per_node"),
        ("name: a\npartitions:\n  gpu: {gpus: 8}\n", "partitions.gpu.gpus_per_node"),
    ):
        [problem] = problems_of(partial(load_document_text, text, "a.yaml", PROFILE))
        assert problem.code == "unknown_key"
        assert field in str(problem.hint)
