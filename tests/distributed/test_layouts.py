"""Variants of GPT have the losses of one process (fp32, relative difference below 1e-5) and its weights. Layouts:
test_matrix.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.trained_together import TrainedTogether, selected
from support.trained_weights import weights_apart
from support.training import events, largest_difference, layout, losses, make_run, tiny_job, values

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each layout trains on real ranks")]


VARIANTS: dict[str, dict[str, Any]] = {
    "learned-positions": {"position_embedding_type": "learned_absolute"},
    "llama": {
        "normalization": "RMSNorm",
        "activation": "swiglu",
        "add_bias_linear": False,
        "num_query_groups": 2,
        "untie_embeddings_and_output_weights": True,
    },
    "multi-query": {
        **{"num_query_groups": 1, "norm_bias": False, "qk_layernorm": True, "qk_layernorm_scope": "per_head"},
    },
    "normalised-queries": {"qk_layernorm": True, "num_query_groups": 2},
    "alibi": {
        **{"position_embedding_type": "alibi", "num_attention_heads": 6, "kv_channels": 16, "num_query_groups": 1},
        **{"sliding_window": 20, "activation": "gelu_tanh"},
    },
    "sandwich": {
        **{"normalization": "RMSNorm", "apply_layernorm_1p": True, "transformer_block_type": "sandwich_ln"},
        **{"activation": "geglu", "num_query_groups": 1, "qk_layernorm": True, "hidden_dropout": 0.0},
    },
    "reordered": {
        **{"normalization": "RMSNorm", "transformer_block_type": "reordered_ln", "add_bias_linear": True},
        **{"qk_layernorm": True, "qk_layernorm_scope": "projection", "num_query_groups": 1},
    },
    "reordered-experts": {
        **{"normalization": "LayerNorm", "transformer_block_type": "reordered_ln", "add_bias_linear": False},
        **{"num_experts": 4, "moe_ffn_hidden_size": 64, "moe_layer_freq": 2, "moe_router_topk": 2},
    },
    "gated": {
        **{"normalization": "RMSNorm", "apply_layernorm_1p": True, "qk_layernorm": True, "num_query_groups": 2},
        **{"attention_output_gate": True, "rotary_percent": 0.25, "no_rope_freq": 2},
    },
    "delta": {
        **{"linear_attention_freq": [1, 0], "linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 12, "add_bias_linear": False, "num_query_groups": 2},
        "transformer_block_type": "sandwich_ln",
    },
    "multipliers": {
        **{"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logit_scale": 0.5, "hidden_dropout": 0.0},
        **{"transformer_block_type": "sandwich_ln", "untie_embeddings_and_output_weights": True},
    },
    "unrotated": {
        **{"no_rope_freq": 2, "sliding_window": 20, "window_attn_skip_freq": [0, 1], "rotary_base_local": 100},
        **{
            "rotary_percent": 0.5,
            "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16},
        },
    },
    "yarn": {
        "rope_scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16},
        **{"activation": "squared_relu", "add_bias_linear": False, "add_qkv_bias": True, "apply_layernorm_1p": True},
    },
}


SPLITS: dict[str, dict[str, Any]] = {
    "alibi": layout(tp=2, context_parallel_size=2, sequence_parallel=True),
    "unrotated": layout(tp=2, pp=2, sequence_parallel=True),
    "delta": layout(tp=2, dp=2),
}
"""How a variant is spread over ranks where that matters to it: a window over chunks, layers counted over stages."""
BF16 = tiny_job(
    "bf16",
    precision={"dtype": "bf16"},
    parallelism=layout(tp=2, sequence_parallel=True),
    schedule={"train_iters": 3},
)


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[tuple[str, str]]:
    """Each variant at one rank and at two or more, and plain ones."""
    jobs = {("reference", "one"): tiny_job("one"), ("bf16", "two"): BF16}
    for name in selected(request, "name"):
        split = SPLITS.get(name, layout(tp=2, sequence_parallel=True))
        for place, parallelism in (("one", {}), ("two", split)):
            micro = 8 // max(split["pipeline_model_parallel_size"], split["data_parallel_size"])
            sections = {"batch": {"micro_batch_size": micro}, "schedule": {"train_iters": 2, "lr_warmup_iters": 0}}
            # Of gradients that are nearly 0, Adam makes updates as large as their rounding says.
            sections["optimizer"] = {"lr": 1e-3, "adam_eps": 1e-6}
            jobs[name, place] = tiny_job(place, model=VARIANTS[name], parallelism=parallelism, **sections)
    return TrainedTogether(ranks, tmp_path_factory.mktemp("variants"), jobs, WEIGHTS_ALONE)


def test_reference_learns(trained: TrainedTogether[tuple[str, str]]) -> None:
    reference = trained["reference", "one"]
    curve = losses(reference)
    assert list(curve) == list(range(1, 9))
    assert 5.4 < curve[1] < 5.7, "random tokens start at ln(250) = 5.52"
    assert values(reference, "train/grad_norm")[8] < values(reference, "train/grad_norm")[3]


@pytest.mark.parametrize("name", VARIANTS)
def test_architecture(name: str, trained: TrainedTogether[tuple[str, str]]) -> None:
    """Each variant at one rank and under TP=2 with sequence parallelism; multi-query shares its one group."""
    runs = [trained[name, place] for place in ("one", "two")]
    assert largest_difference(*map(losses, runs)) < 1e-5
    assert weights_apart(*runs) == {}


def test_a_parallel_residual_learns(ranks: Ranks, real_text: list[str], tmp_path: Path) -> None:
    """On bytes of the standard library the loss falls below what the bytes' frequencies alone give."""
    job = tiny_job(
        "learner",
        model={
            **{"num_layers": 2, "hidden_size": 64, "seq_length": 64, "parallel_residual": "one_norm"},
            **{"vocab_size": None, "init_method_std": 0.1},
        },
        data={"blend": [{"path": real_text[0]}], "random_tokens": False, "split": "90,10,0"},
        batch={"micro_batch_size": 8, "global_batch_size": 8},
        optimizer={"lr": 5e-3},
        schedule={"train_iters": 40, "lr_warmup_iters": 5},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    curve = losses(run)
    tokens = np.bincount(np.fromfile(f"{real_text[0]}.bin", dtype="<u2"))
    shares = tokens[tokens > 0] / tokens.sum()
    entropy = -float((shares * np.log(shares)).sum())
    assert curve[1] > 5.4, "near ln(261) = 5.56"
    assert curve[40] < min(curve[1] - 2, entropy - 0.1)


def test_bf16(trained: TrainedTogether[tuple[str, str]]) -> None:
    """It trains on the CPU."""
    run = trained["bf16", "two"]
    assert losses(run)[3] < 5.7
    [started] = events(run, "started")
    assert started["world_size"] == 2


NOTES_WHAT_WAS_IMPORTED = """
import orchestrator.runtime.__main__ as program
real = program.write_exit_record
def write_exit_record(run, *record):
    (run.path / f"modules-{RANK}").write_text(" ".join(sys.modules))
    real(run, *record)
program.write_exit_record = write_exit_record
"""


def test_no_rank_on_the_cpu_imports_the_compiler(ranks: Ranks, inject: Callable[[str], Path], tmp_path: Path) -> None:
    """It would take each of them a second of CPU time and more, for nothing."""
    job = tiny_job(
        "plain",
        parallelism=layout(tp=2, sequence_parallel=True),
        runtime={"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
        evaluation={"eval_interval": 1, "eval_iters": 1},
        schedule={"train_iters": 2, "lr_warmup_iters": 1},
    )
    run = ranks.must_train(make_run(tmp_path, job), job, inject=inject(NOTES_WHAT_WAS_IMPORTED))
    for rank in (0, 1):
        imported = (run.path / f"modules-{rank}").read_text().split()
        assert "megatron.core" in imported
        assert "torch._dynamo" not in imported
