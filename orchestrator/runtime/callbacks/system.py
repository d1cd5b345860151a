"""How busy each node is, measured beside the training by a thread of the node's first rank, into the run directory."""

from __future__ import annotations

import os
import socket
import threading
import time

import torch

from orchestrator.errors import LeaseLost, is_full_disk
from orchestrator.run_directory.rundir import append_line
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.records.machine_use import MachineUse
from orchestrator.runtime.session import Session


class SystemMetrics(Callback):
    """A line every `tracking.system_metrics_seconds`, and one at the end. No step waits for it, and it asks nothing of
    the GPU's own queue.
    """

    def __init__(self) -> None:
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def on_start(self, session: Session) -> None:
        seconds = session.job.tracking.system_metrics_seconds
        if not seconds or int(os.environ.get("LOCAL_RANK", "0")) != 0:
            return
        gpus = _visible_gpus() if session.processes.device.is_cuda else []
        self._thread = threading.Thread(
            target=self._watch, args=(session, gpus, seconds), name="system-metrics", daemon=True
        )
        self._thread.start()

    def on_end(self, session: Session) -> None:
        self._stop()

    def on_stop(self, session: Session) -> None:
        self._stop()

    def on_error(self, session: Session) -> None:
        self._stop()

    def _stop(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(timeout=5)  # a disk that does not answer must not keep the run from ending

    def _watch(self, session: Session, gpus: list[str], seconds: float) -> None:
        try:
            self._measure(session, gpus, seconds)
        except (LeaseLost, FileNotFoundError):
            return  # a newer start measures now, or the run was removed
        except Exception as error:  # whatever psutil, NVML and the disk raise: the training goes on
            print(f"system metrics stop here: {type(error).__name__}: {error}", flush=True)

    def _measure(self, session: Session, gpus: list[str], seconds: float) -> None:
        use = MachineUse(session.launch.run.path, gpus)
        path = session.launch.run.system_log(int(os.environ.get("GROUP_RANK", "0")))
        path.parent.mkdir(exist_ok=True)
        ended = False
        while not ended:
            ended = self._ended.wait(seconds)
            measured = {"time": time.time(), "iteration": session.state.iteration, "host": socket.gethostname()}
            measured["values"] = use.measure()
            session.launch.lease.check()
            try:
                append_line(path, measured)
            except OSError as error:
                if not is_full_disk(error):
                    raise


def _visible_gpus() -> list[str]:
    """The UUIDs of this process's GPUs, as NVML writes them."""
    devices = (torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count()))
    return [f"GPU-{device.uuid}" for device in devices]
