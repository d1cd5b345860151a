"""The check before the first step names the node at fault: real processes on loopback, over gloo."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.faults import Ranks, wait_until
from support.ranks import free_port
from support.training import four_layer_job, make_run

from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.health import forked_call
from orchestrator.runtime.health.node_check import folder_faults
from orchestrator.runtime.health.node_pairs import rounds_of
from orchestrator.runtime.health.verdict import Facts, Limits, Pair, Verdict, blamed, node_faults, pair_faults

PROGRAM = Path(__file__).parent / "health_program.py"
LIMIT = 45
"""Seconds for a check that someone holds up: the others, on a machine that is busy, must not seem to do so too."""
held_up = pytest.mark.slow("who says nothing is given up by a time-out only")
HELD_UP: dict[str, tuple[tuple[str, ...], dict[str, float]]] = {
    "test_a_node_that_never_comes": (("", "", "absent"), {"timeout": LIMIT}),
    "test_a_node_that_stalls_in_the_all_reduces": (("", "stall", "", ""), {"timeout": 90, "pair_timeout": 12}),
    "test_a_node_that_freezes_in_the_all_reduces": (("", "", "freeze"), {"timeout": LIMIT, "pair_timeout": 12}),
    "test_node_0_itself_stalls": (("stall", "", ""), {"timeout": 90, "pair_timeout": 12}),
    "test_a_disk_that_hangs": (("", "hang"), {"timeout": LIMIT}),
}
"""Faults and options of the checks that wait, which they do side by side."""


@dataclass(frozen=True)
class Checked:
    """What came of a check: exit code, output and seconds of each node, and the report."""

    codes: list[int]
    outputs: list[str]
    seconds: list[float]
    report: dict[str, Any]

    @property
    def line(self) -> str:
        """The one line that node 0 said."""
        [line] = self.outputs[0].splitlines()
        return line

    @property
    def guilty(self) -> list[str]:
        return self.report["nodes_at_fault"]


@pytest.fixture(scope="module")
def program(ranks: Ranks) -> Iterator[subprocess.Popen[str]]:
    """Forked where torch has been imported."""
    environment = {**os.environ, **ranks.for_commands(PROGRAM.parent)}
    command = [sys.executable, "-m", PROGRAM.stem]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True) as process:
        yield process


Check = Callable[..., Checked]
Begin = Callable[..., Callable[[], Checked]]


@pytest.fixture(scope="module")
def begin(program: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Begin:
    """begin(faults, device=…, timeout=…) starts a check of a node for each fault ("" is a good one; a dict is more
    environment), and returns what waits for its end.
    """

    def run(
        *faults: str | dict[str, str],
        device: str = "cpu",
        gpus: int = 4,
        timeout: float = 60,
        pair_timeout: float = 15,
        free_memory: float = 0.9,
    ) -> Callable[[], Checked]:
        place = tmp_path_factory.mktemp("check")
        launch = {"nodes": 1, "gpus_per_node": gpus}
        run = make_run(place, four_layer_job("tiny", runtime={"device": device}, launch=launch))
        port = free_port()
        nodes = []
        for rank, fault in enumerate(faults):
            environment = {
                "NODE_RANK": str(rank),
                "NODES": str(len(faults)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "NODE_NAME": f"n{rank}",
                "NODE_NAMES": ",".join(f"n{number}" for number in range(len(faults))),
                "ORCHESTRATOR_LAUNCH_ID": "lab-7.0",
                **({"FAULT": fault} if isinstance(fault, str) else fault),
            }
            folder = environment.pop("RUN_DIR", str(run.path))
            arguments = [folder, "--timeout", str(timeout), "--pair-timeout", str(pair_timeout), "--free-disk", "1"]
            nodes.append(
                {
                    "environment": environment,
                    "arguments": [*arguments, "--free-tmp", "1", "--free-memory", str(free_memory)],
                }
            )
        answer = place / "answer.json"
        request = {"nodes": nodes, "out": str(place), "answer": str(answer), "patience": timeout + 60}
        assert program.stdin is not None
        program.stdin.write(json.dumps(request) + "\n")
        program.stdin.flush()
        return partial(came_of, run, answer)

    return run


def came_of(run: RunDir, answer: Path) -> Checked:
    """What came of a check, once it has."""
    wait_until(answer.exists, "the nodes to end")
    said = json.loads(answer.read_text())
    report = run.health_report("lab-7.0")
    return Checked(
        [each["code"] for each in said],
        [each["output"] for each in said],
        [each["seconds"] for each in said],
        json.loads(report.read_text()) if report.exists() else {},
    )


@pytest.fixture
def check(begin: Begin) -> Check:
    """check(faults, device=…, timeout=…): `begin`, and what came of it."""
    return lambda *faults, **options: begin(*faults, **options)()


@pytest.fixture(scope="module", autouse=True)
def begun(request: pytest.FixtureRequest, begin: Begin) -> dict[str, Callable[[], Checked]]:
    """The checks that wait, of those tests that this session runs: begun before the first of all tests."""
    names = {item.name for item in request.session.items if item.path == request.path}
    return {name: begin(*faults, **options) for name, (faults, options) in HELD_UP.items() if name in names}


@pytest.fixture
def waited(begun: dict[str, Callable[[], Checked]], request: pytest.FixtureRequest) -> Checked:
    """What came of the check of this test."""
    return begun[request.node.name]()


def test_all_is_well(check: Check) -> None:
    checked = check("", "", "", "")
    assert checked.codes == [0, 0, 0, 0], checked.outputs
    assert checked.line.startswith("health check passed: 4 nodes, slowest pair n")
    assert checked.outputs[1:] == ["", "", ""]
    report = checked.report
    assert (report["healthy"], report["launch_id"], report["faults"]) == (True, "lab-7.0", [])
    assert {frozenset(pair["nodes"]) for pair in report["pairs"]} == {
        frozenset({f"n{a}", f"n{b}"}) for a in range(4) for b in range(a)
    }
    assert all(pair["gigabytes_per_second"] > 0 for pair in report["pairs"])
    assert all(abs(node["clock_offset"]) < 1 for node in report["nodes"])


def test_one_node_alone(check: Check) -> None:
    checked = check("")
    assert (checked.codes, checked.line) == ([0], "health check passed: 1 node")


@held_up
def test_a_node_that_never_comes(waited: Checked) -> None:
    assert waited.codes[:2] == [3, 3]
    assert waited.line == "health check failed: n2 never came"
    assert waited.guilty == ["n2"]
    assert max(waited.seconds) < LIMIT + 10


def test_node_0_never_comes(check: Check) -> None:
    checked = check("absent", "", timeout=5)
    assert checked.codes == [0, 3]
    assert checked.outputs[1].startswith("health check failed: n0 cannot be reached at 127.0.0.1:")
    assert checked.guilty == ["n0"]


@held_up
def test_a_node_that_stalls_in_the_all_reduces(waited: Checked) -> None:
    assert waited.codes == [3, 3, 3, 3]
    assert waited.line.startswith("health check failed: n1 fails in the all-reduce with n")
    assert waited.guilty == ["n1"]
    # Those that do not include it went well.
    good = [pair["nodes"] for pair in waited.report["pairs"] if pair["gigabytes_per_second"]]
    assert sorted(good) == [["n0", "n2"], ["n0", "n3"], ["n2", "n3"]]


@held_up
def test_a_node_that_freezes_in_the_all_reduces(waited: Checked) -> None:
    assert waited.codes == [3, 3, 3]
    assert waited.line == "health check failed: n2 stopped answering in the all-reduces"
    assert waited.guilty == ["n2"]
    assert max(waited.seconds) < LIMIT + 10


@held_up
def test_node_0_itself_stalls(waited: Checked) -> None:
    assert waited.codes == [3, 3, 3]
    assert waited.guilty == ["n0"]


def test_too_few_gpus(check: Check) -> None:
    checked = check("gpus=4", "gpus=3", "gpus=8", device="auto")
    assert checked.codes == [3, 3, 3]
    assert checked.line == "health check failed: n1 has 3 GPUs, the job needs 4 on each node"
    assert checked.guilty == ["n1"]


def test_a_node_that_lost_its_gpus(check: Check) -> None:
    """The job would take CPUs where there is no GPU, but not on one node beside others that have theirs."""
    assert check("gpus=4", "gpus=0", device="auto").guilty == ["n1"]
    assert check("gpus=0", "gpus=0", device="auto").codes == [0, 0]
    assert check("gpus=0", "gpus=4", device="cuda").guilty == ["n0"]


def test_memory_of_a_gpu_is_taken(check: Check) -> None:
    checked = check("gpus=4", "full", device="cuda")
    assert checked.guilty == ["n1"]
    assert "n1 has only 8.6 of 85.9 GB free on GPU 1" in checked.line


def test_folders_that_cannot_be_written_or_read(check: Check) -> None:
    checked = check("", {"TMPDIR": "/proc"}, {"RUN_DIR": "/nowhere/tiny"})
    assert checked.guilty == ["n1", "n2"]
    assert "n1 cannot write in /proc (" in checked.line
    assert "n2 cannot read the run directory: /nowhere/tiny is not a run directory" in checked.line


@held_up
def test_a_disk_that_hangs(waited: Checked) -> None:
    assert waited.guilty == ["n1"]
    assert "n1 hangs when " in waited.line
    assert max(waited.seconds) < LIMIT + 10


def test_a_clock_that_is_wrong(check: Check) -> None:
    checked = check("", "", "clock=12.3")
    assert checked.guilty == ["n2"]
    assert checked.line.startswith("health check failed: the clock of n2 is off by +12.")
    assert check("clock=-60", "", "").guilty == ["n0"]


def test_wrong_variables_are_named(check: Check) -> None:
    checked = check({"NODES": "two"}, {"NODE_RANK": "7"})
    assert checked.codes == [1, 1]
    assert "NODE_RANK, NODES and MASTER_PORT are numbers" in checked.outputs[0]
    assert "NODE_RANK is 7, but it is one of 2 nodes" in checked.outputs[1]


def test_a_folder_without_room(tmp_path: Path) -> None:
    assert folder_faults(tmp_path, 1) == []
    [fault] = folder_faults(tmp_path, 1 << 62)
    assert fault.startswith("has only ")
    assert list(tmp_path.iterdir()) == []


@given(st.integers(2, 33))
def test_every_pair_meets_once_and_no_node_is_in_two_at_a_time(count: int) -> None:
    rounds = rounds_of(count)
    assert len(rounds) == (count - 1 if count % 2 == 0 else count)
    pairs = [pair for each in rounds for pair in each]
    assert sorted(pairs) == [(a, b) for a in range(count) for b in range(a + 1, count)]
    for each in rounds:
        nodes = [node for pair in each for node in pair]
        assert len(nodes) == len(set(nodes))


def results(count: int, works: Callable[[int, int], bool]) -> list[Pair]:
    pairs = [pair for each in rounds_of(count) for pair in each]
    return [Pair(pair, 1.0) if works(*pair) else Pair(pair, None, "no answer within 4 s") for pair in pairs]


@given(st.integers(4, 12), st.data())
def test_bad_nodes_are_blamed_and_no_others(count: int, data: st.DataObject) -> None:
    bad = data.draw(st.sets(st.integers(0, count - 1), max_size=(count - 2) // 2))
    pairs = results(count, lambda a, b: not {a, b} & bad)
    assert blamed(pairs) == bad
    names = [f"n{number}" for number in range(count)]
    faults = pair_faults(names, pairs, silent=())
    assert Verdict(names, faults).nodes_at_fault == sorted(names[node] for node in bad)
    assert len(faults) == len(bad)


def test_of_two_nodes_neither_is_blamed() -> None:
    [fault] = pair_faults(["a", "b"], results(2, lambda a, b: False), silent=())
    assert (fault.nodes, fault.message) == (("a", "b"), "the all-reduce between a and b fails (no answer within 4 s)")
    assert Verdict(["a", "b"], [fault]).nodes_at_fault == []


def test_a_split_network_is_not_a_node() -> None:
    pairs = results(4, lambda a, b: (a < 2) == (b < 2))
    assert blamed(pairs) == set()
    assert len(pair_faults(list("abcd"), pairs, silent=())) == 4


def test_pairs_with_a_silent_node_say_nothing_of_the_other() -> None:
    pairs = results(3, lambda a, b: 2 not in (a, b))
    [fault] = pair_faults(list("abc"), pairs, silent={2})
    assert fault.message == "c stopped answering in the all-reduces"


def test_a_clock_within_its_error_is_right() -> None:
    facts = {0: Facts("a"), 1: Facts("b", clock_offset=2.5, clock_error=0.6), 2: Facts("c", clock_offset=1.9)}
    assert node_faults(list("abc"), facts, facts, Limits(clock_skew=2)) == []


def test_many_faults_are_one_line() -> None:
    names = [f"n{number}" for number in range(50)]
    faults = node_faults(names, [0], {}, Limits())
    line = Verdict(names, faults).line
    assert "n0 joined, but never reported its health; n1 never came; " in line
    assert line.endswith("; and 42 more")


@pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")
def test_a_call_is_bounded() -> None:
    assert forked_call.call(lambda: {"a": [1, "x" * 200_000]}, 30)["a"][0] == 1
    with pytest.raises(forked_call.CallFailedError, match="invalid literal") as raised:
        forked_call.call(lambda: int("x"), 30)
    assert raised.value.kind == "ValueError"
    with pytest.raises(forked_call.CallFailedError, match="killed by signal 9"):
        forked_call.call(lambda: __import__("os").kill(__import__("os").getpid(), 9), 30)
    with pytest.raises(TimeoutError, match="no answer within 0 s"):
        forked_call.call(lambda: __import__("time").sleep(60), 0.2)


@pytest.mark.gpu
def test_real_gpus_are_seen_and_compute(tmp_path: Path) -> None:
    run: RunDir = make_run(tmp_path, four_layer_job("tiny", runtime={"device": "cuda"}))
    command = [sys.executable, "-m", "orchestrator.runtime.health", str(run.path), "--timeout", "120"]
    done = subprocess.run([*command, "--free-memory", "0.5"], capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout) == (0, "health check passed: 1 node\n"), done.stderr
    [node] = json.loads(run.health_report("by-hand").read_text())["nodes"]
    assert node["gpus"] == torch.cuda.device_count()


@pytest.mark.gpu
def test_nccl_between_two_gpus(check: Check) -> None:
    """Two nodes of one GPU each; and one of them stalls, which hangs the other one's NCCL and not the check."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs: NCCL takes each only once")
    nodes = [{"CUDA_VISIBLE_DEVICES": "0"}, {"CUDA_VISIBLE_DEVICES": "1"}]
    good = check(*nodes, device="cuda", gpus=1, timeout=180, pair_timeout=60, free_memory=0.5)
    assert good.codes == [0, 0], good.outputs
    assert good.report["pairs"][0]["gigabytes_per_second"] > 1
    nodes[1]["FAULT"] = "stall"
    bad = check(*nodes, device="cuda", gpus=1, timeout=120, pair_timeout=20, free_memory=0.5)
    assert bad.codes == [3, 3]
    assert "the all-reduce between n0 and n1 fails (no answer within 20 s)" in bad.line
