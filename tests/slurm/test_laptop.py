"""From a laptop, which has neither SLURM nor torch, through a real sshd: whatever happens to the connection, nothing is
lost and nothing happens twice.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from slurm.cluster import Cluster
from slurm.conftest import FORKED
from slurm.laptop import Laptop, processes_with, wait_until_nothing_is_left
from support.commands import Commands
from support.faults import Ranks, wait_until
from support.fixtures import inject
from support.held import HOLD, hold_at, wait_for_hold
from support.network import changing
from support.training import events, four_layer_job, losses

from orchestrator.launch.runs import all_runs
from orchestrator.launch.states.run_states import status_of
from orchestrator.login.agent import HOME
from orchestrator.login.command import TRIES_TO_CONNECT
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import dump_resolved

__all__ = ["inject"]

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.timeout(900),
    pytest.mark.slow("connections break ten times, and trainings go on meanwhile"),
]

STEPS = 10
PROFILE = """\
name: far
login: login
login_folder: {folder}
python: {python}
gpu_request: none
time: 30m
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the package that a login node is sent lies, once for the tests with `sent_before`: a command that comes
    first compiles it.
    """
    return tmp_path_factory.mktemp("packages")


@pytest.fixture
def sent_before(packages: Path, tmp_path: Path) -> None:
    """The login node has the package, if another test has sent it."""
    sent = tmp_path / "far" / HOME / "package"
    sent.parent.mkdir(parents=True)
    sent.symlink_to(packages)


@pytest.fixture
def laptop(cluster: Cluster, shared_folder: Path, tmp_path: Path) -> Iterator[Laptop]:
    """Its project has a profile of the cluster, whose login node this machine is."""
    found = Laptop(partial(changing, shared_folder))
    try:
        found.start({**cluster.variables, "OMP_NUM_THREADS": "1"})
        found.write("clusters/far.yaml", PROFILE.format(folder=tmp_path / "far", python=sys.executable))
        yield found
    finally:
        found.stop()


@pytest.fixture
def forks(ranks: Ranks) -> dict[str, str]:
    """Variables of logins whose commands are forked, and so is what they submit."""
    return {**ranks.for_commands(), "FORKED_TOO": " ".join(("orchestrator", *FORKED))}


@pytest.fixture(scope="module")
def nothing_is_left() -> Iterator[None]:
    """Nothing of a dashboard stays when the laptop is gone, a minute and a quarter later: other tests run meanwhile."""
    yield
    wait_until_nothing_is_left(150.0)
    assert processes_with("-m orchestrator.dashboard") == {}


@pytest.fixture
def make_job(ranks: Ranks, inject: Callable[[str], Path]) -> Callable[[str], JobSpec]:
    """make_job(name): one rank, whose first start is held when it has saved. All of a job is forked."""
    forked = ranks.for_commands(inject(HOLD).parent) | {"FORKED_TOO": " ".join(FORKED)} | hold_at(4, None, since=0)

    def make(name: str) -> JobSpec:
        return four_layer_job(
            name,
            model={"num_layers": 1},
            schedule={"train_iters": STEPS},
            checkpoint={"save_interval": 2},
            launch={"cluster": "far", "requeue_delay": 1, "health_check": False, "env": forked},
        )

    return make


@pytest.mark.usefixtures("nothing_is_left", "sent_before")
def test_a_sweep_of_four_from_a_repository(
    laptop: Laptop,
    commands: Commands,
    forks: dict[str, str],
    make_job: Callable[[str], JobSpec],
    ranks: Ranks,
    inject: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Cells start once each, with the code that the laptop has, committed or not, and without what git ignores. A
    dashboard is shown meanwhile through the connection, to who has its token, also after the network was cut. All of
    the cells is forked. One more run is submitted and started by nothing but the code that was sent; its torchrun and
    its rank are forked from a process with torch, and import the rest from there.
    """
    laptop.fork_commands(commands)
    laptop.answer_with(forks)
    forked = {**ranks.for_commands(), "FORKED_TOO": " ".join(FORKED)}
    job = make_job("four").changed(launch={"env": forked}, schedule={"train_iters": 3})
    laptop.write("far.yaml", dump_resolved(job))
    laptop.write("four.yaml", "base: far.yaml\ngrid: {lr: [1e-3, 2e-3], runtime.seed: [1, 2]}\n")
    laptop.write(".gitignore", "large\n")
    laptop.write("large", "data")
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one"]):
        laptop.run("git", *words)
    laptop.write("later.py", "A = 1")
    with laptop.breaking_connections(3, 3.0):
        said = laptop("sweep", "run", "four.yaml", "--max-parallel", "2", check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    laptop.answer_with({})
    with laptop.started("dashboard", "--port", "0", "--json") as process:
        assert process.stdout is not None
        address, _, token = json.loads(process.stdout.readline())["address"].partition("?token=")
        wait_until(lambda: "four" in page(laptop, address, token), "the page")
        assert "401" in page(laptop, address, "another")
        laptop.cut()
        wait_until(lambda: "refused" in page(laptop, address, token), "the cut is seen")
        laptop.heal()
        wait_until(lambda: "four" in page(laptop, address, token), "the page is back")
    folder = inject(f'import orchestrator\nopen("{tmp_path}/place", "w").write(orchestrator.__file__)').parent
    again = {**ranks.for_commands(folder), "IMPORT_AGAIN": "yes"}
    more = make_job("more").changed(launch={"env": again}, schedule={"train_iters": 3})
    laptop.write("more.yaml", dump_resolved(more))
    laptop("submit", "more.yaml")
    laptop.answer_with(forks)
    assert laptop("sweep", "run", "four.yaml", "--max-parallel", "2").returncode == 0
    *runs, another = sorted(all_runs(tmp_path / "far" / "runs"), key=lambda run: run.path.parent.name == "more")
    assert len(runs) == 4
    assert another.path.parent.name == "more"
    wait_until(lambda: all(status_of(run).state == "completed" for run in runs), "all cells complete", every=0.5)
    assert [len(events(run, "launched")) for run in runs] == [1] * 4
    results = json.loads(laptop("sweep", "results", "four", "--json").stdout)
    assert len(results) == 4
    repository = runs[0].path / "code.json"
    code = json.loads(repository.read_text())["repositories"][0]
    assert (code["dirty"], code["untracked"], len(code["commit"])) == (True, ["later.py"], 40)
    [pinned] = {path for run in runs for path in run.path.glob("code/*/repository")}
    assert (pinned / "later.py").exists()
    assert not (pinned / "large").exists()
    wait_until(lambda: not status_of(another).is_active, "the run that starts from what was sent", every=0.5)
    assert status_of(another).state == "completed"
    assert Path((tmp_path / "place").read_text()).is_relative_to(another.path / "code")


PAGE = """\
import sys, urllib.request as r
print(r.urlopen(r.Request(sys.argv[1], headers={"Authorization": f"Bearer {sys.argv[2]}"}), timeout=10).read().decode())
"""


def page(laptop: Laptop, address: str, token: str) -> str:
    """What a program on the laptop is answered."""
    answer = laptop.run(sys.executable, "-I", "-S", "-c", PAGE, address, token, check=False)
    return answer.stdout + answer.stderr


@pytest.mark.usefixtures("sent_before")
def test_a_profile_is_written_on_the_laptop(laptop: Laptop, commands: Commands) -> None:
    laptop("cluster", "init", "-o", "clusters/asked.yaml", "--login", "login", "--yes")
    laptop.fork_commands(commands)
    profile = json.loads(laptop("cluster", "show", "asked", "--json").stdout)["profile"]
    assert (profile["login"], profile["partition"], profile["account"]) == ("login", "main", "research")
    assert set(profile["partitions"]) == {"main", "low"}
    for login, word in (("nobody@login", "Permission denied"), ("-oProxyCommand=x", "USER@HOST")):
        said = laptop("cluster", "init", "no", "--login", login, "--yes", check=False)
        assert (said.returncode, said.stdout) == (2, "")
        assert word in said.stderr


@pytest.mark.usefixtures("sent_before")
def test_what_is_refused(laptop: Laptop, commands: Commands, tmp_path: Path) -> None:
    """Nothing is tried again that cannot be otherwise; what is wrong is said once, with exit code 2."""
    profile = PROFILE.format(folder=tmp_path / "far", python=sys.executable)
    for wrong, word in (
        (profile.replace("login: login", "login: nobody@login"), "Permission denied"),
        (profile.replace("login: login", "login: nowhere"), "nowhere"),
        (profile.replace(sys.executable, "/no/python"), "/no/python"),
        (profile.replace(str(tmp_path), "/proc/no"), "/proc/no"),
    ):
        laptop.write("clusters/far.yaml", wrong)
        said = laptop("list", check=False)
        assert (said.returncode, said.stdout) == (2, "")
        assert word in said.stderr
        assert "Traceback" not in said.stderr
        laptop.fork_commands(commands)  # after the first


def test_a_run_whose_connection_breaks_ten_times(
    laptop: Laptop,
    commands: Commands,
    forks: dict[str, str],
    make_job: Callable[[str], JobSpec],
    ranks: Ranks,
    tmp_path: Path,
) -> None:
    laptop.fork_commands(commands)
    laptop.answer_with(forks)
    job = make_job("far")
    laptop.write("far.yaml", dump_resolved(job))
    folder = tmp_path / "far" / "runs"
    # No more often than a command tries to connect: each may be killed before it is connected.
    with laptop.breaking_connections(TRIES_TO_CONNECT, 2.0):
        said = laptop("submit", "far.yaml", check=False)
    assert said.returncode == 0, said.stdout + said.stderr
    [run] = all_runs(folder)
    assert len(events(run, "submitted")) == 1
    assert "again" not in laptop("submit", "far.yaml").stderr
    assert len(events(run, "submitted")) == 1, "the same spec again finds its run"

    with laptop.started("logs", "far", "-f") as following, laptop.breaking_connections(TRIES_TO_CONNECT, 3.0):
        wait_for_hold(run, 1)
        said = laptop("cancel", "far", check=False)
        assert said.returncode == 0, said.stdout + said.stderr
        wait_until(lambda: not status_of(run).is_active, "it stops")
        said = laptop("resume", "far", check=False)
        assert said.returncode == 0, said.stdout + said.stderr
        shown, told = following.communicate(timeout=300)
    assert following.returncode == 0, told
    assert status_of(run).state == "completed"
    assert len(events(run, "resumed")) == 1
    assert len(events(run, "submitted")) == 2
    assert losses(run) == ranks.losses_of(job, tmp_path / "here")
    followed = [line for line in shown.splitlines() if line.startswith("[")]
    assert sorted(followed) == sorted(laptop("logs", "far").stdout.splitlines()), "each line once"

    with laptop.breaking_connections(2, 1.0):
        [listed] = json.loads(laptop("list", "--json").stdout)
    with laptop.breaking_connections(2, 1.0):
        assert json.loads(laptop("status", run.run_id, "--json").stdout)["state"] == "completed"
    assert listed["state"] == "completed"
    code = json.loads((run.path / "code.json").read_text())
    assert [each for each in code["repositories"] if each["used_by"] != "orchestrator"] == [], "it is in none there"
    assert (run.path / "code" / "1" / "repository" / "far.yaml").exists(), "the code is pinned"
    wait_until_nothing_is_left(150.0)
    left = (tmp_path / "far" / ".orchestrator" / "requests").iterdir()  # a kill may have come before the thanks
    assert [each for each in left if not (each / "ended").exists()] == []
