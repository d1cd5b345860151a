"""What a script asks of its scheduler: `#SBATCH` and `#PBS` lines, and nothing of them lost."""

from __future__ import annotations

import pytest

from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.report import Migration
from orchestrator.migration.writing import job_text

FLAGS = (
    "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64 --micro-batch-size 1 "
    "--train-iters 10 --lr 1e-3 --data-path data --vocab-file v --merge-file m"
)


def migrated(head: str, starts: str = "torchrun --nproc_per_node 8") -> Migration:
    return migrate_script(f"#!/bin/bash\n{head}\n{starts} pretrain_gpt.py {FLAGS}\n", "x.sh")


@pytest.mark.parametrize(
    ("lines", "nodes", "unread"),
    [
        ("#SBATCH some text --nodes=4\n#SBATCH --time=3", None, "#SBATCH some text --nodes=4 --time=3"),
        ("#SBATCH --nodes=4 text -J z\n#SBATCH --time=3", 4, "#SBATCH text --job-name z --time=3"),
        ("#SBATCH --nodes=4 # some text --time=3", 4, None),
        ("#SBATCH--nodes=4\n#SBATCHED --time=3", 4, None),
    ],
)
def test_what_sbatch_does_not_read_is_listed(lines: str, nodes: int | None, unread: str | None) -> None:
    """As sbatch 22.05 does: it reads "#SBATCH--nodes=4", and ends at the first word that is no option."""
    migration = migrated(lines)
    assert migration.values.get("launch.nodes") == nodes
    assert "launch.time" not in migration.values
    listed = [account for account in migration.of("no_counterpart") if account.flag.startswith("#SBATCH")]
    assert [account.flag for account in listed] == ([unread] if unread else [])
    if unread:
        assert f"refuses the script at {unread.split()[1]}, which is no option" in str(listed[0].reason)
        assert "take it out, and migrate again" in job_text(migration)
