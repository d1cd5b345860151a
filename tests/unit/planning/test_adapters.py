"""Low-rank adapters in the arithmetic of a job, and what they do not go with."""

from __future__ import annotations

from typing import Any

import pytest
from support.problems import codes
from support.this_machine import Libraries

from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.kernel_selection.layers import layers_there
from orchestrator.models.blocks.base import Degrees
from orchestrator.planning.estimates import machine_of
from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.hardware import shipped
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.adapters import adapter_parameters
from orchestrator.planning.parameters.trainable import (
    trained_expert_parameters,
    trained_in_all,
    trained_parameters,
)
from orchestrator.planning.time import StepTime, estimate_time
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules import check
from orchestrator.spec.schema.canonical import config_hash

WIDE = {"num_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "seq_length": 32, "vocab_size": 300}


def test_parameters_are_those_of_the_published_formula(make_job: Any) -> None:
    """r · (in + out) for each matrix; q, k and v are one, and so are both halves of a gate."""
    model = {**WIDE, "num_query_groups": 2, "activation": "swiglu", "ffn_hidden_size": 512}
    lora = {"rank": 8, "target_modules": ["linear_qkv", "linear_fc1"]}
    job = make_job(model={**model, "lora": lora})
    each = 8 * (256 + 256 + 2 * 2 * 32) + 8 * (256 + 2 * 512)
    assert adapter_parameters(job.model, Degrees()) == each
    assert parameters(job, 384).total == parameters(make_job(model=model), 384).total + 4 * each


LATENT = {
    **{**WIDE, "add_bias_linear": False, "ffn_hidden_size": 512, "kv_lora_rank": 48, "q_lora_rank": 96},
    **{"qk_head_dim": 32, "qk_pos_emb_head_dim": 16, "v_head_dim": 24},
}
DELTA = {
    **{**WIDE, "add_bias_linear": False, "ffn_hidden_size": 512, "linear_attention_freq": [1, 1, 0, 1]},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 24, "linear_value_head_dim": 40},
}
HYBRID = {
    **{**WIDE, "architecture": "mamba", "hybrid_override_pattern": "M-*M", "add_bias_linear": False},
    **{"ffn_hidden_size": 512, "mamba_state_dim": 16, "mamba_head_dim": 32, "mamba_num_groups": 2},
}
MLP = 2 * (256 + 512)
QUERIES, KEYS, HEADS = (256 + 96) + (96 + 8 * 48), (256 + 48 + 16) + (48 + 8 * 56), 8 * 24 + 256
PROJECTED = 2 * 512 + 2 * 2 * 16 + 16
IN, OUT, ATTENTION = 256 + 2 * 48 + 2 * 160 + 2 * 4, 160 + 256, (256 + 3 * 256) + 2 * 256


def test_matrices_of_each_block_have_adapters(make_job: Any) -> None:
    """r · (in + out) by default for every matrix of every layer: to and from latents, to and behind states."""
    for model, expected in (
        (LATENT, 4 * (QUERIES + KEYS + HEADS + MLP)),
        ({**LATENT, "q_lora_rank": None}, 4 * (256 + 8 * 48 + KEYS + HEADS + MLP)),
        (DELTA, 3 * (IN + OUT) + ATTENTION + 4 * MLP),
        (HYBRID, 2 * (256 + PROJECTED + 512 + 256) + ATTENTION + MLP),
    ):
        job, bare = make_job(model={**model, "lora": {"rank": 8}}), make_job(model=model)
        assert parameters(job, 384).total == parameters(bare, 384).total + 8 * expected
        assert trained_in_all(job, 0) == 8 * expected


