"""What blocks are made of is said in their folders: who reads their fields elsewhere, and why."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from orchestrator.models.blocks.registry import BLOCKS

ROOT = Path(__file__).resolve().parent.parent
# Blocks whose fields every model has: their names are read everywhere.
_IN_EVERY_MODEL = ("grouped_query_attention", "mlp", "residual_stream")
_ABOUT_MODELS = ("models/", "conversion/hugging_face/")
_SETTING = "megatron-core's configuration, which has a setting of that name"
# Files outside `models/` that read or name fields of other blocks, and why.
READS_FIELDS_OF_BLOCKS = {
    "cli/models/hugging_face.py": "the option --mtp writes it",
    "conversion/megatron/arguments.py": "arguments of Megatron-LM's checkpoints",
    "conversion/megatron/checkpoint_keys.py": "keys of Megatron-LM's checkpoints",
    "dashboard/report/runs.py": "key facts of a run",
    "kernel_selection/experts.py": "which kernels compute experts",
    "kernel_selection/layers.py": "which layers have these kernels",
    "migration/defaults.py": "fields that are about speed alone",
    "planning/checks/unusual_values.py": "a warning about a default",
    "runtime/bench/setup.py": _SETTING,
    "runtime/checkpointing/upcycling.py": "which weights a dense job would have",
    "runtime/families/multi_token_prediction.py": _SETTING,
    "runtime/layers/config.py": _SETTING,
    "runtime/layers/expert_kernels.py": _SETTING,
    "runtime/layers/transformer_engine_layers.py": _SETTING,
    "runtime/steps/gpt.py": _SETTING,
    "spec/pretrained.py": "weights that may be new",
    "spec/rules/kernels/quantization.py": "the sides of quantized matrices",
    "spec/rules/parallelism/stages.py": "the field that a problem points at",
}
# How often files outside `models/` that have no `expert` in their names ask whether a model has some, and why.
ASKS_FOR_EXPERTS = {
    "conversion/megatron/optimizer.py": (1, "Megatron-LM's optimizer of experts"),
    "kernel_selection/fused_kernels.py": (2, "megatron-core has no such kernels inside experts"),
    "kernel_selection/layers.py": (1, "torch's layers multiply one expert after the other"),
    "migration/flag_groups/activation.py": (1, "what Megatron-LM's flags mean with --num-experts"),
    "planning/parameters/layer.py": (1, "to add up nothing takes a tenth of a dense model's estimate"),
    "planning/plan.py": (1, "a note on published measurements"),
    "planning/suggestions/axes.py": (1, "the degree that spreads experts"),
    "planning/time/kernels/accesses.py": (1, "kernels of experts"),
    "runtime/checkpointing/parallel_layout.py": (1, "the degrees that spread experts"),
    "spec/pretrained.py": (3, "dense weights that experts begin with"),
    "spec/rules/kernels/quantization.py": (2, "a problem that points at them, and the sides of their matrices"),
    "spec/rules/parallelism/fully_sharded.py": (1, "a problem that points at them"),
}


def _fields_of_blocks() -> set[str]:
    sections = [getattr(block.part("fields"), block.declares) for block in BLOCKS if block.name not in _IN_EVERY_MODEL]
    return {name for section in sections for name in section.model_fields}


def test_fields_of_a_block_are_read_in_its_folder() -> None:
    """Others ask a question that every block answers, or a trait such as `has_experts`. What only converts to other
    tools' names (`conversion/hugging_face/`) has tables of fields.
    """
    package, fields = ROOT / "orchestrator", _fields_of_blocks()
    named = re.compile(rf"\b({'|'.join(fields)})\b")
    found = set()
    for path in package.rglob("*.py"):
        name, text = path.relative_to(package).as_posix(), path.read_text()
        if not name.startswith(_ABOUT_MODELS) and named.search(text):
            nodes = list(ast.walk(ast.parse(text)))
            words = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
            words |= {str(node.value).removeprefix("model.") for node in nodes if isinstance(node, ast.Constant)}
            found |= {name} if words & fields else set()
    assert found == {name for name, reason in READS_FIELDS_OF_BLOCKS.items() if reason}


def test_what_is_done_for_experts_is_asked_of_blocks() -> None:
    """What models with some block do otherwise, a trait or method of `Block` says, or the `rules_out` of a feature."""
    package, found = ROOT / "orchestrator", {}
    for path in package.rglob("*.py"):
        name, count = path.relative_to(package).as_posix(), len(re.findall(r"\bmodel\.has_experts\b", path.read_text()))
        if count and "expert" not in name and not name.startswith(_ABOUT_MODELS):
            found[name] = count
    assert found == {name: count for name, (count, reason) in ASKS_FOR_EXPERTS.items() if reason}


def test_a_network_is_configured_without_fields_of_blocks() -> None:
    """What layers need to know of a block's fields, its own `settings` say."""
    sections = [getattr(block.part("fields"), block.declares) for block in BLOCKS]
    fields = {name for section in sections for name in vars(section) if name[0] != "_"} - {"model_config"}
    fields |= {name for section in sections for name in section.model_fields}
    assert {"qk_layernorm", "head_dim", "moe_router_topk", "has_experts"} <= fields
    tree = ast.parse((ROOT / "orchestrator" / "runtime" / "network" / "model.py").read_text())
    assert {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)} & fields == set()
