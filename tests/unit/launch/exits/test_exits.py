"""Why a launch ended, from what it left behind."""

from collections.abc import Callable

import pytest
from support.ends import (
    GLOO_LOST_A_PEER,
    HOSTS,
    NCCL_LOST_A_PEER,
    NCCL_TIMEOUT,
    TORCHRUN_CLOSES,
    TORCHRUN_REPORT,
    classified,
)

from orchestrator.run_directory.exits.causes import CAUSES, by_word_of_the_ranks
from orchestrator.run_directory.exits.classification import LogMarks, classify, failed_ranks, last_exception
from orchestrator.run_directory.rundir import RunDir


@pytest.mark.parametrize(
    "cause", [cause for cause in CAUSES if cause not in ("completed", "stopped", "killed", "lost")]
)
def test_a_ranks_own_word_goes_before_what_its_peers_suffered(
    run: RunDir, record: Callable[..., None], cause: str
) -> None:
    record(0, "bug", "Connection closed by peer")
    record(1, cause, "because")
    assert classified(run, 1) == (cause, "because" if cause != "bug" else "Connection closed by peer")


def test_killed_rank_explains_the_errors_of_its_peers(run: RunDir, record: Callable[..., None]) -> None:
    record(0, "bug", "Connection closed by peer")
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=-9))
    cause, message = classified(run, 1)
    assert cause == "killed"
    assert message.startswith("rank 1 was ended by SIGKILL; if no person did that, the system did")


def test_crash_points_to_the_log(run: RunDir) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=3, code=-11))
    assert classified(run, 1) == (
        "killed",
        "rank 3 was ended by SIGSEGV; see its log (logs/rank-00003.log and logs/launcher.log)",
    )


def test_where_the_thread_was_that_crashed_is_shown(run: RunDir) -> None:
    """As faulthandler writes it: other threads first, the innermost line of each first."""
    other, crashed = (
        f'{kind} 0x00007f1a82bc26c0 (most recent call first):\n  File "/job/' for kind in ("Thread", "Current thread")
    )
    rest = 'threading.py", line 982 in run\n  File "/job/threading.py", line 1045 in _bootstrap_inner\n'
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=0, code=-11))
    for inner, evidence in (("step.py", ('rank-00000.log: File "/job/step.py", line 5 in step',)), (None, ())):
        told = f'{crashed}{inner}", line 5 in step\n  File "/job/loop.py", line 9 in train\n' if inner else ""
        run.rank_log(0).write_text(f"Fatal Python error: Segmentation fault\n\n{other}{rest}\n{told}")
        assert classify(run, "a", 1, LogMarks({})).evidence == evidence


def test_what_torch_said_before_a_crash_is_shown(run: RunDir, record: Callable[..., None]) -> None:
    said = (
        "what():  [PG ID 2 PG GUID 3 Rank 1] Process group watchdog thread terminated with exception: CUDA error: an "
        "illegal memory access was encountered"
    )
    run.rank_log(1).write_text(
        f"{NCCL_TIMEOUT}\nterminate called after throwing an instance of 'c10::DistBackendError'\n  {said}\n"
    )
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=-6))
    record(0, "bug", GLOO_LOST_A_PEER)
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.evidence) == ("killed", (f"rank-00001.log: {said}",))


def test_stopped_ranks_count_although_torchrun_was_terminated(run: RunDir, record: Callable[..., None]) -> None:
    record(0, "stopped")
    record(1, "stopped")
    assert classified(run, 1) == ("stopped", "")
    assert classified(run, 0) == ("stopped", "")


def test_completed_is_not_believed_when_a_rank_failed_after(run: RunDir, record: Callable[..., None]) -> None:
    record(0, "completed")
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=-9))
    assert classified(run, 1)[0] == "killed"


