"""A rank that another one is gone for says so; why the launch ended is what the other says."""

from collections.abc import Callable

import pytest
from support.ends import (
    GLOO_LOST_A_PEER,
    HOSTS,
    NCCL_ABORTED,
    NCCL_BROKE,
    NCCL_LOST_A_PEER,
    NCCL_TIMEOUT,
    TORCHRUN_REPORT,
    classified,
)

from orchestrator.run_directory.exits.causes import lost_a_peer
from orchestrator.run_directory.exits.classification import LogMarks, classify
from orchestrator.run_directory.rundir import RunDir


def test_who_lost_another_does_not_explain_the_end(run: RunDir, record: Callable[..., None]) -> None:
    for rank in (0, 1, 3):
        record(rank, "bug", GLOO_LOST_A_PEER)
    assert classified(run, 1) == ("bug", GLOO_LOST_A_PEER), "nobody knows more"
    record(2, "bug", "ValueError: a mistake")
    assert classified(run, 1) == ("bug", "ValueError: a mistake")


TORCH_MESSAGES = {
    "a peer closed its socket": NCCL_LOST_A_PEER,
    "in NCCL's other codes": "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:275, "
    "internal error - please report this issue to the NCCL developers, NCCL version 2.20.5\n"
    "ncclInternalError: Internal check failed.\n"
    "Last error:\nsocketProgress: Connection closed by remote peer n2<42830>",
    "the communicator is gone": "DistBackendError: NCCL communicator was aborted on rank 2.  Original reason for "
    f"failure was: {NCCL_TIMEOUT}",
    "the first said nothing": "DistBackendError: [1] is setting up NCCL communicator and retrieving ncclUniqueId from "
    "[0] via c10d key-value store by key '0', but store->get('0') got error: Socket Timeout",
    "the store is gone": "DistNetworkError: Failed to recv, got 0 bytes. Connection was likely closed. Did the remote "
    "server shutdown or crash?",
    "nothing can be sent to the store": "DistNetworkError: Broken pipe",
    "the store was never there": "DistNetworkError: The client socket has timed out after 2000ms while trying to "
    "connect to (127.0.0.1, 49771).",
    "a key is not written": "DistStoreError: wait timeout after 600000ms, keys: /default_pg/0//cuda//0",
    "not all came": "DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.",
}


@pytest.mark.parametrize("lost", TORCH_MESSAGES.values(), ids=TORCH_MESSAGES)
def test_a_rank_on_a_gpu_that_lost_another_does_not_explain_the_end(
    run: RunDir, record: Callable[..., None], lost: str
) -> None:
    """Neither by its word nor by what stands in its log."""
    record(0, "bug", lost)
    run.rank_log(0).write_text(f"Traceback (most recent call last):\n  File\ntorch.distributed.{lost}\n")
    record(1, "bug", "ValueError: a mistake")
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=0, code=1) + TORCHRUN_REPORT.format(rank=1, code=1))
    assert lost_a_peer(lost)
    assert classified(run, 1) == ("bug", "ValueError: a mistake")


@pytest.mark.parametrize(
    "own",
    [
        "BrokenPipeError: [Errno 32] Broken pipe",
        "DistNetworkError: The server socket has failed to listen on any local network address. port: 29500, useIpv6: "
        "false, code: -98, name: EADDRINUSE, message: address already in use",
        "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1287, invalid "
        "usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.27.5\nncclInvalidUsage: This usually reflects "
        "invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 0 and rank 1 both on CUDA device 0",
        NCCL_BROKE.format(failure="999 'unknown error'"),
    ],
)
def test_what_a_rank_did_wrong_itself_is_no_lost_peer(own: str) -> None:
    assert not lost_a_peer(own)


