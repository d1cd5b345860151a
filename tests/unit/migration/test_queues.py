"""CUDA_DEVICE_MAX_CONNECTIONS of a script: nearly always what a launch sets by itself."""

from __future__ import annotations

import pytest

from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text

FLAGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 "
    "--train-iters 10 --lr 1e-3 --data-path data --vocab-file v --merge-file m"
)
OFFLOADED = "--cpu-offloading-num-layers 2"


@pytest.mark.parametrize(
    ("count", "flags", "said", "kept"),
    [
        (1, "", 0, False),
        (1, OFFLOADED, 1, False),
        (8, OFFLOADED, 0, False),
        (1, f"{OFFLOADED} --tensor-model-parallel-size 2", 0, False),
        (8, f"{OFFLOADED} --tensor-model-parallel-size 2", 0, True),
        (32, "", 0, True),
    ],
)
def test_queues_are_what_a_launch_has_or_are_kept(count: int, flags: str, said: int, kept: bool) -> None:
    start = f"CUDA_DEVICE_MAX_CONNECTIONS={count} torchrun --nproc_per_node 4"
    migration = migrate_script(f"{start} pretrain_gpt.py {FLAGS} {flags}\n", "x.sh")
    accounts = [each for each in migration.of("no_effect") if "CUDA_DEVICE_MAX_CONNECTIONS" in each.flag]
    assert len(accounts) == said
    assert ("CUDA_DEVICE_MAX_CONNECTIONS" in load_text(job_text(migration)).job.launch.env) is kept
