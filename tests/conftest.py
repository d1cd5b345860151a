"""A clean environment for every test: no network beyond loopback, its own home, no variables of the caller's jobs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from execnet import XSpec
from hypothesis import HealthCheck, settings
from support import rank_template
from support.commands import Commands
from support.constants import draw_no_local_constants_where_derandomized
from support.depth import FAST
from support.forked_workers import ForkedWorkers
from support.made_once import made_once
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling

from orchestrator.imports import staying

if TYPE_CHECKING:
    from support.faults import Ranks
    from support.many_runs import Thousands

# Variables that would change what a test sees: a launcher's, a scheduler's, a tracker's, a hub's.
FOREIGN_PREFIXES = (
    "ORCHESTRATOR_",
    "TORCHELASTIC_",
    "SLURM_",
    "SBATCH_",
    "SQUEUE_",
    "MLFLOW_",
    "HF_",
    "HUGGINGFACE_",
    "TRANSFORMERS_",
    "NCCL_",
    "XDG_",
)
FOREIGN_NAMES = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT", "COLUMNS", "LINES", "FORCE_COLOR", "CLICOLOR_FORCE", "PYTHONWARNINGS"),
)
# What says how to test, not what a test sees; and what a machine with GPUs that others share may forbid NCCL.
KEPT = {"NCCL_NVLS_ENABLE", *(f"ORCHESTRATOR_TEST_{what}" for what in ("SLURM", "BROWSER", "SCREENSHOTS", "REGISTRY"))}
FIXED = {
    "DO_NOT_TRACK": "true",
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "NO_COLOR": "1",
    # Ranks share the cores: one thread each, so that a test's time does not depend on how many run beside it.
    "OMP_NUM_THREADS": "1",
    "TERM": "dumb",
    "TRANSFORMERS_OFFLINE": "1",
}
SLURM, SSH, BROWSER, TRACKING = (Path(__file__).parent / name for name in ("slurm", "ssh", "browser", "unit/tracking"))
LONGEST = SLURM / "test_training.py"
TOGETHER = (SLURM, SSH, BROWSER, TRACKING)
"""Folders whose tests wait for much, or begin with what takes long: they come first, each on one worker."""


BEGUN = pytest.StashKey[float]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--stop-after", type=float, metavar="SECONDS", help="skip the tests that have not begun by then")
    parser.addoption("--home", metavar="DIR", help="of tests that are only imported; others have a new one")


def pytest_configure(config: pytest.Config) -> None:
    config.stash[BEGUN] = time.monotonic()
    # Before any test module is imported: some libraries read their variables on import.
    home = config.getoption("--home")
    if home is None:
        made = tempfile.TemporaryDirectory(prefix="orchestrator-home-")
        config.add_cleanup(made.cleanup)
        home = made.name
    else:
        rank_template.TEMPLATES.append(Path(home) / rank_template.SOCKET)
    _forget_foreign_variables()
    _forbid_network(config)
    # Where a shell has started pytest with `&`, Ctrl-C is ignored, and so it would be by the programs of the tests.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.update(FIXED, HOME=home)
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        os.environ[f"XDG_{name}_HOME"] = str(Path(home) / name.lower())


@functools.cache
def _forget_foreign_variables() -> None:
    """Once: a worker that is forked keeps those that modules have set when they were imported."""
    for name in list(os.environ):
        if name not in KEPT and (name.startswith(FOREIGN_PREFIXES) or name in FOREIGN_NAMES):
            del os.environ[name]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """The tests' modules import torch, transformers and others: what these make is not searched for garbage."""
    with staying():
        return (yield)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what waits for SLURM and for other machines, and go on with files that take long, so that no worker is
    left alone with one; skip, with the reason, what this machine cannot run.
    """
    long = {item.path for item in items if item.get_closest_marker("slow")}
    # Most of SLURM's minutes are its own periods: beside others from the start.
    items.sort(key=lambda item: (_folder_of(item.path), item.path != LONGEST, item.path not in long))
    needing_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if needing_gpu and not _has_gpu():
        for item in needing_gpu:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """A program that a test or a fixture of any scope calls may enter a folder: the next test begins where all do."""
    with contextlib.chdir(item.config.rootpath):
        return (yield)


def pytest_runtest_setup(item: pytest.Item) -> None:
    seconds = item.config.getoption("--stop-after")
    if seconds is not None and time.monotonic() - item.config.stash[BEGUN] > seconds:
        pytest.skip(f"not begun within {seconds:.0f} s")


class ByFile(LoadFileScheduling):
    """A file's tests go to one worker; those on SLURM, but for the longest file, all to one, and so do those on other
    machines, those in a browser and those that send to trackers: what these need is started once, and no worker waits
    while others do.
    """

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        path = SLURM.parents[1] / file
        place = _folder_of(path)
        return file if place == len(TOGETHER) or path == LONGEST else TOGETHER[place].name


@functools.cache
def _folder_of(path: Path) -> int:
    """Which of the folders that stay together it is in; a larger number for none."""
    return next((place for place, folder in enumerate(TOGETHER) if path.is_relative_to(folder)), len(TOGETHER))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config, specs: Sequence[XSpec]) -> None:
    """Workers on this machine are forked from one process, and so is what forks their ranks."""
    template = rank_template.RankTemplate(Path(os.environ["HOME"]))
    config.add_cleanup(template.close)
    workers = ForkedWorkers([*map(str, config.invocation_params.args)], Path(os.environ["HOME"]))
    config.add_cleanup(workers.close)
    for spec in specs:
        if spec.popen and spec.python is None:
            spec.python = workers.python


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ByFile | None:
    """How `--dist=loadfile` shares the tests out."""
    return ByFile(config, log) if config.getvalue("dist") == "loadfile" else None


def _has_gpu() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    # Asked of torch in a process of its own: importing it here would slow every run of the light tests.
    program = "import sys, torch; sys.exit(not torch.cuda.is_available())"
    return subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == 0


# How long an example takes says more about the machine than about the code, and chance must not decide whether a test
# passes: a test's examples are the same in every run, whatever ran before it. `pytest -m hypothesis
# --hypothesis-profile=random` looks for others, constants of the loaded modules among them.
settings.register_profile(
    "orchestrator", parent=settings(), deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("fast", settings.get_profile("orchestrator"), max_examples=FAST)
settings.register_profile("random", settings.get_profile("orchestrator"), derandomize=False, print_blob=True)
settings.load_profile("orchestrator")
draw_no_local_constants_where_derandomized()


@pytest.fixture(scope="session")
def commands() -> Iterator[Commands]:
    """Commands of the command line, each in a process that need not import them first."""
    process = Commands()
    yield process
    process.close()


@pytest.fixture(scope="session")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    """Ranks from one process for the tests of all folders: it imports torch for five seconds."""
    # Imported here, for it would slow every run of the light tests.
    from support.faults import ranks_forked_in

    with ranks_forked_in(tmp_path_factory.mktemp("ranks")) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def _warm_ranks_end_with_their_file() -> Iterator[None]:
    yield
    if warm := sys.modules.get("support.warm_ranks"):
        warm.end_all()


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of a test run have in common."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="session")
def empty_store(shared_folder: Path) -> Path:
    """A store without runs, made once: its dozens of tables take seconds."""
    return made_once(shared_folder / "store", _make_store) / "mlflow.db"


def _make_store(folder: Path) -> None:
    """In an environment that asks for nothing, in which MLflow would report to its makers by default."""
    program = """if True:
        import pathlib, sys
        import orchestrator.tracking.program
        from orchestrator.tracking.mlflow.store import connect
        from mlflow.telemetry import get_telemetry_client
        from mlflow.telemetry.utils import is_telemetry_disabled
        connect(pathlib.Path(sys.argv[1]), None)
        print(is_telemetry_disabled(), get_telemetry_client())
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    command = [sys.executable, "-c", program, str(folder)]
    made = subprocess.run(command, env=environment, check=True, timeout=240, capture_output=True, text=True)
    assert (made.stdout, made.stderr) == ("True None\n", "")


