"""`python -m orchestrator.runtime.bench RUN_DIR`: one rank of a training that is there to be measured."""

from __future__ import annotations

import sys

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.run_directory.rundir import RunDir
from orchestrator.runtime.__main__ import main
from orchestrator.runtime.bench.measurement import Benchmark
from orchestrator.runtime.callbacks.base import Callback
from orchestrator.runtime.callbacks.first_step import FirstStep
from orchestrator.runtime.callbacks.logging import MetricLogging


def callbacks(run: RunDir) -> list[Callback]:
    """Nothing is saved, evaluated or sent anywhere."""
    asked = run.read_json(run.bench_request)
    measuring = Benchmark(run, asked["warm_up"], asked["steps"], keep_trace=asked["trace"])
    return [MetricLogging(), FirstStep(), measuring]


if __name__ == "__main__":
    sys.exit(main(callbacks))
