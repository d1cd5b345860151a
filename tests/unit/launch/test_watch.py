"""What a person sees while a run goes on."""

import io
import os
import pty
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from support.event_log import append_event, lines_of, log_of

from orchestrator.launch.local.launcher import Severity, Watcher, launch
from orchestrator.launch.logs import LineTail, LogFollower
from orchestrator.launch.terminal_watcher import TerminalWatcher, watcher_for
from orchestrator.launch.watch import LineWatcher, event_line
from orchestrator.run_directory.events.types import CHOICES
from orchestrator.run_directory.rundir import RunDir, append_line
from orchestrator.spec.job import JobSpec

HIDDEN_CURSOR, SHOWN_CURSOR = "\x1b[?25l", "\x1b[?25h"


@pytest.fixture
def run(make_job: Callable[..., JobSpec], make_run: Callable[[JobSpec], RunDir]) -> RunDir:
    run = make_run(make_job())
    run.logs.mkdir()
    return run


def measure(run: RunDir, iteration: int, **values: Any) -> None:
    record = {"time": time.time(), "iteration": iteration, "samples": 0, "tokens": 0}
    append_line(
        run.metrics_file, {**record, "values": {key.replace("__", "/"): value for key, value in values.items()}}
    )


def test_plain_lines(run: RunDir) -> None:
    measure(run, 1, train__loss=9.0)  # before this launch: not shown
    out = io.StringIO()
    watcher = LineWatcher(run, 100, out, seconds_between_lines=0)
    append_event(run, "started", world_size=2, iteration=0)
    watcher.poll()
    measure(
        run,
        10,
        train__loss=3.14159,
        train__grad_norm=1.5,
        throughput__step_seconds=2.0,
        throughput__tokens_per_second=12345.0,
        throughput__tflops_per_gpu=1.25,
    )
    measure(run, 10, validation__loss=3.25, validation__perplexity=25.79)
    append_event(run, "checkpoint_saved", iteration=10, seconds=1.23, bytes=34_000_000)
    watcher.poll()
    measure(run, 10, validation__loss=0.5, validation__accuracy=0.75)
    watcher.poll()
    measure(run, 11, train__loss=3.0)
    watcher.poll()
    assert out.getvalue().splitlines() == [
        "started 2 processes at iteration 0",
        "saved a checkpoint at iteration 10 (34 MB in 1.23 s)",
        "iteration 10/100  loss 3.1416  grad norm 1.5  12.3k tokens/s total  1.25 TFLOP/s per GPU  0:03:00 left",
        "iteration 10/100  validation loss 3.2500  perplexity 25.79",
        "iteration 10/100  validation loss 0.5000  accuracy 0.7500",
        "iteration 11/100  loss 3.0000  grad norm 1.5  12.3k tokens/s total  1.25 TFLOP/s per GPU  0:02:58 left",
    ]


@pytest.mark.parametrize(("device", "processor"), [("cpu", "process"), ("NVIDIA H200", "GPU")])
def test_speeds_are_told_of_what_trains(device: str, processor: str, run: RunDir) -> None:
    out = io.StringIO()
    watcher = LineWatcher(run, 100, out, seconds_between_lines=0)
    append_event(run, "started", world_size=1, iteration=0, device=device)
    measure(run, 1, train__loss=3.0, throughput__tflops_per_gpu=0.25)
    watcher.poll()
    assert out.getvalue().splitlines()[-1] == f"iteration 1/100  loss 3.0000  0.25 TFLOP/s per {processor}"


@pytest.mark.parametrize(
    ("first", "interrupts", "ends"),
    [(signal.SIGINT, 1, "Ctrl-C again"), (signal.SIGTERM, 2, "Ctrl-C twice"), (signal.SIGUSR1, 2, "Ctrl-C twice")],
)
def test_what_ends_a_run_at_once_is_said_and_does_so(
    first: signal.Signals,
    interrupts: int,
    ends: str,
    make_job: Callable[..., JobSpec],
    make_run: Callable[[JobSpec], RunDir],
    fake_runtime: str,
) -> None:
    """With ranks that hear nothing, as in the middle of a long step."""

    class Impatient(Watcher):
        def __init__(self) -> None:
            self.signals = [first, *[signal.SIGINT] * interrupts]
            self.said: list[tuple[int, str]] = []

        def poll(self) -> None:
            if self.signals and any(event["event"] == "started" for event in lines_of(run)):
                os.kill(os.getpid(), self.signals.pop(0))  # one at a look

        def say(self, message: str, severity: Severity | None = None) -> None:
            self.said.append((len(self.signals), message))

    run, watcher = make_run(job := make_job(launch__env={"FAKE_STEP_SECONDS": "600"})), Impatient()
    end = launch(run, job, module=fake_runtime, watcher=watcher)
    assert watcher.said == [
        (interrupts, f"{first.name}: stopping after this step and saving; {ends} ends it at once, unsaved"),
        (0, "ending at once, without waiting for a save (a second SIGINT)"),
    ]
    assert end.cause == "cancelled"