@pytest.mark.parametrize(
    ("cause", "line"),
    [
        ("out_of_memory", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"),
        (
            "out_of_memory",
            "orchestrator.errors.JobError: its buffers could not be opened: CUDA Error: out of memory. Not",
        ),
        ("host_out_of_memory", "RuntimeError: [enforce fail at alloc_cpu.cpp:117] CPUAllocator: can't allocate memory"),
        ("host_out_of_memory", "MemoryError"),
        ("nccl_error", "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:77, remote process exited"),
    ],
)
def test_the_failing_ranks_log_shows_the_cause(run: RunDir, cause: str, line: str) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=1))
    run.rank_log(1).write_text(f"step 1\nTraceback (most recent call last):\n  File\n{line}\n")
    assert classified(run, 1) == (cause, line)
    end = classify(run, "a", 1, LogMarks({}))
    assert end.evidence == (f"rank-00001.log: {line}",)


GPU_FAILED = (
    "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
    "RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
    "RuntimeError: CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error",
    "RuntimeError: CUDA error: hardware stack error",
    "RuntimeError: CUDA error: unknown error",
    "ncclUnhandledCudaError: Call to CUDA function failed. Last error: Cuda failure 214 'uncorrectable ECC error enc",
    "RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable",
    "pynvml.NVMLError_GpuIsLost: GPU is lost",
)


@pytest.mark.parametrize("line", GPU_FAILED)
def test_a_gpu_that_failed_is_blamed_on_its_machine(run: RunDir, record: Callable[..., None], line: str) -> None:
    """Whether the rank could say so, only wrote it, or was aborted; whatever the others say of its loss."""
    on_n1, on_n2 = (TORCHRUN_REPORT.replace("localhost", host).format(rank=rank, code=1) for host, rank in HOSTS)
    run.launcher_log.write_text(on_n1 + on_n2)
    run.rank_log(0).write_text(NCCL_LOST_A_PEER)
    run.rank_log(1).write_text(f"step 1\nTraceback (most recent call last):\n  File\n{line}\nCUDA kernel errors\n")
    record(0, "bug", NCCL_LOST_A_PEER)
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.message, end.node) == ("gpu_error", line, "n2")
    run.launcher_log.write_text(on_n1 + on_n2.replace("exitcode  : 1", "exitcode  : -6"))
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.node, end.evidence) == ("gpu_error", "n2", (f"rank-00001.log: {line}",))
    record(1, "gpu_error", line)
    run.rank_log(1).write_text("")
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.message, end.node) == ("gpu_error", line, "n2")
    run.launcher_log.write_text("")
    assert classify(run, "a", 1, LogMarks({})).node is None, "torchrun did not say where"


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: an illegal memory access was encountered",
        "RuntimeError: CUDA error: device-side assert triggered",
        "RuntimeError: CUDA error: invalid configuration argument",
        "KeyError: 'unknown error'",
    ],
)
def test_what_a_program_does_wrong_on_a_gpu_is_a_bug(run: RunDir, line: str) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=1))
    run.rank_log(1).write_text(f"Traceback (most recent call last):\n  File\n{line}\n")
    assert classified(run, 1) == ("bug", line)


def test_a_killed_rank_explains_the_network_errors_of_its_peers(run: RunDir) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=-9) + "ncclRemoteError: remote process exited\n")
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.node) == ("killed", "localhost")


@pytest.mark.parametrize("code", [-15, -9], ids=["it had not heard", "it did not end within torchrun's grace"])
def test_a_rank_that_torchrun_ended_because_of_another_explains_nothing(
    run: RunDir, record: Callable[..., None], code: int
) -> None:
    ended = TORCHRUN_CLOSES + TORCHRUN_REPORT.format(rank=0, code=code)
    run.launcher_log.write_text(ended + TORCHRUN_REPORT.format(rank=1, code=-9))
    assert classified(run, 1)[1].startswith("rank 1 was ended by SIGKILL")
    run.launcher_log.write_text(ended + TORCHRUN_REPORT.format(rank=1, code=1))
    record(1, "bug", "KeyError: 'x'")
    assert classified(run, 1) == ("bug", "KeyError: 'x'")
    run.launcher_log.write_text(ended)
    assert classified(run, 1)[1].startswith("rank 0 was ended by "), "torchrun was told to end, and nothing failed"


def test_a_rank_that_its_watchdog_aborted_is_a_network_error_of_its_node(run: RunDir) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=-6))
    run.rank_log(1).write_text("[rank1] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)\n")
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.node) == ("nccl_error", "localhost")


