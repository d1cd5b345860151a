"""Models that were tuned by adapters, out to Hugging Face: merged into the weights, and alone as PEFT has them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from support.faults import CommandLine, Ranks
from support.training import is_completed, layout, logs, make_run, tiny_job

from orchestrator.run_directory.checkpoints.commit_markers import committed, verify
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion import families
from tests.unit.conversion.exported_adapters import exported

pytestmark = [pytest.mark.distributed, pytest.mark.slow("imports nine models, and trains thirteen short runs")]

HERE = Path(__file__).parents[1] / "unit" / "conversion"
QUARTER = {"rank": 4, "alpha": 6.0}
RUNS: dict[str, dict[str, Any]] = {
    "llama3/tp1": {"lora": QUARTER},
    "llama3/tp2": {
        "lora": QUARTER,
        "parallelism": layout(tp=2, sequence_parallel=True),
        "checkpoint": {"save_interval": 4, "export": {"interval": 4}},
    },
    "qwen2/pp2": {"lora": {**QUARTER, "target_modules": ["linear_fc1", "linear_proj"]}, "parallelism": layout(pp=2)},
    "gpt2/tp2": {"lora": {**QUARTER, "target_modules": ["linear_proj", "linear_qkv"]}, "parallelism": layout(tp=2)},
    "mixtral/ep2": {"lora": QUARTER, "parallelism": layout(dp=2, expert_model_parallel_size=2)},
    "glm4-moe/ep2": {"lora": QUARTER, "parallelism": layout(dp=2, expert_model_parallel_size=2)},
    "deepseek-v2-lite/tp2": {"lora": QUARTER, "parallelism": layout(tp=2, sequence_parallel=True)},
    "deepseek-v3/pp2": {"lora": QUARTER, "parallelism": layout(pp=2)},
    "deepseek-v3/some": {"lora": {**QUARTER, "target_modules": ["linear_q_down_proj", "linear_kv_up_proj"]}},
    "qwen3-next/tp2-pp2": {"lora": QUARTER, "parallelism": layout(tp=2, pp=2, sequence_parallel=True)},
    "qwen3-next/some": {"lora": {**QUARTER, "target_modules": ["in_proj"]}},
    "nemotron-h/tp2": {
        "lora": {**QUARTER, "target_modules": ["in_proj", "linear_qkv", "linear_proj", "linear_fc2"]},
        "parallelism": layout(tp=2, sequence_parallel=True),
    },
    "llama3/bf16": {"lora": {"rank": 3, "alpha": 4.5, "lora_dropout": 0.1}, "precision": {"dtype": "bf16"}},
}
"""Of the name of a model, and of a run that tunes it."""


@pytest.fixture(scope="module")
def folder(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imported models, each with the runs that tuned it."""
    folder = tmp_path_factory.mktemp("tuned")
    families.make(folder, *sorted({name.partition("/")[0] for name in RUNS}))
    jobs = [tuning(folder, name, **sections) for name, sections in RUNS.items()]
    stubs = folder / "stubs.py"
    stubs.write_text("from support import mamba_stub\n\nmamba_stub.install()\n")
    for size, is_hybrid in sorted({(job.world_size, job.model.family.is_hybrid) for _, job in jobs}):
        runs = [run for run, job in jobs if (job.world_size, job.model.family.is_hybrid) == (size, is_hybrid)]
        ranks.train_several(runs, size, inject=stubs if is_hybrid else None)
        assert all(is_completed(run, size) for run in runs), "\n".join(map(logs, runs))
    return folder


def tuning(
    folder: Path, name: str, *, lora: dict[str, Any], checkpoint: dict[str, Any] | None = None, **sections: Any
) -> tuple[RunDir, Any]:
    model, _, kind = name.partition("/")
    source = folder / model / "imported"
    if not source.exists():
        (folder / model / "run").rename(source)
    fields = load_resolved(RunDir(source).resolved()).model.model_dump(exclude_unset=True)
    job = tiny_job(
        kind,
        model={**fields, "lora": lora},
        optimizer={"lr": 2e-2},
        schedule={"train_iters": 4, "lr_warmup_iters": 0},
        checkpoint={"pretrained": str(source), **(checkpoint or {})},
        **sections,
    )
    return make_run(folder / model, job), job


@pytest.fixture(scope="module")
def found(ranks: Ranks, folder: Path) -> dict[str, dict[str, Any]]:
    exports = {name: exported(RunDir(folder / name / "run"), folder / Path(name).parent / "theirs") for name in RUNS}
    generated = json.loads(ranks.program(HERE, "adapted_logits_program", folder))
    answer: dict[str, dict[str, Any]] = {name: export | generated[name] for name, export in exports.items()}
    for name in RUNS:  # they are as they were
        assert verify(committed(RunDir(folder / name / "run"))[-1].path) == []
    return answer


