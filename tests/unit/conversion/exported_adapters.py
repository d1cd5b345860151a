"""Runs with adapters, exported with them in the weights and as PEFT's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.conversion.hugging_face.peft import export_adapter
from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion.families import ids, transformers_alone
from tests.unit.conversion.families import logits as logits_of

NEW = 8
"""Tokens that a model writes behind `ids`."""


@transformers_alone()
def exported(run: RunDir, theirs: Path) -> dict[str, Any]:
    """Both ways, and what transformers and PEFT make of them. Largest differences, in the units of the numbers."""
    checkpoint, job = committed(run)[-1].path, load_resolved(run.resolved())
    merged, alone = run.path / "merged", run.path / "adapter"
    export(checkpoint, job, merged, most_bytes=20_000, dtype=None, tokenizer="no", threads=2)
    export_adapter(checkpoint, job, alone, base=str(theirs), dtype=None)
    base, tuned = _model(theirs), _model(merged)
    found, weights = logits_of(tuned).float(), tuned.state_dict()
    greedy = {"do_sample": False, "max_new_tokens": NEW, "eos_token_id": None, "pad_token_id": 0}
    written = tuned.generate(ids(), attention_mask=torch.ones_like(ids()), **greedy)
    torch.save((found, written[:, -NEW:].tolist()), run.path / "theirs.pt")
    before, spread = logits_of(base).float(), found.std().item()
    config = json.loads((alone / "adapter_config.json").read_text())
    with_adapter = _put_over(base, load_file(alone / "adapter_model.safetensors"), config).state_dict()
    apart = [(with_adapter[name].float() - weight.float()).abs().max().item() for name, weight in weights.items()]
    files = len(list(merged.glob("*.safetensors")))
    moved = (found - before).abs().max().item()
    return {"files": files, "moved": moved, "spread": spread, "adapter": max(apart), "config": config}


def _model(folder: Path) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()


def _put_over(base: Any, adapter: dict[str, torch.Tensor], config: dict[str, Any]) -> Any:
    """What PEFT's merge_and_unload makes of a model, with the choice of modules that its LoRA makes."""
    if base.config.model_type == "nemotron_h":  # its modules have other names than in files
        adapter = {key.replace(".backbone.", ".model."): value for key, value in adapter.items()}
    chosen = 0
    for name, module in base.named_modules():
        if any(name == target or name.endswith(f".{target}") for target in config["target_modules"]):
            a, b = (adapter.pop(f"base_model.model.{name}.lora_{half}.weight") for half in "AB")
            assert a.shape[0] == b.shape[1] == config["r"]
            product = (b.float() @ a.float()) * (config["lora_alpha"] / config["r"])
            with torch.no_grad():
                module.weight += product.t() if config["fan_in_fan_out"] else product
            chosen += 1
        elif hasattr(module, "gate_up_proj"):
            chosen += _put_over_experts(module, name, adapter, config)
    assert chosen
    assert not adapter, f"nothing takes {list(adapter)}"
    return base


def _put_over_experts(experts: Any, name: str, adapter: dict[str, torch.Tensor], config: dict[str, Any]) -> int:
    """The same where transformers holds the matrices of all experts as one tensor: PEFT finds each by its name in
    files, and its place in that tensor.
    """
    folder, names, width = name, ("gate_proj", "up_proj", "down_proj"), experts.gate_up_proj.shape[1] // 2
    if "w1" in config["target_modules"]:
        folder, names = name.replace("mlp.", "block_sparse_moe."), ("w1", "w3", "w2")
    stacked = (experts.gate_up_proj[:, :width], experts.gate_up_proj[:, width:], experts.down_proj)
    places = dict(zip(names, stacked, strict=True))
    chosen = 0
    for target, place in places.items():
        for expert in range(len(place) if target in config["target_modules"] else 0):
            a, b = (adapter.pop(f"base_model.model.{folder}.{expert}.{target}.lora_{half}.weight") for half in "AB")
            with torch.no_grad():
                place[expert] += (b.float() @ a.float()) * (config["lora_alpha"] / config["r"])
            chosen += 1
    return chosen
