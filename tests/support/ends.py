"""What torchrun, gloo and NCCL write when ranks end, and what a launch is said to have ended by."""

from orchestrator.run_directory.exits.classification import LogMarks, classify
from orchestrator.run_directory.rundir import RunDir

TORCHRUN_REPORT = """\
E1120 13:07:32.568000 22724 site-packages/torch/distributed/elastic/multiprocessing/api.py:1002] failed
Traceback (most recent call last):
  File "run.py", line 1032, in <module>
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
orchestrator.runtime FAILED
Failures:
  <NO_OTHER_FAILURES>
Root Cause (first observed failure):
[0]:
  time      : 2026-11-20_13:07:32
  host      : localhost
  rank      : {rank} (local_rank: {rank})
  exitcode  : {code} (pid: 2272{rank})
  error_file: <N/A>
"""
HOSTS = (("n1", 0), ("n2", 1))
TORCHRUN_CLOSES = (
    "W1120 13:07:32.123000 22724 torch/distributed/elastic/multiprocessing/api.py:1028] "
    "Sending process 22720 closing signal SIGTERM\n"
)
GLOO_LOST_A_PEER = (
    "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer "
    "[127.0.0.1]:41374. This is typically caused by a remote worker crashing."
)
NCCL_LOST_A_PEER = (
    "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, remote process exited or "
    "there was a network error, NCCL version 2.21.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\n"
    "socketProgressOpt: Call to recv from 10.0.0.2<33759> failed : Connection reset by peer"
)
NCCL_ABORTED = (
    "[rank{rank}]:[E1120 13:07:32.193043780 ProcessGroupNCCL.cpp:2055] [PG ID 0 PG GUID 0(default_pg) Rank {rank}] "
    "Process group watchdog thread terminated with exception: NCCL error: remote process exited or there was a network "
    "error, NCCL version 2.27.5\n"
    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
    "Last error:\n"
    "NET/IB: Got completion from peer 10.0.0.2<38536> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0)\n"
    "Exception raised from checkForNCCLErrorsInternal at ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:23\n"
    "terminate called after throwing an instance of 'c10::DistBackendError'\n"
    "  what():  [PG ID 0 PG GUID 0(default_pg) Rank {rank}] Process group watchdog thread terminated with exception: "
    "NCCL error: remote process exited or there was a network error, NCCL version 2.27.5\n"
)
NCCL_TIMEOUT = (
    "[Rank 2] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=199, OpType=_REDUCE_SCATTER_BASE, "
    "NumelIn=7098994688, NumelOut=443687168, Timeout(ms)=600000) ran for 882722 milliseconds before timing out."
)
NCCL_BROKE = (
    "DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:94, unhandled cuda error "
    "(run with NCCL_DEBUG=INFO for details), NCCL version 2.27.5\n"
    "ncclUnhandledCudaError: Call to CUDA function failed.\n"
    "Last error:\n"
    "Cuda failure {failure}"
)


def classified(run: RunDir, code: int) -> tuple[str, str]:
    end = classify(run, "a", code, LogMarks({}))
    return end.cause, end.message
