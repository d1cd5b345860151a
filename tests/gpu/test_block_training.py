"""Blocks of newer models on several GPUs: a hundred steps on text, in bf16, end where one GPU ends.

What is measured is kept in $MEASURED, and the same call again goes on where the last one ended:

    MEASURED=runs/measured python -m pytest tests/gpu/test_block_training.py -s
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from support.measured import Measured, Meter, asked_of, gpu_count, needs_gpus
from support.training import four_layer_job, layout

from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

STEPS, LAST = 100, 10
FIRST_APART, LAST_APART = 5e-4, 0.005
"""How far the first loss, and the mean of the last ten, may be from one GPU's, relatively."""
COMMON: dict[str, Any] = {
    **{"num_layers": 4, "hidden_size": 1024, "num_attention_heads": 16, "seq_length": 1024, "vocab_size": 8192},
    **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False, "init_method_std": 0.01},
    **{"untie_embeddings_and_output_weights": True, "position_embedding_type": "rope"},
}
EXPERTS = {"num_experts": 16, "moe_ffn_hidden_size": 512, "moe_router_dtype": "fp32", "moe_aux_loss_coeff": 0.001}
SHAPES: dict[str, dict[str, Any]] = {
    "deepseek-v2-lite": {
        **{**COMMON, **EXPERTS, "moe_router_topk": 6, "moe_shared_expert_intermediate_size": 1024},
        **{"kv_lora_rank": 256, "qk_head_dim": 64, "qk_pos_emb_head_dim": 32, "v_head_dim": 64, "qk_layernorm": True},
        **{"moe_router_pre_softmax": True, "moe_layer_freq": [0, 1, 1, 1]},
        "rope_scaling": {
            **{"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 256},
            **{"mscale": 0.707, "mscale_all_dim": 0.707},
        },
    },
    "gpt-oss": {
        **{**COMMON, **EXPERTS, "moe_router_topk": 4, "num_query_groups": 8, "kv_channels": 64},
        **{"activation": "quick_geglu", "activation_func_clamp_value": 7.0, "glu_linear_offset": 1.0},
        **{"add_bias_linear": True, "sliding_window": 128, "window_attn_skip_freq": 2, "softmax_type": "learnable"},
    },
    "qwen3-next": {
        **{**COMMON, **EXPERTS, "moe_router_topk": 8, "moe_shared_expert_intermediate_size": 512},
        **{"moe_shared_expert_gate": True, "num_query_groups": 2, "kv_channels": 128, "rotary_percent": 0.25},
        **{"apply_layernorm_1p": True, "qk_layernorm": True, "attention_output_gate": True},
        **{"linear_attention_freq": 4, "linear_num_key_heads": 8, "linear_num_value_heads": 16},
        **{"linear_key_head_dim": 128, "linear_value_head_dim": 128},
    },
    "gemma-3": {
        **{**COMMON, "activation": "geglu", "apply_layernorm_1p": True, "transformer_block_type": "sandwich_ln"},
        **{"qk_layernorm": True, "scale_embeddings": True, "num_query_groups": 8, "kv_channels": 128},
        **{"sliding_window": 256, "window_attn_skip_freq": 2, "rotary_base_local": 10000, "rotary_base": 1000000},
    },
}
_EP2 = {"expert_model_parallel_size": 2}
_TP2 = {"tp": 2, "sequence_parallel": True}
LAYOUTS: dict[str, dict[str, Any]] = {
    "ep2": {"dp": 2, **_EP2},
    "ep4": {"dp": 4, "expert_model_parallel_size": 4},
    "tp2-ep2": {**_TP2, "dp": 2, **_EP2},
    "tp2-ep4": {**_TP2, "dp": 2, "expert_model_parallel_size": 4, "expert_tensor_parallel_size": 1},
    "pp2-ep2": {"pp": 2, "dp": 2, **_EP2},
    "tp2": _TP2,
    "tp2-dp2": {**_TP2, "dp": 2},
    "tp2-pp2": {**_TP2, "pp": 2},
}
OF = {
    "deepseek-v2-lite": ("ep2", "ep4", "tp2-ep2", "pp2-ep2"),
    "gpt-oss": ("ep2", "ep4", "tp2-ep4", "pp2-ep2"),
    "qwen3-next": ("ep2", "ep4", "tp2-ep2", "pp2-ep2"),
    "gemma-3": ("tp2", "tp2-dp2", "tp2-pp2"),
}
CASES = [(shape, name) for shape, names in OF.items() for name in names]
ONE = "one"


def shape_job(shape: str, name: str, text: str) -> JobSpec:
    """A shape at a layout, or on one GPU; `text` is the prefix of a data set."""
    degrees = LAYOUTS.get(name, {})
    return four_layer_job(
        f"{shape}-{name}",
        model=SHAPES[shape],
        data={"blend": [{"path": text}], "random_tokens": False},
        batch={"micro_batch_size": 4, "global_batch_size": 16},
        parallelism=layout(**degrees),
        precision={"dtype": "bf16"},
        optimizer={"lr": 3e-5, "min_lr": 3e-6},  # at 1e-4 gradient norms jumped by a third, and losses with them
        schedule={"train_iters": STEPS, "lr_warmup_iters": 30},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` is the prefix of a data set."""
    return [shape_job(shape, name, text) for shape, names in OF.items() for name in (ONE, *names)]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, meter: Meter, text: str) -> dict[str, Measured]:
    """What this session asks for and this machine can run, by the jobs' names: by the same few processes."""
    asked = {(shape, name) for shape, name in asked_of(request, "shape", "name")}
    asked |= {(shape, ONE) for shape, _ in asked}
    wanted = [
        job for job in (shape_job(shape, name, text) for shape, name in sorted(asked)) if job.world_size <= gpu_count()
    ]
    meter.measure_all(wanted)
    return {job.name: meter.measure(job) for job in wanted}


def last(found: Measured) -> float:
    """The mean loss of the last ten steps."""
    return statistics.mean(found.losses[-LAST:])


@pytest.mark.parametrize(("shape", "name"), CASES)
def test_a_hundred_steps_end_where_one_gpu_ends(shape: str, name: str, trained: dict[str, Measured]) -> None:
    needs_gpus(shape_job(shape, name, "text").world_size, "transformer_engine")
    one, found = trained[f"{shape}-{ONE}"], trained[f"{shape}-{name}"]
    for each in (one, found):
        assert each.outcome == "measured", each.message
    first, end = found.losses[0] / one.losses[0] - 1, last(found) / last(one) - 1
    print(
        f"\nRESULT {shape} {name} ({found.layers}): loss {one.losses[0]:.3f} to {last(one):.3f}; "
        f"the first step {first:+.1e}, the last ten {end:+.2%} from one GPU"
    )
    assert found.layers == "transformer_engine"
    assert last(one) < one.losses[0] - 2
    assert abs(first) < FIRST_APART
    assert abs(end) < LAST_APART
