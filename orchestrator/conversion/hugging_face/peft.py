"""The adapters of a checkpoint alone, in the format of PEFT, which puts them beside the weights of a model of
transformers.

    adapter_config.json
    adapter_model.safetensors       of each matrix lora_A [r, in] and lora_B [out, r]

Matrices that are one here and several there share what is A here: each has a copy of it, and its rows of B.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from orchestrator.conversion.hugging_face.adapters import Adapter, adapter_of
from orchestrator.conversion.hugging_face.families.registry import family_of_checkpoint
from orchestrator.conversion.hugging_face.hf_export import narrowed, require_stored
from orchestrator.conversion.hugging_face.transforms import TRANSFORMS
from orchestrator.conversion.staging import drafted, require_free, require_room
from orchestrator.conversion.tensors.names import ADAPTER
from orchestrator.conversion.tensors.shards import Entry, ShardFiles
from orchestrator.conversion.tensors.stored_weights import StoredWeights
from orchestrator.conversion.weight_mapping import Family, Weight, stack_of
from orchestrator.errors import UserError
from orchestrator.models.blocks.registry import STATE_SPACE
from orchestrator.spec.job import JobSpec
from orchestrator.spec.lora import LoraSpec
from orchestrator.spec.model import ModelSpec

CONFIG = "adapter_config.json"
_PREFIX = "base_model.model."
_WEIGHT = ".weight"
_TRANSPOSED = ("transposed", "transposed_qkv")


def export_adapter(
    checkpoint: Path, job: JobSpec, target: Path, *, base: str, dtype: torch.dtype | None
) -> dict[str, Any]:
    """Write the folder `target`, which appears when it is whole: adapters over the model `base`, a folder's path or a
    name that transformers knows. Says what was written.

    Raises UserError when the job has no adapters, when its model is of no family, or `target` exists; CheckpointError
    when the checkpoint does not fit its spec; JobError when there is no room for it.
    """
    model = job.model
    if not model.has_adapters:
        raise UserError(
            "the run has no adapters (model.lora): leave out --adapter to export the whole model", code="no_adapters"
        )
    family = family_of_checkpoint(checkpoint, job)
    adapters = [
        (weight, adapter) for weight in family.weights(model) if (adapter := adapter_of(weight.rule, model)) is not None
    ]
    stacked = next((weight.theirs[0] for weight, _ in adapters if weight.rule.stacked), None)
    if stacked is not None:
        raise UserError(
            f"{family.name} has all experts of a layer in one tensor ({stacked}), and PEFT has no adapter for each: "
            "leave out --adapter to export the whole model",
            code="adapters_of_packed_experts",
        )
    behind = [weight for weight, _ in adapters if weight.rule.only_in == STATE_SPACE.name and not weight.rule.parts]
    if behind:
        raise UserError(
            f"PEFT refuses adapters beside {behind[0].theirs[0]}, which kernels of Mamba-2 read themselves: leave out "
            "--adapter to export the whole model, or train without out_proj in model.lora.target_modules",
            code="adapters_behind_a_scan",
        )
    require_free(target)
    source = _Source(StoredWeights(checkpoint), model, dtype)
    entries = [entry for weight, adapter in adapters for entry in source.entries(weight, adapter)]
    require_room(target, sum(entry.bytes for entry in entries))
    with drafted(target) as draft:
        with ShardFiles(draft, [entries], single=ADAPTER) as file:
            for weight, adapter in adapters:
                for name, tensor in source.tensors(weight, adapter):
                    file.write(name, tensor)
            file.finish()
        config = to_adapter_config(model.adapters, family, model, base)
        (draft / CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    files = list(target.iterdir())
    size = sum(file.stat().st_size for file in files)
    said = {"path": str(target), "family": f"adapters over {family.name}", "files": len(files), "bytes": size}
    return {**said, "tokenizer_left_out": None}


@dataclass(frozen=True)
class _Source:
    """Adapters of a checkpoint. `dtype` is what is written; None: as they are stored."""

    weights: StoredWeights
    model: ModelSpec
    dtype: torch.dtype | None

    def entries(self, weight: Weight, adapter: Adapter) -> list[Entry]:
        """What will be written. Raises CheckpointError when the checkpoint does not hold the adapter."""
        for key, shape in adapter.shapes.items():
            require_stored(self.weights, key, (*weight.within, *shape))
        dtype = self.dtype or self.weights.dtype(adapter.a)
        empty = {key: torch.empty(shape, dtype=dtype, device="meta") for key, shape in adapter.shapes.items()}
        a, b = empty[adapter.a], torch.cat([empty[key] for key in adapter.b])
        return [Entry(name, tuple(tensor.shape), dtype) for name, tensor in self._parts(weight, a, b)]

    def tensors(self, weight: Weight, adapter: Adapter) -> Iterator[tuple[str, torch.Tensor]]:
        """Raises UserError when a number is too large for the format that was asked for."""
        dtype = self.dtype or self.weights.dtype(adapter.a)
        a, b = (narrowed(each, dtype, weight.theirs[0]) for each in adapter.read(self.weights, weight.place))
        return self._parts(weight, a, b)

    def _parts(self, weight: Weight, a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
        """With their names: PEFT's matrices lie as ours do, whichever way a model's own lie."""
        parts = TRANSFORMS[weight.rule.transform].to_theirs(b, self.model, 0)
        for name, part in zip(weight.theirs, parts, strict=True):
            module = _PREFIX + name.removesuffix(_WEIGHT)
            yield f"{module}.lora_A{_WEIGHT}", a
            yield f"{module}.lora_B{_WEIGHT}", part.t() if weight.rule.transform in _TRANSPOSED else part


def to_adapter_config(lora: LoraSpec, family: Family, model: ModelSpec, base: str) -> dict[str, Any]:
    """What adapter_config.json says."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": lora.rank,
        "lora_alpha": int(lora.alpha) if lora.alpha.is_integer() else lora.alpha,
        "lora_dropout": lora.lora_dropout,
        "target_modules": _target_modules(family, model),
        "fan_in_fan_out": any(
            rule.transform in _TRANSPOSED for rule in family.rules if adapter_of(rule, model) is not None
        ),
        "bias": "none",
        "inference_mode": True,
    }


def _target_modules(family: Family, model: ModelSpec) -> list[str]:
    """The ends of the names of the matrices that have adapters: the last part, where no other matrix's ends so."""
    having, others = set(), set()
    for rule in family.rules:
        modules = {name.removesuffix(_WEIGHT) for name in rule.theirs if name.endswith(_WEIGHT)}
        if adapter_of(rule, model) is not None:
            having |= modules
        elif stack_of(rule.ours):
            others |= {_end(module, 1) for module in modules}
    return sorted({_end(module, 2 if _end(module, 1) in others else 1) for module in having})


def _end(module: str, parts: int) -> str:
    return ".".join(module.split(".")[-parts:])