def test_ranks_hold_adapters_of_latents_whole(make_job: Any) -> None:
    """Beside a matrix that each has whole, and of all others the wide side's share."""
    lora = {"rank": 8, "target_modules": ["linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"]}
    job = make_job(model={**LATENT, "lora": lora}, parallelism={"tensor_model_parallel_size": 4})
    each = 256 + 48 + 16 + 48 + 8 * 56 // 4 + 8 * 24 // 4 + 256
    assert trained_parameters(job, (0,)) == (4 * 8 * each,)
    stages = {"pipeline_model_parallel_size": 2, "tensor_model_parallel_size": 2}
    job = make_job(model={**DELTA, "lora": {"rank": 8}}, parallelism=stages)
    of_linear = 256 + (IN - 256) // 2 + 160 // 2 + 256
    of_attention = 256 + 3 * 256 // 2 + 256 // 2 + 256
    of_mlp = 2 * (256 + 512 // 2)
    assert trained_parameters(job, (0, 0)) == (
        8 * 2 * (of_linear + of_mlp),
        8 * (of_linear + of_attention + 2 * of_mlp),
    )


def test_every_expert_has_adapters(make_job: Any) -> None:
    """r · (in + out) for each matrix of each expert, and of the shared one; ranks that hold other experts hold theirs,
    and those that split an expert split the wide axis.
    """
    experts = {"num_experts": 8, "moe_ffn_hidden_size": 96, "moe_shared_expert_intermediate_size": 64}
    model = {**WIDE, **experts, "add_bias_linear": False, "activation": "swiglu", "moe_layer_freq": [0, 1, 1, 1]}
    lora = {"rank": 8, "target_modules": ["linear_fc1", "linear_fc2"]}
    job = make_job(model={**model, "ffn_hidden_size": 512, "lora": lora})

    def of_mlp(ffn: int, tp: int = 1) -> int:
        return 8 * (256 + 2 * ffn // tp) + 8 * (ffn // tp + 256)

    whole = of_mlp(512) + 3 * (8 * of_mlp(96) + of_mlp(64))
    bare = parameters(make_job(model={**model, "ffn_hidden_size": 512}), 384)
    assert parameters(job, 384).total == bare.total + whole == bare.total + trained_in_all(job, 0)
    assert parameters(job, 384).inactive == bare.inactive + 3 * 6 * of_mlp(96)
    spread = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "expert_model_parallel_size": 2}
    job = make_job(
        model={**model, "ffn_hidden_size": 512, "lora": lora}, parallelism=spread | {"data_parallel_size": 2}
    )
    assert trained_expert_parameters(job, (0,)) == (3 * 4 * of_mlp(96, 2),)
    assert trained_parameters(job, (0,)) == (of_mlp(512, 2) + 3 * (4 * of_mlp(96, 2) + of_mlp(64, 2)),)


def test_frozen_weights_take_no_memory_beside_their_own(make_job: Any) -> None:
    whole = estimate_memory(make_job(model=WIDE), 384, "torch").stages[0].parts
    job = make_job(model={**WIDE, "lora": {"rank": 4}})
    adapted = estimate_memory(job, 384, "torch").stages[0].parts
    share = 4 * adapter_parameters(job.model, Degrees()) / parameters(job, 384).total
    assert whole["weights"] < adapted["weights"] < 1.1 * whole["weights"]
    for part in ("gradients", "optimizer"):
        assert adapted[part] == pytest.approx(share * whole[part] / (1 - share), rel=0.01)


def test_the_state_of_experts_adapters_is_shared_out_as_experts_are(make_job: Any) -> None:
    """Of DP 4 and EP 4 each rank holds other experts: their adapters' state is its own, all other state a quarter."""
    model = {**WIDE, "num_experts": 8, "add_bias_linear": False, "lora": {"rank": 4}}
    job = make_job(model=model, parallelism={"data_parallel_size": 4, "expert_model_parallel_size": 4})
    [trained], [experts] = trained_parameters(job, (0,)), trained_expert_parameters(job, (0,))
    parts = estimate_memory(job, 384, "torch").stages[0].parts
    per_parameter = parts["gradients"] // trained * 2 + (4 if job.precision.dtype != "fp32" else 0)
    assert parts["optimizer"] == pytest.approx(per_parameter * ((trained - experts) / 4 + experts), rel=1e-3)


def flops(job: JobSpec) -> float:
    return model_flops(job, 1, 384)


def test_flops_are_those_of_what_is_trained(make_job: Any) -> None:
    """Per token: 4 for each frozen weight, 6 for each of an adapter's, less what lies before the first adapter."""
    qkv, proj, mlp, table, scores = 3 * 256**2, 256**2, 4 * 256**2, 384 * 256, 256 * 32
    frozen = 4 * (4 * (qkv + proj + 2 * mlp) + table) + 4 * 12 * scores
    for modules, adapters, unneeded in (
        (["linear_qkv"], 256 + 3 * 256, 2 * (qkv + 8 * 256)),
        (["linear_fc1", "linear_fc2"], 2 * (256 + 1024), 2 * (qkv + proj + mlp + 8 * 256) + 8 * scores),
    ):
        job = make_job(model={**WIDE, "lora": {"rank": 8, "target_modules": modules}})
        assert flops(job) == frozen + 6 * 4 * 8 * adapters - unneeded
        assert "a parameters of a layer's adapters" in formula(job)


def test_flops_before_the_first_adapter_are_not_counted(make_job: Any) -> None:
    """Of layers before it neither gradients of inputs, nor those of scores and states. Of a linear layer a state's
    arithmetic is three times that of its forward pass.
    """
    projections, out, mlp, qkv, proj = 256 * (IN - 256), 160 * 256, 2 * 256 * 512, 3 * 256**2, 256**2
    state, scores = 8 * 160 * 24 + 2 * 4 * (2 * 48 + 160), 256 * 32
    linear, full = 4 * (projections + out + mlp) + 3 * state, 4 * (qkv + proj + mlp) + 12 * scores
    whole = 3 * linear + full + 4 * 384 * 256
    before = 2 * (2 * (projections + out + mlp) + 2 * state)
    for modules, adapters, unneeded in (
        (["in_proj"], 3 * IN, 2 * (projections + 8 * 256)),
        (["out_proj"], 3 * OUT, 2 * (projections + out + 8 * 160) + 2 * state),
        (["linear_qkv"], 4 * 256, before + 2 * (qkv + 8 * 256)),
        (["linear_proj"], 2 * 256, before + 2 * (qkv + proj + 8 * 256) + 8 * scores),
    ):
        job = make_job(model={**DELTA, "lora": {"rank": 8, "target_modules": modules}})
        assert flops(job) == whole + 6 * 8 * adapters - unneeded, modules
    assert "linear attention" in formula(job)
    whole = 2 * (4 * (256 * PROJECTED + 512 * 256) + 3 * 7 * 512 * 16) + 4 * (mlp + qkv + proj) + 12 * scores
    job = make_job(model={**HYBRID, "lora": {"rank": 8, "target_modules": ["linear_fc2"]}})
    before = 2 * (256 * PROJECTED + 512 * 256) + 2 * 7 * 512 * 16 + 2 * (mlp + 8 * 512)
    assert flops(job) == whole + 4 * 384 * 256 + 6 * 8 * (512 + 256) - before
    assert "state space" in formula(job)
    assert "latent attention" in formula(make_job(model={**LATENT, "lora": {"rank": 8}}))


LARGE = {"num_layers": 16, "hidden_size": 4096, "num_attention_heads": 32, "seq_length": 4096, "activation": "swiglu"}


def estimate(make_job: Any, lora: dict[str, Any] | None, **sections: Any) -> StepTime:
    model = {**LARGE, **({"lora": lora} if lora else {})}
    batch = {"micro_batch_size": 1, "global_batch_size": 64}
    job = make_job(model=model, batch=batch, precision={"dtype": "bf16"}, **sections)
    device = shipped("H100")
    assert device is not None
    return estimate_time(job, 32000, "torch", device)


def test_time_is_that_of_what_is_trained(make_job: Any) -> None:
    """Two of three products; hardly an optimizer and hardly gradients to reduce; a wider adapter takes longer."""
    spread = {"parallelism": {"overlap_grad_reduce": False}, "launch": {"gpus_per_node": 8}}
    whole, adapted = estimate(make_job, None, **spread), estimate(make_job, {"rank": 16}, **spread)
    assert 0.66 < adapted.parts["gemm"] / whole.parts["gemm"] < 0.8  # narrow products fill few processors
    assert adapted.parts["attention"] == whole.parts["attention"]
    assert adapted.parts["loss"] < whole.parts["loss"]
    assert adapted.parts["data_parallel"] < 0.05 * whole.parts["data_parallel"]
    assert adapted.parts["optimizer"] < 0.5 * whole.parts["optimizer"]  # what is left is the starting of kernels
    assert 0.66 < adapted.model_flops / whole.model_flops < 0.72  # attention, a seventh of it, stays whole
    assert 0.5 * whole.tflops_per_gpu < adapted.tflops_per_gpu < whole.tflops_per_gpu
    wide, one = estimate(make_job, {"rank": 256}, **spread), ["linear_proj"]
    assert wide.step_seconds > adapted.step_seconds
    assert estimate(make_job, {"rank": 16, "target_modules": one}, **spread).step_seconds < adapted.step_seconds


def test_time_of_experts_with_adapters(make_job: Any) -> None:
    """Frozen experts have no gradients of weights; their adapters' kernels are those of every expert of a rank."""
    device = shipped("H100")
    assert device is not None
    experts = {**LARGE, "num_experts": 8, "add_bias_linear": False, "moe_ffn_hidden_size": 4096}
    fcs = {"lora": {"rank": 16, "target_modules": ["linear_fc1", "linear_fc2"]}}
    both = {"lora": {"rank": 16, "target_modules": ["linear_fc1"]}}
    spread = {"parallelism": {"data_parallel_size": 2, "expert_model_parallel_size": 2}}
    jobs = [make_job(model={**experts, **each}, precision={"dtype": "bf16"}, **spread) for each in ({}, both, fcs)]
    whole, one, adapted = (estimate_time(job, 32000, "torch", device) for job in jobs)
    assert 0.6 < adapted.parts["gemm"] / whole.parts["gemm"] < 0.8
    assert one.parts["gemm"] < adapted.parts["gemm"]
    assert adapted.parts["expert_parallel"] == whole.parts["expert_parallel"]
    assert adapted.parts["data_parallel"] < 0.1 * whole.parts["data_parallel"]
    assert 0.6 < adapted.model_flops / whole.model_flops < 0.72


@pytest.mark.parametrize(
    "block",
    [LATENT, {**DELTA, "linear_attention_freq": 2}, {**HYBRID, "hybrid_override_pattern": "M-*-" * 4}],
    ids=["latents", "states", "hybrid"],
)
def test_time_and_memory_of_each_block_with_adapters(make_job: Any, block: dict[str, Any]) -> None:
    """Two of three products of matrices that are frozen, of those that no rank splits too; and hardly a gradient."""
    device = shipped("H100")
    assert device is not None
    wide = {**block, **{name: LARGE[name] for name in ("num_layers", "hidden_size", "seq_length")}}
    wide |= {"ffn_hidden_size": 8192, **({"kv_lora_rank": 2048, "q_lora_rank": 2048} if block is LATENT else {})}
    spread = {
        "parallelism": {"tensor_model_parallel_size": 2, "sequence_parallel": True},
        "precision": {"dtype": "bf16"},
    }
    jobs = [make_job(model={**wide, **lora}, **spread) for lora in ({}, {"lora": {"rank": 16}})]
    whole, adapted = (estimate_time(job, 32000, "torch", device) for job in jobs)
    assert 0.6 < adapted.parts["gemm"] / whole.parts["gemm"] < 0.85
    assert adapted.parts["optimizer"] < 0.5 * whole.parts["optimizer"]
    memory, less = (estimate_memory(job, 32000, "torch").stages[0].parts for job in jobs)
    assert less["optimizer"] < 0.05 * memory["optimizer"]
    assert memory["weights"] < less["weights"] < 1.1 * memory["weights"]


def test_adapters_slow_a_small_model_down(make_job: Any) -> None:
    """The host starts more kernels for them than frozen weights save."""
    device, modules = shipped("H100"), ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
    assert device is not None
    adapters: list[dict[str, Any]] = [{}, *({"lora": {"rank": 4, "target_modules": modules[:n]}} for n in (2, 4))]
    jobs = [make_job(model={**WIDE, **lora}) for lora in adapters]
    whole, some, all_ = (estimate_time(job, 384, "torch", device).step_seconds for job in jobs)
    assert whole < some
    started = jobs[0].num_micro_batches * 4 * 2 * (4 + 8) * 4 * device.efficiency.launch
    optimizer = 4 * 2 * 2 * device.efficiency.launch
    assert all_ - some == pytest.approx(started + optimizer, rel=0.02)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_time_under_tensor_parallelism(make_job: Any, sequence_parallel: bool) -> None:
    """A frozen matrix's collectives have no gradient of a weight to hide behind, and adapters have their own."""
    degrees = {"tensor_model_parallel_size": 4, "sequence_parallel": sequence_parallel}
    spread = {"parallelism": degrees, "launch": {"gpus_per_node": 8}}
    whole, adapted = estimate(make_job, None, **spread), estimate(make_job, {"rank": 16}, **spread)
    assert adapted.parts["tensor_parallel"] > whole.parts["tensor_parallel"]
    assert adapted.parts["gemm"] < whole.parts["gemm"]
    assert sum(adapted.parts.values()) == pytest.approx(adapted.step_seconds)


def test_it_is_planned_with_the_layers_that_take_adapters(make_job: Any, libraries: Libraries) -> None:
    """Torch's, wherever Transformer Engine is installed."""
    device = shipped("H100")
    assert device is not None
    libraries.there("transformer_engine")
    assert layers_there(make_job(), machine_of(device))[0] == "transformer_engine"
    assert layers_there(make_job(model={"lora": {"rank": 8}}), machine_of(device))[0] == "torch"


EXPERTS = {"num_experts": 4, "add_bias_linear": False}
BIASED = {**EXPERTS, "moe_router_score_function": "sigmoid", "moe_router_enable_expert_bias": True}
TWICE = ["linear_fc1", "linear_fc1"]
REFUSED: list[tuple[dict[str, dict[str, Any]], list[str]]] = [
    (
        {"model": {"lora": {}}, "data": {"blend": [{"path": "a"}], "random_tokens": False}},
        ["adapted_weights model.lora"],
    ),
    ({"model": {"lora": {}}, "runtime": {"layers": "transformer_engine"}}, ["adapted_layers runtime.layers"]),
    ({"model": {"lora": {"rank": 65}}}, ["adapters_narrower_than_layers model.lora.rank"]),
    ({"model": {"lora": {"target_modules": TWICE}}}, ["each_adapter_once model.lora.target_modules"]),
    ({"model": {"architecture": "mamba", "mamba_num_groups": 1, "lora": {}}}, []),
    ({"model": {"architecture": "bert", "lora": {}}}, ["adapted_model model.lora"]),
    ({"model": {**BIASED, "lora": {}}}, []),
    ({"model": {**BIASED, "moe_router_bias_update_rate": 0.0, "lora": {}}}, []),
    ({"model": {**BIASED, "moe_router_bias_update_rate": 0.002, "lora": {}}}, ["frozen_routers model.lora"]),
    ({"model": {**EXPERTS, "moe_grouped_gemm": True, "lora": {}}}, ["frozen_routers model.lora"]),
]


def built(make_job: Any, lora: dict[str, Any], **sections: Any) -> JobSpec:
    model = {**sections.pop("model", {}), "lora": lora}
    return JobSpec.model_validate(make_job(model=model, **sections).model_dump())


@pytest.mark.parametrize(("sections", "expected"), REFUSED)
def test_what_adapters_do_not_go_with(make_job: Any, sections: dict[str, Any], expected: list[str]) -> None:
    assert codes(check(make_job(**sections))) == expected


def test_the_formula_of_a_hybrid_has_its_experts(make_job: Any) -> None:
    routed = {"hybrid_override_pattern": "M-*E", "num_experts": 4}
    alone, beside = (formula(built(make_job, {"rank": 4}, model={**HYBRID, **more})) for more in ({}, routed))
    assert beside.startswith(alone)
    assert beside != alone


def test_other_adapters_are_another_run(make_job: Any) -> None:
    old = built(make_job, {"rank": 4})
    kinds = {change.path: change.kind for change in diff_jobs(old, built(make_job, {"rank": 8, "alpha": 16.0}))}
    assert kinds == {"model.lora.rank": "forbidden", "model.lora.alpha": "trajectory"}
    named = built(make_job, {"rank": 4, "target_modules": ["linear_proj", "linear_qkv", "linear_fc1", "linear_fc2"]})
    assert [(change.path, change.kind) for change in diff_jobs(old, named)] == [("model.lora.target_modules", "safe")]
    usual = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]  # what the default was
    stored = built(make_job, {"rank": 4, "target_modules": usual}).model_dump(mode="json")
    assert config_hash(stored) == config_hash(old.model_dump(mode="json")) != config_hash(named.model_dump(mode="json"))
    linear = {**DELTA, "lora": {"rank": 4}}
    every, some = (make_job(model={**linear, "lora": {"rank": 4, **more}}) for more in ({}, {"target_modules": usual}))
    assert set(some.model.adapted_modules) < set(every.model.adapted_modules)
    assert every.config_hash != some.config_hash, "two networks are two runs"
    without = JobSpec.model_validate(make_job().model_dump())
    assert "forbidden" in {change.kind for change in diff_jobs(old, without)}