def test_one_process_is_no_crowd() -> None:
    assert (
        event_line(*log_of({"event": "started", "world_size": 1, "iteration": 4})) == "started 1 process at iteration 4"
    )


@pytest.mark.parametrize(
    ("choices", "words"),
    [
        ({"device": "cpu", "layers": "torch", "attention_backend": "fused"}, "the CPU, torch's layers"),
        ({"device": "NVIDIA H200", "layers": "transformer_engine"}, "NVIDIA H200, Transformer Engine's layers"),
        (
            {
                "device": "X",
                "layers": "new",
                "attention_backend": "flash",
                "tp_comm_overlap": True,
                "cuda_graphs": True,
            },
            "X, new, FlashAttention 4, tensor parallelism overlapped, CUDA graphs",
        ),
    ],
)
def test_what_the_ranks_chose_is_said(choices: dict[str, Any], words: str) -> None:
    log = log_of({"event": "started", "world_size": 2, "iteration": 0, **choices}, {"event": "first_step"})
    assert event_line(log[0]) == f"started 2 processes at iteration 0, on {words}"
    assert log.choices == {**dict.fromkeys(CHOICES), **choices}


def test_lines_are_rate_limited_but_the_last_is_shown(run: RunDir) -> None:
    out = io.StringIO()
    watcher = LineWatcher(run, 50, out, seconds_between_lines=3600)
    for iteration in range(1, 51):
        measure(run, iteration, train__loss=1.0)
        watcher.poll()
    assert [line.split()[1] for line in out.getvalue().splitlines()] == ["1/50", "50/50"]


def test_warnings_of_a_run_are_told(run: RunDir) -> None:
    out = io.StringIO()
    watcher = LineWatcher(run, 50, out)
    append_event(run, "step_skipped", iteration=7, reason="the loss was nan")
    append_event(run, "checkpoint_failed", iteration=8, message="No space left on device")
    append_event(run, "unheard_of", iteration=9)
    watcher.poll()
    measure(run, 9, train__loss="nan")
    watcher.poll()
    assert out.getvalue().splitlines() == [
        "warning: skipped step 7: the loss was nan",
        "warning: the checkpoint of iteration 8 could not be saved: No space left on device",
        "iteration 9/50  loss nan  skipped 1",
    ]


def test_torn_lines_wait_or_are_passed_over(run: RunDir) -> None:
    out = io.StringIO()
    watcher = LineWatcher(run, 50, out)
    whole = b'{"time":1,"event":"resumed","iteration":5,"checkpoint":"x"}\n'
    with open(run.events_file, "ab") as file:
        file.write(b'{"time":1,"event":"che\n[]\n' + whole[:20])
        file.flush()
        watcher.poll()
        assert out.getvalue() == ""
        file.write(whole[20:])
        file.flush()
        watcher.poll()
    assert out.getvalue() == "resumed from the checkpoint of iteration 5\n"


def test_terminal_shows_progress_and_what_happened(run: RunDir) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160, _environ={"TERM": "xterm"})
    watcher = TerminalWatcher(run, 20, console)
    measure(run, 10, train__loss=3.14159, throughput__step_seconds=6.0)
    append_event(run, "step_skipped", iteration=9, reason="[bold]nan[/bold]")
    watcher.poll()
    watcher.close()
    text = out.getvalue()
    assert "warning: skipped step 9: [bold]nan[/bold]" in text
    assert "10/20" in text
    assert "loss 3.1416" in text
    assert "0:01:00 left" in text