@pytest.fixture(scope="session")
def thousands(tmp_path_factory: pytest.TempPathFactory) -> Thousands:
    """Thousands of runs with an index, for the tests of all folders: it takes half a minute to make and read them."""
    from support.many_runs import thousands_in

    return thousands_in(tmp_path_factory.mktemp("thousands"))


@pytest.fixture(autouse=True)
def _environment_is_restored() -> Iterator[None]:
    before = _variables()
    yield
    after = _variables()
    if after != before:
        for name in after.keys() - before:
            del os.environ[name]
        os.environ.update(before)


def _variables() -> dict[str, str]:
    """Without pytest's own, which is another in each phase of a test."""
    variables = dict(os.environ)
    variables.pop("PYTEST_CURRENT_TEST", None)
    return variables


def _forbid_network(config: pytest.Config) -> None:
    """Connections from this process reach loopback and Unix sockets only, until pytest ends."""
    patch = pytest.MonkeyPatch()
    config.add_cleanup(patch.undo)
    for name in ("connect", "connect_ex"):
        patch.setattr(socket.socket, name, _guarded(getattr(socket.socket, name)))


def _guarded(connect: Any) -> Any:
    def guarded(self: socket.socket, address: Any) -> Any:
        if self.family in (socket.AF_INET, socket.AF_INET6) and not _is_loopback(address[0]):
            # Not an Exception, so that no retry logic under test swallows it.
            pytest.fail(f"the test tried to reach {address[0]}:{address[1]}: only loopback is allowed")
        return connect(self, address)

    return guarded


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
