"""Megatron-LM's own trainer beside ours, on the CPU: the same losses from the same script, both ways.

For each kind (`kinds.py`): its script is run by the trainer of a checkout of Megatron-LM (core 0.16.1), and migrated
and run by ours, from the same weights; the trainer's checkpoint is imported with the migrated job and gone on with
here; ours is exported and gone on with there. Ten steps each way, fourteen from the start.

    PYTHONPATH=tests python -m parity.megatron_lm ~/Megatron-LM [--kind gpt --kind experts] [--record] [--folder DIR]

`--record` writes what the trainer did into tests/parity/recorded, which the suite holds ours against without a
checkout. `--folder` keeps what is run, and does not run again what it has. A kind takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from support.training import values

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import dump_resolved, load_job
from parity.kinds import KINDS, SAVED, Kind, write_data
from parity.records import LOGGED, curves, record

Curves = Mapping[str, Mapping[int, float]]
TRAINER = Path(__file__).parent / "trainer.py"
_WITHOUT_A_GPU = ("--no-rope-fusion",)
"""Flags that change how something is computed, and not what: their kernels are Transformer Engine's."""
NEAR = 1e-6
"""Largest relative difference of two losses."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--kind", action="append", choices=KINDS)
    parser.add_argument("--record", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="parity-"))
    failed = []
    for name in options.kind or KINDS:
        try:
            worst = compare(KINDS[name], folder / name, options.checkout.resolve())
        except subprocess.CalledProcessError as error:
            print(f"{name:18} FAILED: {error}\n{error.stderr or ''}")
            failed.append(name)
            continue
        said = ", ".join(f"{way} {difference:.1e}" for way, difference in worst.items())
        print(f"{name:18} {said}", flush=True)
        failed += [name] * (max(worst.values()) > NEAR)
        if options.record:
            record(name, folder / name)
    return 1 if failed else 0


def compare(kind: Kind, folder: Path, checkout: Path) -> dict[str, float]:
    """The largest relative difference of a loss of ours from the trainer's, for each way."""
    prepare(kind, folder)
    theirs = trainer(kind, folder, checkout, "theirs.json", "--save", "checkpoints", *kind.loads)
    begun = ours(folder, "begun", "run", "job.yaml", "--runs-dir", "begun")
    if not (folder / "taken").exists():
        words = ("--iteration", str(SAVED), "--job", "job.yaml", "--runs-dir", "taken", "--json")
        said = json.loads(orchestrator(folder, "checkpoint", "import", "checkpoints", *words))
        assert said["optimizer"], "the optimizer stays behind"
        orchestrator(folder, "resume", said["run"])
    taken = run_in(folder / "taken")
    if not (folder / "exported").exists():
        words = (str(begun.checkpoint(SAVED).relative_to(folder)), "exported", "--to", "megatron-lm")
        orchestrator(folder, "checkpoint", "export", *words)
    back = trainer(kind, folder, checkout, "back.json", "--load", "exported")
    resumed = theirs
    if kind.forgets:
        again = trainer(kind, folder, checkout, "again.json", "--load", "checkpoints", "--ckpt-step", str(SAVED))
        resumed = [*theirs[:SAVED], *again]
    return {
        "from the start": apart(curves(theirs), logged(begun), 0),
        "taken in": apart(curves(theirs), logged(taken), SAVED),
        "given back": apart(curves(resumed), curves(back, SAVED), SAVED),
    }


def prepare(kind: Kind, folder: Path) -> None:
    """The script, the job that is migrated from it, and the data."""
    if (folder / "resolved.json").exists():
        return
    folder.mkdir(parents=True)
    (folder / "pretrain.sh").write_text(kind.script)
    orchestrator(folder, *write_data(kind.program, folder))
    changes = ["tracking.mlflow=false"]
    if kind.program == "pretrain_gpt":
        changes.append("data.tokenizer.type=byte_level")
    if kind.finetunes is not None:
        source = f"../{kind.finetunes}/checkpoints"
        job = f"../{kind.finetunes}/job.yaml"
        orchestrator(folder, "checkpoint", "import", source, "--job", job, "--name", "base", "--runs-dir", "base")
        changes.append(f"checkpoint.pretrained={run_in(folder / 'base').path}")
    options = [f"--set={change}" for change in changes]
    orchestrator(folder, "migrate", "pretrain.sh", "-o", "job.yaml", *options)
    (folder / "resolved.json").write_text(dump_resolved(load_job([folder / "job.yaml"], []).job))


def ours(folder: Path, runs: str, *command: str) -> RunDir:
    """The run that a command makes in a folder of runs, once."""
    if not (folder / runs).exists():
        orchestrator(folder, *command)
    return run_in(folder / runs)


def run_in(runs: Path) -> RunDir:
    """The only run of a folder."""
    [run] = runs.glob("*/*/resolved.json")
    return RunDir(run.parent)


def trainer(kind: Kind, folder: Path, checkout: Path, found: str, *more: str) -> list[dict[str, float]]:
    """The losses of each step of Megatron-LM's trainer, which the file `found` keeps."""
    if (folder / found).exists():
        steps: list[dict[str, float]] = json.loads((folder / found).read_text())
        return steps
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = str(listening.getsockname()[1])
    command = [
        sys.executable,
        str(TRAINER),
        str(checkout),
        kind.program,
        found,
        "resolved.json",
        *kind.words,
        *more,
        *_WITHOUT_A_GPU,
    ]
    env = {
        **os.environ,
        **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(kind.ranks)},
        **{"CUDA_DEVICE_MAX_CONNECTIONS": "1", "TORCHDYNAMO_DISABLE": "1"},
    }
    started = []
    for rank in range(kind.ranks):
        with (folder / f"{found}.{rank}.log").open("w") as log:
            place = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            started.append(subprocess.Popen(command, cwd=folder, env={**env, **place}, stdout=log, stderr=log))
    codes = [each.wait() for each in started]
    if any(codes):
        log = (folder / f"{found}.0.log").read_text()[-3000:]
        raise subprocess.CalledProcessError(max(codes), "Megatron-LM's trainer", stderr=log)
    return trainer(kind, folder, checkout, found)


def orchestrator(folder: Path, *arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "orchestrator", *arguments]
    finished = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if finished.returncode:
        said = finished.stderr + finished.stdout[-3000:]
        raise subprocess.CalledProcessError(finished.returncode, " ".join(arguments), stderr=said)
    return finished.stdout


def logged(run: RunDir) -> dict[str, dict[int, float]]:
    """The losses of ours, by name and iteration."""
    return {key: values(run, key) for key in LOGGED.values()}


def apart(theirs: Curves, ours: Curves, done: int) -> float:
    """The largest relative difference of a loss of theirs after `done` steps."""
    return max(
        abs(ours[key][step] / loss - 1) for key, curve in theirs.items() for step, loss in curve.items() if step > done
    )


if __name__ == "__main__":
    sys.exit(main())