def test_a_rank_that_torch_aborted_for_a_lost_peer_does_not_explain_the_end(
    run: RunDir, record: Callable[..., None]
) -> None:
    aborted = TORCHRUN_REPORT.format(rank=0, code=-6)
    run.rank_log(0).write_text(NCCL_ABORTED.format(rank=0))
    run.launcher_log.write_text(aborted + TORCHRUN_REPORT.format(rank=1, code=1))
    record(1, "bug", "ValueError: a mistake")
    assert classified(run, 1) == ("bug", "ValueError: a mistake")
    for code, name in ((-11, "SIGSEGV"), (-6, "SIGABRT")):
        run.launcher_log.write_text(aborted + TORCHRUN_REPORT.format(rank=1, code=code))
        assert classified(run, 1)[1].startswith(f"rank 1 was ended by {name}")
    run.launcher_log.write_text(aborted)
    record(1, "bug", GLOO_LOST_A_PEER)
    cause, message = classified(run, 1)
    assert cause == "nccl_error", "nobody knows more"
    assert "remote process exited or there was a network error" in message


def test_of_ncclerrors_the_one_that_is_no_lost_peer_and_its_machine_are_told(
    run: RunDir, record: Callable[..., None]
) -> None:
    on_n1, on_n2 = (TORCHRUN_REPORT.replace("localhost", host).format(rank=rank, code=-6) for host, rank in HOSTS)
    run.launcher_log.write_text(on_n1 + on_n2)
    run.rank_log(0).write_text(NCCL_ABORTED.format(rank=0))
    broke = NCCL_BROKE.format(failure="1 'invalid argument'")
    run.rank_log(1).write_text(f"Traceback (most recent call last):\n  File\ntorch.distributed.{broke}\n")
    record(1, "bug", broke)
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.node) == ("nccl_error", "n2")
    assert "unhandled cuda error" in end.message
    run.rank_log(1).write_text(NCCL_TIMEOUT)
    record(1, "bug", NCCL_LOST_A_PEER)
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.node) == ("nccl_error", None), "neither is known to be at fault"


@pytest.mark.parametrize("last", ["Cuda failure 2 'out of memory'", "Failed to CUDA calloc async 1216 bytes"])
def test_nccl_without_memory_for_its_buffers_is_out_of_memory(
    last: str, run: RunDir, record: Callable[..., None]
) -> None:
    """What NCCL 2.28 says of its buffers, and of what it allocates behind them."""
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=0, code=1) + TORCHRUN_REPORT.format(rank=1, code=1))
    without = NCCL_BROKE.format(failure="2 'out of memory'").replace("Cuda failure 2 'out of memory'", last)
    for rank, message in ((0, NCCL_LOST_A_PEER), (1, without)):
        record(rank, "bug", message)
        run.rank_log(rank).write_text(f"Traceback (most recent call last):\n  File\ntorch.distributed.{message}\n")
    end = classify(run, "a", 1, LogMarks({}))
    assert (end.cause, end.evidence) == ("out_of_memory", (f"rank-00001.log: {last}",))


def test_nccl_that_got_no_memory_because_something_else_had_failed(run: RunDir, record: Callable[..., None]) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=1, code=1))
    broke = NCCL_BROKE.format(failure="700 'an illegal memory access was encountered'")
    said = f"torch.distributed.{broke}\nFailed to CUDA calloc async 24 bytes"
    record(1, "bug", said)
    run.rank_log(1).write_text(f"Traceback (most recent call last):\n  File\n{said}\n")
    assert classified(run, 1)[0] == "nccl_error"


def test_of_exceptions_without_a_record_the_one_that_is_no_lost_peer_is_told(run: RunDir) -> None:
    run.launcher_log.write_text(TORCHRUN_REPORT.format(rank=0, code=1) + TORCHRUN_REPORT.format(rank=1, code=1))
    for rank, message in ((0, GLOO_LOST_A_PEER), (1, "KeyError: 'x'")):
        run.rank_log(rank).write_text(f"Traceback (most recent call last):\n  File\n{message}\n")
    assert classified(run, 1) == ("bug", "KeyError: 'x'")
