"""Flags of how tokens are routed to experts, read and written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.migration.to_megatron import to_megatron

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
    assert said[said.index("--moe-aux-loss-coeff") + 1 :][:2] == ["0.0001", "0.01"]
    one = flags(*["--num-experts", "8", "--disable-bias-linear", "--moe-router-topk-scaling-factor", "1.0"])
    assert one.job.model.moe_router_topk_scaling_factor is None


def test_weighted_inputs_are_read_and_written(flags: Flags) -> None:
    said = "--num-experts 8 --disable-bias-linear --moe-router-topk 1 --moe-router-score-function sigmoid"
    migrated = flags(*said.split(), "--moe-apply-probs-on-input")
    assert migrated.job.model.moe_apply_probs_on_input
    written = to_megatron(migrated.job)
    assert ("--moe-apply-probs-on-input",) in [tuple(flag) for _, group in written.groups for flag in group]
    assert not flags(*said.split()).job.model.moe_apply_probs_on_input
