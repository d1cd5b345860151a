"""What Megatron-LM's trainer did, as files: written by `megatron_lm.py --record`, read by the suite.

recorded/arguments.json   what the checkpoints' arguments have in common, and of each kind what differs
recorded/KIND.json        the script's flags, losses (a BERT's parts too) and gradient norms of every step, and of the
                          checkpoint after SAVED steps the tensors' shapes, the other objects' keys, and what it says
                          beside them
"""

from __future__ import annotations

import argparse
import importlib
import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from megatron.core.dist_checkpointing.core import CheckpointingConfig, save_config

from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.conversion.tensors.tensor_writer import TensorPart, write_tensors
from orchestrator.run_directory.checkpoints.commit_markers import MEGATRON_TRACKER
from parity.kinds import KINDS, SAVED

FOLDER = Path(__file__).parent / "recorded"
LOGGED = {"loss": "train/loss", "lm loss": "train/loss/lm", "sop loss": "train/loss/order"}
"""Losses by the trainer's name: ours. The last two are parts, which a BERT's has."""
Value = Callable[[str, Sequence[int]], torch.Tensor]
_ARGUMENTS = FOLDER / "arguments.json"


def record(name: str, folder: Path) -> None:
    """Write down a kind that was run in a folder."""
    checkpoint = folder / "checkpoints" / f"iter_{SAVED:07d}"
    stored = StoredWeights(checkpoint)
    common = torch.load(checkpoint / "common.pt", weights_only=False)
    arguments = {key: _to_json(value) for key, value in sorted(vars(common.pop("args")).items())}
    FOLDER.mkdir(exist_ok=True)
    found = {
        "flags": KINDS[name].flags.split(),
        "steps": json.loads((folder / "theirs.json").read_text()),
        "tensors": {key: stored.shape(key) for key in stored.keys()},  # noqa: SIM118 - it is no mapping
        "objects": stored.objects(),
        "common": _to_json(common),
    }
    (FOLDER / f"{name}.json").write_text(json.dumps(found) + "\n")
    known = {kind: arguments_of(kind) for kind in recorded() if kind != name} | {name: arguments}
    shared = {
        key: value
        for key, value in arguments.items()
        if all(key in each and each[key] == value for each in known.values())
    }
    apart = {
        kind: {key: value for key, value in each.items() if key not in shared} for kind, each in sorted(known.items())
    }
    _ARGUMENTS.write_text(json.dumps({"shared": shared, "kinds": apart}, indent=0, sort_keys=True) + "\n")


def recorded() -> list[str]:
    """The kinds whose arguments are known."""
    return sorted(json.loads(_ARGUMENTS.read_text())["kinds"]) if _ARGUMENTS.exists() else []


def arguments_of(name: str) -> dict[str, Any]:
    """The arguments of a kind, as JSON has them."""
    found = json.loads(_ARGUMENTS.read_text())
    return {**found["shared"], **found["kinds"][name]}


def values_of(name: str) -> dict[str, Any]:
    """The arguments of a kind, as a checkpoint has them."""
    return {key: _from_json(value) for key, value in arguments_of(name).items()}


def steps_of(name: str) -> list[dict[str, float]]:
    """Losses and gradient norm of every step."""
    steps: list[dict[str, float]] = json.loads((FOLDER / f"{name}.json").read_text())["steps"]
    return steps


def curves(steps: Sequence[Mapping[str, float]], done: int = 0) -> dict[str, dict[int, float]]:
    """The losses of steps behind `done` others, by our name and iteration."""
    there = {name: key for name, key in LOGGED.items() if name in steps[0]}
    return {key: {step: each[name] for step, each in enumerate(steps, start=done + 1)} for name, key in there.items()}


def write_checkpoint(name: str, folder: Path, value: Value | None = None) -> Path:
    """Make a folder that Megatron-LM saved into, of a kind: all keys, shapes and words are the trainer's, and the
    tensors are `value` (or `value_of`) of their keys and shapes.
    """
    value = value or value_of
    found = json.loads((FOLDER / f"{name}.json").read_text())
    checkpoint = folder / f"iter_{SAVED:07d}"
    checkpoint.mkdir(parents=True)
    parts = [
        TensorPart(key, (), (), tuple(shape), torch.float32, lambda key=key, shape=shape: value(key, shape))
        for key, shape in found["tensors"].items()
    ]
    write_tensors(checkpoint, parts, found["objects"], 1, lambda count: None)
    arguments = argparse.Namespace(**values_of(name))
    torch.save({**_from_json(found["common"]), "args": arguments}, checkpoint / "common.pt")
    save_config(CheckpointingConfig("torch_dist", 1), str(checkpoint))
    (folder / MEGATRON_TRACKER).write_text(str(SAVED))
    return folder


def value_of(key: str, shape: Sequence[int]) -> torch.Tensor:
    """What a tensor of a recorded checkpoint holds; the optimizer's copies are those of the weights,
    and what a T5 has under two keys is the same under both.
    """
    name = key.removeprefix("optimizer.state.param.").removeprefix("embedding.").removeprefix("lm_head.")
    seed = zlib.crc32(name.encode())
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _to_json(value: Any) -> Any:
    """JSON of what a checkpoint says; its classes by name, and keys that are numbers."""
    if isinstance(value, dict):
        return {"dict": [[key, _to_json(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [_to_json(each) for each in value]}
    if isinstance(value, list):
        return [_to_json(each) for each in value]
    if isinstance(value, Enum):
        return {"enum": [type(value).__module__, type(value).__qualname__, value.value]}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    return value


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_json(each) for each in value]
    if not isinstance(value, dict):
        return value
    [(kind, said)] = value.items()
    if kind == "dict":
        return {key: _from_json(each) for key, each in said}
    if kind == "tuple":
        return tuple(map(_from_json, said))
    if kind == "dtype":
        return getattr(torch, said)
    module, name, member = said
    return getattr(importlib.import_module(module), name)(member)
