"""A job in FP8 where there is no GPU: one message, and nothing else."""

from __future__ import annotations

from support.faults import CommandLine
from support.training import tiny_job


def test_it_is_refused_in_one_line(orchestrator: CommandLine) -> None:
    job = tiny_job("job", precision={"dtype": "bf16", "fp8": {"recipe": "delayed"}})
    said = orchestrator("run", orchestrator.write(job))
    assert said.code == 2
    [line] = [line for line in said.err.splitlines() if line.startswith("error: ")]
    assert "precision.fp8 needs Transformer Engine's layers, and this run has torch's" in line
    assert "Traceback" not in said.out + said.err
