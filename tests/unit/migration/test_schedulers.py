"""What a script asks of its scheduler: `#SBATCH` and `#PBS` lines, and nothing of them lost."""

from __future__ import annotations

import pytest

from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.report import Migration
from orchestrator.migration.yaml_writer import job_text

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
        assert f"refuses the script at {unread.split()[1]}, which is not an option" in str(listed[0].reason)
        assert "remove it, and migrate again" in job_text(migration)


TORQUE = "#PBS -l nodes=4:ppn=64:gpus=8,walltime=10:00:00\n#PBS -q big -N first-run\n#PBS -A physics -j oe"
CHUNKS = "-l select=4:ncpus=64:ngpus=8:mem=500gb:gpu_model=a100"
PRO = f"#PBS {CHUNKS} -l place=scatter\n#PBS -l walltime=36000 # 10 h\n#PBS -V"


@pytest.mark.parametrize("head", [TORQUE, PRO])
def test_machines_gpus_and_time_of_pbs_are_read(head: str) -> None:
    migration = migrated(head, "mpiexec --hostfile $PBS_NODEFILE python")
    values = migration.values
    assert (values["launch.nodes"], values["launch.gpus_per_node"], values["launch.time"]) == (4, 8, 36000)
    told = {account.flag.removeprefix("#PBS "): account for account in migration.accounts}
    if head is TORQUE:
        assert values["name"] == "first-run"
        assert "#   #PBS -q big: a queue of PBS: write the partition of SLURM into launch.partition" in job_text(
            migration
        )
        assert "launch.account" in str(told["-A physics"].reason)
        assert told["-j oe"].outcome == told["-l nodes=4:ppn=64:gpus=8: ppn=64"].outcome == "no_effect"
    else:
        assert told[f"{CHUNKS}: mem=500gb"].reason == "write launch.memory_per_node"
        assert "cluster profile" in str(told[f"{CHUNKS}: gpu_model=a100"].reason)
        assert told["-l place=scatter"].outcome == told["-V"].outcome == "no_effect"
        assert f"each chunk of #PBS {CHUNKS} is assumed to be a separate machine" in migration.notes


@pytest.mark.parametrize(
    ("head", "nodes", "gpus"),
    [
        ("#PBS -lselect=ngpus=4:ncpus=8+3:ngpus=4", 4, 4),
        ("#PBS -l nodes=n1:ppn=4+n2:ppn=4", 2, None),
        ("#PBS -l nodes=2:gpus=8\n#SBATCH --nodes=3 --gpus-per-node=4", 3, 4),
    ],
)
def test_chunks_of_pbs(head: str, nodes: int, gpus: int | None) -> None:
    migration = migrated(head, "mpiexec python")
    assert (migration.values["launch.nodes"], migration.values.get("launch.gpus_per_node")) == (nodes, gpus)


def test_what_pbs_sets_is_known_from_the_head_of_the_script() -> None:
    starts = "torchrun --nnodes $PBS_NUM_NODES --node_rank $PBS_VNODENUM --nproc_per_node 8"
    migration = migrated("#PBS -l nodes=4:gpus=8\n#PBS -N first\nexport WANDB_NAME=$PBS_JOBNAME", starts)
    assert (migration.values["launch.nodes"], migration.values["launch.gpus_per_node"]) == (4, 8)
    assert migration.values["launch.env"] == {"WANDB_NAME": "first"}


@pytest.mark.parametrize(
    ("line", "outcome", "reason"),
    [
        ("-l ngpus=8", "no_counterpart", "write launch.nodes and launch.gpus_per_node"),
        ("-l select=1:ngpus=4+1:ngpus=8", "not_known", "machines differ"),
        ("-l walltime=<time>", "not_known", "write launch.time"),
        ("-v DATA=/data,MODE", "no_counterpart", "launch.env"),
        ("-J 0-3", "no_counterpart", "orchestrator sweep"),
        ("-W depend=afterok:1", "no_counterpart", "cluster profile"),
        ("-l filesystems=home", "no_counterpart", "cluster profile"),
        ("stray", "no_counterpart", "cluster profile"),
        *((word, "no_counterpart", "cluster profile") for word in ("nodes", "select", "walltime", "N")),
        ("-r y", "no_effect", "restarts automatically"),
        ("-o 'my log'", "no_effect", "run directory"),
    ],
)
def test_the_rest_of_pbs_is_listed_with_what_to_write(line: str, outcome: str, reason: str) -> None:
    migration = migrated(f"#PBS {line}")
    [*_, account] = [account for account in migration.accounts if account.flag == f"#PBS {line}".replace("'", "")]
    assert account.outcome == outcome
    assert reason in str(account.reason)
