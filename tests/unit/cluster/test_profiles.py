"""Finding and loading cluster profiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.cluster.profiles import PROFILE, known_profiles, load_profile, user_folder
from orchestrator.errors import SpecError, UserError
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
    with pytest.raises(UserError, match=r"no cluster profile 'alps' in clusters/ or .*: `orchestrator cluster init`"):
        load_profile("alps")
    write(project / "clusters", "alps")
    write(user_folder(), "own")
    with pytest.raises(UserError, match=r"no cluster profile 'apls' in ") as caught:
        load_profile("apls")
    assert str(caught.value).endswith("did you mean alps? (known: alps, own)")
    with pytest.raises(UserError, match=r": \(known: alps, own\)$"):
        load_profile("../clusters/alps")


def test_a_profile_is_named_by_its_file_too(project: Path, tmp_path: Path) -> None:
    """Wherever it lies, and whatever it is called there."""
    team = tmp_path / "team"
    team.mkdir()
    (team / "newest.yaml").write_text(GOOD)
    assert load_profile(str(team / "newest.yaml")).name == "alps"
    assert load_profile("../team/newest.yaml").name == "alps"
    assert load_profile("team/newest.yaml", tmp_path).name == "alps"
    with pytest.raises(UserError, match=r"^there is no cluster profile team/none.yaml: no such file: name another$"):
        load_profile("team/none.yaml")
    (team / "wrong.yaml").write_text("name: alps\ntime: forever\n")
    with pytest.raises(SpecError, match=r"team/wrong.yaml:2:1: time"):
        load_profile(str(team / "wrong.yaml"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "name: wrong\npartion: gpu\ntime: forever\n",
            "clusters/wrong.yaml:2:1: partion: there is no such key in a cluster profile\n"
            "    2 | partion: gpu\n"
            "      | ^\n"
            "      = did you mean partition?\n\n"
            "clusters/wrong.yaml:3:1: time: a duration is a number of seconds or like 30s, 15m, 4h, 1d12h, "
            "not 'forever'\n"
            "    3 | time: forever\n"
            "      | ^",
        ),
        (
            "name: wrong\nmem: 500G\n",
            "clusters/wrong.yaml:2:1: mem: there is no such key in a cluster profile\n"
            "    2 | mem: 500G\n"
            "      | ^\n"
            "      = did you mean memory_per_node?",
        ),
        (
            "name: wrong\npartition: gpuu\npartitions:\n  gpu: {nodes: 0, gpu_per_node: 8}\n",
            "clusters/wrong.yaml:2:1: partition: there is no partition gpuu in partitions\n"
            "    2 | partition: gpuu\n"
            "      | ^\n"
            "      = did you mean gpu?\n\n"
            "clusters/wrong.yaml:4:9: partitions.gpu.nodes: must be greater than 0, not 0\n"
            "    4 |   gpu: {nodes: 0, gpu_per_node: 8}\n"
            "      |         ^\n\n"
            "clusters/wrong.yaml:4:19: partitions.gpu.gpu_per_node: there is no such key in partitions.gpu\n"
            "    4 |   gpu: {nodes: 0, gpu_per_node: 8}\n"
            "      |                   ^\n"
            "      = did you mean gpus_per_node?",
        ),
        (
            "name: wrong\nmemory_per_node: 500 GB\noptions: [mail-type=FAIL]\naccount: two words\n",
            "clusters/wrong.yaml:2:1: memory_per_node: a size of memory is a number of MB or like 500G, 64000M, 2T; "
            "0 is all of a node, not '500 GB'\n"
            "    2 | memory_per_node: 500 GB\n"
            "      | ^\n"
            "      = write 500G\n\n"
            "clusters/wrong.yaml:3:1: options[0]: an option of sbatch is written --NAME or --NAME=VALUE\n"
            "    3 | options: [mail-type=FAIL]\n"
            "      | ^\n\n"
            "clusters/wrong.yaml:4:1: account: expects one word, without blanks\n"
            "    4 | account: two words\n"
            "      | ^",
        ),
        (
            "name: wrong\ngpu_request: none\ngpu_type: h200\n",
            "clusters/wrong.yaml:3:1: gpu_type: a type of GPU is asked for together with their number, and "
            "gpu_request is none\n"
            "    3 | gpu_type: h200\n"
            "      | ^\n"
            "      = leave it out, or write gpu_request: gres",
        ),
        (
            "name: other\n",
            "clusters/wrong.yaml:1:1: name: this profile is found as wrong, by its file, and calls itself other\n"
            "    1 | name: other\n"
            "      | ^\n"
            "      = write name: wrong, or rename the file to other.yaml",
        ),
        (
            "name: wrong\nsweep: {grid: {}}\nbase: job.yaml\n",
            "clusters/wrong.yaml:2:1: sweep: there is no such key in a cluster profile\n"
            "    2 | sweep: {grid: {}}\n"
            "      | ^\n"
            "      = keys here: ",
        ),
        ("- gpu\n", "a cluster profile is a mapping with keys such as `name:` and `partition:`, not a list"),
        ("", "clusters/wrong.yaml: is empty\n      = `orchestrator cluster init` writes a cluster profile"),
        ("name: wrong\nenv: {2X: a}\n", "a variable's name has letters, digits and _ only"),
    ],
)
def test_a_wrong_profile(project: Path, text: str, expected: str) -> None:
    (project / "clusters" / "wrong.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        load_profile("wrong")
    assert expected in str(caught.value)


def test_a_profile_can_extend_another(project: Path) -> None:
    write(user_folder(), "alps")
    folder = project / "clusters"
    (folder / "mine.yaml").write_text(f"extends: {user_folder() / 'alps.yaml'}\nname: mine\npartition: cpu\n")
    profile = load_profile("mine")
    assert (profile.name, profile.partition, profile.account) == ("mine", "cpu", "research")


def test_a_profile_made_without_a_file_keeps_the_rules() -> None:
    with pytest.raises(SpecError, match="there is no partition b"):
        ClusterSpec(name="x", partition="a,b", partitions={"a": PartitionSpec()})


def test_a_file_that_cannot_be_read(project: Path) -> None:
    (project / "clusters" / "folder.yaml").mkdir()
    with pytest.raises(SpecError, match="is a folder; a cluster profile is a YAML file"):
        load_profile("folder")


@pytest.mark.parametrize("name", PROFILE.foreign_names)
def test_every_foreign_name_leads_to_a_field(name: str) -> None:
    path = PROFILE.foreign_names[name].partition(":")[0]
    assert shape_at(tuple(path.split(".")), PROFILE.shape) is not None
    assert name not in set(leaf_paths(ClusterSpec))


def test_gpus_belong_to_a_partition() -> None:
    for text, said in (
        ("name: a\ngpus: 8\n", "did you mean partitions.NAME.gpus_per_node?"),
        ("name: a\npartitions:\n  gpu: {gpus: 8}\n", "did you mean partitions.gpu.gpus_per_node?"),
    ):
        with pytest.raises(SpecError) as caught:
            load_document_text(text, "a.yaml", PROFILE)
        assert [problem.hint for problem in caught.value.problems] == [said]