@pytest.mark.parametrize(
    ("width", "last"), [(80, "validation 3.2000"), (100, "grad norm 1.23"), (130, "2.5k tokens/s total"), (160, "GPU")]
)
def test_what_does_not_fit_a_terminal_is_left_out(run: RunDir, width: int, last: str) -> None:
    out = io.StringIO()
    watcher = TerminalWatcher(
        run, 1500, Console(file=out, force_terminal=True, width=width, _environ={"TERM": "xterm"})
    )
    told = {"train__loss": 3.14159, "validation__loss": 3.2, "train__grad_norm": 1.23}
    measure(run, 1000, **told, throughput__tokens_per_second=2500, throughput__tflops_per_gpu=400)
    measure(run, 1001, throughput__step_seconds=6.0)
    watcher.poll()
    watcher.close()
    line = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).rstrip().splitlines()[-1]
    assert "1001/1500" in line
    assert "loss 3.1416" in line
    assert re.search(f"{last} +0:49:54 left$", line.rstrip())
    assert "…" not in line


def test_a_command_is_one_line_however_narrow_the_terminal(run: RunDir) -> None:
    out = io.StringIO()
    watcher = TerminalWatcher(run, 20, Console(file=out, force_terminal=True, width=40, _environ={"TERM": "xterm"}))
    command = "      cd /shared/project && MASTER_ADDR=node1 NODE_RANK=1 bash /shared/project/runs/tiny/launch.sh"
    watcher.say(command)
    watcher.poll()
    watcher.say(command)
    watcher.close()
    assert out.getvalue().count(command) == 2


def test_terminal_is_left_alone_until_the_training_is_watched(run: RunDir) -> None:
    out = io.StringIO()
    watcher = TerminalWatcher(run, 20, Console(file=out, force_terminal=True, _environ={"TERM": "xterm"}))
    assert out.getvalue() == ""
    watcher.close()
    assert HIDDEN_CURSOR not in out.getvalue()
    watcher = TerminalWatcher(run, 20, Console(file=out, force_terminal=True, _environ={"TERM": "xterm"}))
    watcher.poll()
    assert HIDDEN_CURSOR in out.getvalue()
    watcher.close()
    assert out.getvalue().rindex(SHOWN_CURSOR) > out.getvalue().rindex(HIDDEN_CURSOR)


def test_output_that_is_no_terminal_gets_lines(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(watcher_for(run, 20, io.StringIO()), LineWatcher)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert isinstance(watcher_for(run, 20, io.StringIO()), LineWatcher)


def test_terminal_gets_a_live_line(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = pty.openpty()
    with open(terminal, "w") as out:
        assert isinstance(watcher_for(run, 20, out), TerminalWatcher)
    os.close(controller)


def test_log_lines_come_whole_and_once(run: RunDir) -> None:
    path = run.rank_log(0)
    tail = LineTail(path, path.parent)
    assert tail.poll() == []
    path.write_bytes(b"one\ntw")
    assert tail.poll() == ["one"]
    with open(path, "ab") as file:
        file.write(b"o\nth\xffree\n\n")
    assert tail.poll() == ["two", "th�ree", ""]
    assert tail.poll() == []


def test_logs_of_all_ranks_with_labels_and_those_that_appear_later(run: RunDir) -> None:
    run.launcher_log.write_text("=== launch a\n")
    run.rank_log(0).write_text("1\n2\n3\n")
    follower = LogFollower(run, None, lines=2)
    assert follower.poll() == [("launcher", "=== launch a"), ("0", "2"), ("0", "3")]
    run.rank_log(1).write_text("late\nbut whole\nand all\n")
    assert follower.poll() == [("1", "late"), ("1", "but whole"), ("1", "and all")]


def test_what_is_written_meanwhile_does_not_cut_a_line(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.rank_log(0)
    path.write_bytes(b"one\ntwo\n")

    class GrowingFile(io.BufferedReader):
        def read(self, size: int | None = -1, /) -> bytes:
            with open(path, "ab") as file:
                file.write(b"written meanwhile\n")
            return super().read(size)

    tail = LineTail(path, path.parent)
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.launch.logs.open_stored", lambda path, folder: GrowingFile(io.FileIO(path)))
        tail.skip_to_last(1)
    assert tail.poll() == ["two", "written meanwhile"]


def test_log_of_one_rank(run: RunDir) -> None:
    run.rank_log(0).write_text("zero\n")
    run.rank_log(1).write_text("one\n")
    assert LogFollower(run, 1, lines=None).poll() == [("1", "one")]
    assert LogFollower(run, 1, lines=0).poll() == []
