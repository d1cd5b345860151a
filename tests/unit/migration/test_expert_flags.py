"""Flags of how tokens are routed to experts, read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.migration.overrides import override
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.loading import load_text

Flags = Callable[..., Any]

ROUTED = (
    "--num-experts 8 --disable-bias-linear --moe-router-score-function sigmoid --moe-router-enable-expert-bias "
    "--moe-router-bias-update-rate 0.002 --moe-router-num-groups 4 --moe-router-group-topk 2 "
    "--moe-router-topk-scaling-factor 2.5 --moe-shared-expert-intermediate-size 64 --moe-shared-expert-gate "
    "--moe-router-load-balancing-type seq_aux_loss global_aux_loss --moe-aux-loss-coeff 1e-4 1e-2"
)


def test_how_tokens_are_routed_is_read_and_written(flags: Flags) -> None:
    migrated = flags(*ROUTED.split())
    model = migrated.job.model
    assert (model.moe_router_enable_expert_bias, model.moe_router_bias_update_rate) == (True, 0.002)
    assert (model.moe_router_num_groups, model.moe_router_group_topk, model.group_score_topk) == (4, 2, 1)
    assert (model.moe_router_topk_scaling_factor, model.moe_shared_expert_gate) == (2.5, True)
    assert model.auxiliary_losses == {"seq_aux_loss": 1e-4, "global_aux_loss": 1e-2}
    written = to_megatron(migrated.job)
    assert [each.path for each in written.unsaid if "moe" in each.path] == []
    said = [word for _, group in written.groups for flag in group for word in flag]
    assert set(ROUTED.split()) - {"--disable-bias-linear", "1e-4", "1e-2"} <= set(said)
    assert said[said.index("--moe-aux-loss-coeff") + 1 :][:2] == ["0.0001", "0.08"]  # over 8 replicas
    one = flags(*["--num-experts", "8", "--disable-bias-linear", "--moe-router-topk-scaling-factor", "1.0"])
    assert one.job.model.moe_router_topk_scaling_factor is None


GLOBAL = "--moe-router-load-balancing-type seq_aux_loss global_aux_loss --moe-aux-loss-coeff 1e-4 1e-2"


def test_the_weight_of_the_global_loss(flags: Flags) -> None:
    """megatron-core's is divided by DP, and ours is not: reading tells so, and writing multiplies."""
    migrated = flags("--num-experts", "8", "--disable-bias-linear", *GLOBAL.split())
    assert any("divide its moe_aux_loss_coeff by the script's DP" in note for note in migrated.migration.notes)
    local = flags("--num-experts", "8", "--disable-bias-linear", "--moe-aux-loss-coeff", "1e-2")
    assert not [note for note in local.migration.notes if "global_aux_loss" in note]
    written = to_megatron(migrated.job.changed(parallelism={"data_parallel_size": 4}))
    said = [word for _, group in written.groups for flag in group for word in flag]
    assert said[said.index("--moe-aux-loss-coeff") + 1 :][:2] == ["0.0001", "0.04"]
    assert [each.path for each in written.otherwise if "aux_loss" in each.path] == ["model.moe_aux_loss_coeff"]


DENSE = "--num-experts 8 --disable-bias-linear --ffn-hidden-size 96 --load dense --save sparse --moe-use-upcycling"


def test_experts_that_start_from_a_dense_model(flags: Flags) -> None:
    """Megatron-LM makes a dense model as wide as so many experts, whose weights --load has."""
    migrated = flags(*DENSE.split())
    assert "checkpoint.pretrained" in migrated.migration.missing
    override(migrated.migration, "checkpoint.pretrained=dense")
    job = load_text(job_text(migrated.migration)).job
    assert job.checkpoint.upcycle
    assert (job.model.ffn_hidden_size, job.model.moe_ffn_size) == (96, 96)
    written = [word for _, group in to_megatron(job).groups for flag in group for word in flag]
    assert "--moe-use-upcycling" in written
    narrow = flags(*DENSE.split(), "--moe-upcycling-granularity", "2")
    override(narrow.migration, "checkpoint.pretrained=dense")
    job = load_text(job_text(narrow.migration)).job
    assert (job.model.ffn_hidden_size, job.model.moe_ffn_hidden_size) == (192, 96)
    assert [each.path for each in to_megatron(job).unsaid if each.path == "checkpoint.upcycle"]
    assert (
        flags("--num-experts", "8", "--disable-bias-linear", "--moe-upcycling-granularity", "2").outcome(
            "--moe-upcycling-granularity"
        )
        == "no_effect"
    )


def test_weighted_inputs_are_read_and_written(flags: Flags) -> None:
    said = "--num-experts 8 --disable-bias-linear --moe-router-topk 1 --moe-router-score-function sigmoid"
    migrated = flags(*said.split(), "--moe-apply-probs-on-input")
    assert migrated.job.model.moe_apply_probs_on_input
    written = to_megatron(migrated.job)
    assert ("--moe-apply-probs-on-input",) in [tuple(flag) for _, group in written.groups for flag in group]
    assert not flags(*said.split()).job.model.moe_apply_probs_on_input


def test_grouped_experts_with_biases_are_written_without_fused_dropout(flags: Flags) -> None:
    """megatron-core's TEGroupedMLP refuses `bias_dropout_fusion` beside biases, and the trainer has it on by itself."""
    off = "--no-bias-dropout-fusion"
    biased = ["--num-experts", "8", "--quick-geglu", "--expert-tensor-parallel-size", "1"]
    for more, written in (
        (["--moe-grouped-gemm"], True),
        (["--moe-grouped-gemm", "--disable-bias-linear"], False),
        (["--transformer-impl", "local"], False),
    ):
        migrated = flags(*biased, *more)
        again = flags(*biased, *more, off)
        assert (off in to_megatron(migrated.job).words) is written
        assert again.job == migrated.job, "read back, it says nothing"
    dense = flags("--quick-geglu")
    assert off not in to_megatron(dense.job).words


@pytest.mark.parametrize(("activation", "unfused"), [("gelu", True), ("gelu_tanh", True), ("quick_geglu", False)])
def test_biases_of_experts_are_written_without_a_fused_gelu(activation: str, unfused: bool, flags: Flags) -> None:
    """Beside them megatron-core's experts refuse it, and the trainer has it on by itself."""
    job = flags("--num-experts", "8", "--expert-tensor-parallel-size", "1").job
    written = to_megatron(job.changed(model={"activation": activation}))
    assert written.words.count("--no-bias-gelu-fusion") == unfused
    assert ("model.activation" in {each.path for each in written.unsaid}) is (activation == "gelu_tanh")