def test_error_without_a_record_is_the_last_exception_of_the_failing_rank(run: RunDir) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=1))
    run.rank_log(0).write_text("Traceback (most recent call last):\n  File\nRuntimeError: Connection closed\n")
    run.rank_log(1).write_text("[rank1]: Traceback (most recent call last):\n[rank1]:   File\n[rank1]: KeyError: 'x'\n")
    assert classified(run, 1) == ("bug", "KeyError: 'x'")


@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("/usr/bin/python3: No module named torch.distributed.run", "torch"),
        (
            "/usr/bin/python3: Error while finding module specification for 'torch.distributed.run' "
            "(ModuleNotFoundError: No module named 'torch')",
            "torch",
        ),
        ("ModuleNotFoundError: No module named 'megatron.core'", "megatron"),
        ("/opt/python: No module named orchestrator", "orchestrator"),
    ],
)
def test_a_python_that_lacks_what_training_needs_is_no_bug(run: RunDir, line: str, package: str) -> None:
    run.launcher_log.write_text(f"=== launch a\n{line}\n")
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.code, end.evidence) == ("user_error", 2, (f"launcher.log: {line}",))
    assert end.message == (
        f"the Python that trains has no {package}: let launch.python name another one, or install there what training "
        "needs (pip install 'megatron-orchestrator[train]')"
    )


def test_a_module_that_a_program_of_the_users_lacks_is_its_own_matter(run: RunDir) -> None:
    run.launcher_log.write_text("ModuleNotFoundError: No module named 'torch.nowhere'\n")
    assert classified(run, 1) == ("bug", "ModuleNotFoundError: No module named 'torch.nowhere'")
    run.launcher_log.write_text("ModuleNotFoundError: No module named 'torchvision'\n")
    assert classified(run, 1) == ("bug", "ModuleNotFoundError: No module named 'torchvision'")


def test_launcher_that_said_nothing(run: RunDir) -> None:
    run.launcher_log.write_text("=== launch a at 2026-11-20 13:07:32\n")
    assert classified(run, 1) == ("bug", "torchrun returned 1")


def test_logs_of_earlier_launches_are_not_read(run: RunDir) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=-9))
    run.rank_log(0).write_text("MemoryError\n")
    marks = LogMarks.of(run)
    with open(run.launcher_log, "a") as file:
        file.write("=== launch a\n")
    end = classify(run, "a", 1, marks)
    assert (end.cause, end.message) == ("bug", "torchrun returned 1")


def test_ranks_that_said_nothing(run: RunDir) -> None:
    assert by_word_of_the_ranks(run, "a") is None
    assert classified(run, 5) == ("bug", "torchrun returned 5")


def test_damaged_record_is_passed_over(run: RunDir, record: Callable[..., None]) -> None:
    record(0, "nan", "the loss was NaN")
    run.exit_record("a", 1).write_text('{"cause"')
    run.exit_record("a", 2).write_text("[]")
    assert classified(run, 1) == ("nan", "the loss was NaN")


def test_cause_of_another_version_is_an_error(run: RunDir, record: Callable[..., None]) -> None:
    record(0, "solar_flare", "a bit flipped")
    assert classified(run, 1) == ("bug", "a bit flipped")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", None),
        ("all is well\n", None),
        ("Traceback (most recent call last):\n  x\nValueError: a\nnoise\n", "ValueError: a"),
        ("Traceback (most recent call last):\n  x\nTimeoutError\n", "TimeoutError"),
        ("Traceback (most recent call last):\n  x\nmy.module.CustomError: b\n", "my.module.CustomError: b"),
    ],
)
def test_last_exception(text: str, expected: str | None) -> None:
    assert last_exception(text) == expected


@pytest.mark.parametrize(("code", "by_torchrun"), [(-15, True), (-9, True), (-11, False), (1, False)])
def test_a_process_of_another_host_with_the_same_number_was_not_ended_by_torchrun(code: int, by_torchrun: bool) -> None:
    [end] = failed_ranks(TORCHRUN_CLOSES + TORCHRUN_REPORT.format(rank=0, code=code)).values()
    assert (end.code, end.by_torchrun) == (code, by_torchrun)