@pytest.mark.parametrize("name", RUNS)
def test_the_export_is_the_tuned_model(found: dict[str, dict[str, Any]], name: str) -> None:
    """transformers' logits of it are those of `orchestrator.inference`, and not those of the model it began from; and
    so, token for token, is what both write.
    """
    entry = found[name]
    assert entry["files"] > 1
    assert entry["same"] == [True] * len(entry["same"]) != []
    rounding = 0.2 if name.endswith("bf16") else 1e-5
    assert entry["logits"] < rounding * entry["spread"]
    assert entry["moved"] > 0.1 * entry["spread"]
    assert name.endswith("bf16") or entry["written"]


@pytest.mark.parametrize("name", RUNS)
def test_the_adapter_makes_the_same_model(found: dict[str, dict[str, Any]], name: str) -> None:
    """Its files, computed with as PEFT does, give the weights of the whole export."""
    entry, lora = found[name], RUNS[name]["lora"]
    assert entry["adapter"] < (2e-2 if name.endswith("bf16") else 1e-6)
    assert (entry["config"]["r"], entry["config"]["lora_alpha"]) == (lora["rank"], lora["alpha"])


EVERY = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
TARGETS = {
    "llama3/tp2": EVERY,
    "qwen2/pp2": ["gate_proj", "o_proj", "up_proj"],
    "mixtral/ep2": ["k_proj", "o_proj", "q_proj", "v_proj", "w1", "w2", "w3"],
    "deepseek-v2-lite/tp2": [
        *("down_proj", "gate_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_proj", "up_proj")
    ],
    "deepseek-v3/pp2": [
        *("down_proj", "gate_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "q_a_proj", "q_b_proj", "up_proj")
    ],
    "deepseek-v3/some": ["kv_b_proj", "q_a_proj"],
    "qwen3-next/tp2-pp2": sorted((*EVERY, "in_proj_ba", "in_proj_qkvz", "out_proj")),
    "qwen3-next/some": ["in_proj_ba", "in_proj_qkvz"],
    "nemotron-h/tp2": ["down_proj", "in_proj", "k_proj", "o_proj", "q_proj", "v_proj"],
    "gpt2/tp2": ["attn.c_proj", "c_attn"],  # c_proj alone would be that of the MLP, too
}


@pytest.mark.parametrize("name", TARGETS)
def test_adapter_config(found: dict[str, dict[str, Any]], name: str) -> None:
    config = found[name]["config"]
    assert config["target_modules"] == TARGETS[name]
    assert (config["peft_type"], config["task_type"]) == ("LORA", "CAUSAL_LM")
    assert config["fan_in_fan_out"] is (name == "gpt2/tp2")


def test_an_export_of_the_training_is_the_same(found: dict[str, dict[str, Any]], folder: Path) -> None:
    run = RunDir(folder / "llama3" / "tp2" / "run")
    made, expected = weights_in(run.exports("hf") / "iter_0000004"), weights_in(run.path / "merged")
    assert made.keys() == expected.keys()
    assert all(made[name].equal(expected[name]) for name in expected)


def weights_in(folder: Path) -> dict[str, Any]:
    return {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}


def test_the_command(orchestrator: CommandLine, folder: Path) -> None:
    """A run is exported merged in another format, and its adapter alone; what does not go is refused."""
    run, base = folder / "llama3" / "tp2" / "run", folder / "llama3" / "theirs"

    def refusal(*arguments: str | Path) -> str:
        said = orchestrator("checkpoint", "export", *arguments)
        assert (said.code, said.out) == (2, ""), said.err
        return said.err

    said = orchestrator("checkpoint", "export", run, "out", "--to", "hf", "--dtype", "bf16", "--json")
    assert said.code == 0, said.err
    assert json.loads(said.out)["family"] == "Llama"
    said = orchestrator("checkpoint", "export", run, "alone", "--to", "hf", "--adapter", base)
    assert said.code == 0, said.err
    assert "as adapters over Llama to" in said.out
    alone = orchestrator.folder / "alone"
    assert json.loads((alone / "adapter_config.json").read_text())["base_model_name_or_path"] == str(base)
    weights = load_file(alone / "adapter_model.safetensors")
    first = "base_model.model.model.layers.0.self_attn."
    assert weights[f"{first}q_proj.lora_A.weight"].equal(weights[f"{first}v_proj.lora_A.weight"])
    assert weights[f"{first}k_proj.lora_B.weight"].shape == (16, 4)
    source = folder / "llama3" / "imported"
    assert "the run has no adapters" in refusal(source, "none", "--to", "hf", "--adapter", base)
    assert "go with a whole model" in refusal(run, "none", "--to", "hf", "--adapter", base, "--no-tokenizer")
    assert "go with --to hf" in refusal(run, "none", "--to", "megatron-lm", "--adapter", base)
    assert "which merges them into the weights" in refusal(run, "none", "--to", "megatron-lm")
    assert not (orchestrator.folder / "none").exists()
