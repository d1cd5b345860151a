"""Write the run directories that every later version has to read and to continue:

    PYTHONPATH=$PWD/tests python -m baseline.keep NAME...    runs new ones: those of MAKERS
    PYTHONPATH=$PWD/tests python -m baseline.keep --told     writes anew what the commands tell of those that are there

They stay as the version wrote them that is named in each: a format that changes is added under another name.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from support.commands import Commands, Said
from support.fake_slurm import FakeSlurm
from support.faults import QUICK_TORCHRUN, Ranks, wait_until
from support.held import HOLD

from baseline.continuing import CONTINUED, goes_on, keys_of, stub
from baseline.jobs import make_data, spec_text, write_clusters
from baseline.packing import RUNS, kept, pack, unpack
from baseline.place import place
from baseline.readers import told
from baseline.recording import to_text
from orchestrator.launch.code.code_version import CodeState
from orchestrator.launch.runs import all_runs, create_run
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_job

BAD_STEP_AND_KILL = """
import os, signal, time
from orchestrator.run_directory.checkpoints.commit_markers import committed
import orchestrator.runtime.loop as loop
from orchestrator.runtime.steps.gpt import NextToken
real_step, real_loss = loop.train_step, NextToken.loss
bad = False
def train_step(session):
    global bad
    step = session.state.iteration + 1
    bad = step == 3
    if step == 6 and not committed(session.launch.run)[-1].path.with_name("killed").exists():
        committed(session.launch.run)[-1].path.with_name("killed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if step > 6:  # a request to stop comes through
        time.sleep(1)
    return real_step(session)
def loss(self, output, batch):
    return real_loss(self, output + float("inf") if bad else output, batch)
loop.train_step, NextToken.loss = train_step, loss
"""
HANG = """
import time
import orchestrator.runtime.loop as loop
def train_step(session):
    time.sleep(1000)
loop.train_step = train_step
"""


class Keeper:
    """Makes runs in a folder, by the commands that a person would use."""

    def __init__(self, folder: Path, ranks: Ranks, commands: Commands) -> None:
        self.folder, self.ranks, self.commands = folder, ranks, commands

    def __call__(
        self,
        *words: str,
        code: int = 0,
        inject: str = "",
        path: Path | None = None,
        forked: bool = True,
        **env: str,
    ) -> Said:
        """Run a command, which has to end so. `inject`: what ranks execute first; `path`: where commands are looked for
        first; `forked`: let its programs start fast.
        """
        before = self.folder / "before"
        before.mkdir(exist_ok=True)
        (before / "sitecustomize.py").write_text(f"import os\nif 'RANK' in os.environ:\n    exec({inject!r})\n")
        variables = {**os.environ, **(self.ranks.for_commands(before, QUICK_TORCHRUN) if forked else {}), **env}
        if path is not None:
            variables["PATH"] = f"{path}:{variables['PATH']}"
        said = self.commands(*words, cwd=self.folder, env=variables, timeout=200)
        assert said.code == code, f"{words}: {said.out}{said.err}"
        return said

    def job(self, name: str) -> str:
        """The file of a job."""
        (self.folder / f"{name}.yaml").write_text(spec_text(name, keys_of(name)))
        return f"{name}.yaml"


def simple(keep: Keeper, name: str) -> list[str]:
    """A run that was completed."""
    keep("run", keep.job(name))
    return [f"runs/{name}"]


def exporting(keep: Keeper, name: str) -> list[str]:
    """The same by torchrun itself, whose ranks' exports end with them."""
    keep("run", keep.job(name), forked=False)
    return [f"runs/{name}"]


def hybrid(keep: Keeper, name: str) -> list[str]:
    """The same where the kernels of state space layers are stood in for, which `run` would refuse."""
    path = keep.folder / keep.job(name)
    loaded = load_job([path])
    run = create_run(loaded.job, loaded.text, keep.folder / "runs", CodeState({}, b""))
    keep.ranks.must_train(run, loaded.job, inject=stub(keep.folder))
    return [f"runs/{name}"]


def interrupted(keep: Keeper, name: str) -> list[str]:
    """A step that is skipped, a kill and a restart, a stop by a person, and a hang that ended it."""
    path = keep.job(name)
    with ThreadPoolExecutor(1) as beside:
        stopping = beside.submit(stop_when_held, keep, name)
        keep("run", path, inject=f"{BAD_STEP_AND_KILL}\n{HOLD}", code=1, HOLD_AT="6")
        stopping.result()
    keep("resume", name, inject=HANG, code=1)
    for left in ("held-*-0", "checkpoints/killed"):
        next(keep.folder.glob(f"runs/{name}/*/{left}")).unlink()
    return [f"runs/{name}"]


def stop_when_held(keep: Keeper, name: str) -> None:
    """Cancel a run once it is held."""
    wait_until(lambda: [*keep.folder.glob(f"runs/{name}/*/held-*-0")], f"{name} to be held")
    assert keep.commands("cancel", name, cwd=keep.folder, env=os.environ).code == 0


def sweep(keep: Keeper, name: str) -> list[str]:
    """Two cells, which were run here."""
    keep.job("cells")
    described = {"base": "cells.yaml", "sweep": {"name": name, "grid": {"optimizer.lr": [1e-3, 2e-3]}}}
    (keep.folder / "sweep.yaml").write_text(yaml.safe_dump(described))
    before = set((keep.folder / "runs").iterdir()) if (keep.folder / "runs").exists() else set()
    keep("sweep", "run", "sweep.yaml", "--local")
    return sorted(f"runs/{path.name}" for path in set((keep.folder / "runs").iterdir()) - before)


def withdrawn(keep: Keeper, name: str) -> list[str]:
    """A run that was submitted to a cluster, and cancelled while it waited there."""
    slurm = FakeSlurm(keep.folder / "slurm")
    slurm.says("sbatch", out="4711\n")
    slurm.says("squeue", out="4711|PENDING|0|0|1795191066|1795191072|1795194672||Priority|\n")
    slurm.says("sacct")
    slurm.says("scancel")
    keep("submit", keep.job(name), "--cluster", "lab", path=slurm.bin)
    keep("cancel", name, path=slurm.bin)
    return [f"runs/{name}"]


def imported(keep: Keeper, name: str) -> list[str]:
    """Weights of a Hugging Face model, as a run."""
    if not (keep.folder / "runs" / "gpt").exists():
        simple(keep, "gpt")
    keep("checkpoint", "export", "gpt", "--to", "hf", "--no-tokenizer", "-o", "hf")
    keep("checkpoint", "import", "hf", "--name", name)
    return [f"runs/{name}"]


def reshaped(keep: Keeper, name: str) -> list[str]:
    """A checkpoint that was written anew for another layout."""
    if not (keep.folder / "runs" / "gpt").exists():
        simple(keep, "gpt")
    alone = {key: value for key, value in keys_of("gpt").items() if not key.startswith("parallelism.")}
    (keep.folder / "to.yaml").write_text(spec_text(name, alone))
    before = set((keep.folder / "runs").rglob("resolved.json"))
    keep("checkpoint", "reshape", "gpt", "--to", "to.yaml", "--allow-changes")
    [made] = set((keep.folder / "runs").rglob("resolved.json")) - before
    return [made.parent.relative_to(keep.folder).as_posix()]


MAKERS: Mapping[str, Callable[[Keeper, str], list[str]]] = {
    **dict.fromkeys(("gpt", "experts", "bert", "t5", "vision", "lora"), simple),
    **{"dp": exporting, "hybrid": hybrid, "interrupted": interrupted, "sweep": sweep, "withdrawn": withdrawn},
    **{"imported": imported, "reshaped": reshaped},
}


def latest(folder: Path, name: str) -> RunDir:
    """The last run of a name."""
    return [run for run in all_runs(folder / "runs") if run.name == name][-1]


def main(names: Sequence[str]) -> int:
    """Make the runs that are named, and have each go on; or read anew those that are there."""
    RUNS.mkdir(exist_ok=True)
    if names == ["--told"]:
        for path in sorted(RUNS.glob("*.json")):
            packed = kept(path.stem)
            path.write_text(to_text({**packed, "told": told_of(packed)}) + "\n")
        return 0
    last = ["git", "log", "-1", "--format=%H", "--", "orchestrator"]
    commit = subprocess.run(last, capture_output=True, text=True, check=True).stdout.strip()
    with place() as (folder, ranks):
        make_data(folder / "data")
        write_clusters(folder)
        commands = Commands()
        keep = Keeper(folder, ranks, commands)
        for name in names:
            packed: dict[str, Any] = {
                "commit": commit,
                "versions": {package: version(package) for package in ("torch", "megatron-core")},
                "folders": MAKERS[name](keep, name),
            }
            packed |= pack(folder, packed["folders"])
            packed["told"] = told_of(packed)
            if name in CONTINUED:
                packed["continued"] = goes_on(name, latest(folder, name), commands, ranks, folder)
            (RUNS / f"{name}.json").write_text(to_text(packed) + "\n")
            print(name, f"{(RUNS / f'{name}.json').stat().st_size / 1024:.0f} KiB", flush=True)
        commands.close()
    return 0


def told_of(packed: Mapping[str, Any]) -> dict[str, Any]:
    """What the commands tell of a packed run."""
    with TemporaryDirectory() as elsewhere:
        folder = Path(elsewhere).resolve()
        unpack(packed, folder)
        return told(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
