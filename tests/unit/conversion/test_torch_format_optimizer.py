"""Optimizers in Megatron-LM's older format: states are those of their weights, or stay behind with a reason."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.rank_files import Network, changed, job_of, set_key, write

from orchestrator.conversion.megatron.checkpoints import describe
from orchestrator.conversion.megatron.torch_format.weights import RankWeights


def optimizer_of(folder: Path, first_release: bool) -> dict[str, Any]:
    """Of the weights in the file there, as mixed precision has it: fp32 copies, and states that tell their places."""
    language = torch.load(folder / "mp_rank_00" / "model_optim_rng.pt", weights_only=False)["model"]["language_model"]
    tables = [table["weight"] for table in language["embedding"].values()]
    named = [("table", table) for table in tables] + list(language.get("encoder", language.get("transformer")).items())
    groups = [[w for n, w in named if w.dim() > 1 and "bias" not in n], [w for n, w in named if w.dim() == 1]]
    flat = [weight for group in groups for weight in group]
    state = {
        number: {"exp_avg": torch.full(weight.shape, float(number)), "exp_avg_sq": torch.ones(weight.shape)}
        for number, weight in enumerate(flat)
    }
    starts = (0, len(groups[0]))
    inner = {
        "state": state,
        "param_groups": [
            {"params": list(range(start, start + len(group))), "lr": 0.1, "weight_decay": decay, "step": 7}
            for start, group, decay in zip(starts, groups, (0.01, 0.0), strict=True)
        ],
    }
    masters = [[weight.float() for weight in group] for group in groups]
    if first_release:
        return {"optimizer_state_dict": inner, "fp32_from_fp16": masters}
    return {"optimizer": inner, "fp32_from_fp16_params": masters, "grad_scaler": {"scale": torch.tensor([64.0])}}


@pytest.mark.parametrize("first_release", [False, True])
def test_states_are_those_of_their_weights(tmp_path: Path, first_release: bool) -> None:
    network = Network.random()
    write(tmp_path, network, arguments=network.arguments(), version=0)
    stored = optimizer_of(tmp_path, first_release)
    changed(tmp_path / "mp_rank_00", set_key("optimizer", stored))
    assert describe(tmp_path)["optimizer"] == "whole"
    weights = RankWeights(tmp_path, job_of(network, parallelism={"use_distributed_optimizer": False}))
    states = [key.removeprefix("optimizer.state.") for key in weights.keys() if key.startswith("optimizer")]  # noqa: SIM118
    assert len(states) == 3 * 16
    for key in (key.removeprefix("fp32_param.") for key in states if key.startswith("fp32_param.")):
        for layer in range(4) if weights.places(key) else (None,):
            place = () if layer is None else (layer,)
            copy = weights.read(f"optimizer.state.fp32_param.{key}", place)
            assert torch.equal(copy.half(), weights.read(key, place)), key
    # The second table, and the first layer's vectors, in the order of the file.
    assert weights.read("optimizer.state.exp_avg.embedding.position_embeddings.weight", ()).unique().tolist() == [1.0]
    shared = weights.shared()["optimizer"]
    assert [group["step"] for group in shared["optimizer"]["param_groups"]] == [7, 7]
    assert [group["wd_mult"] for group in shared["optimizer"]["param_groups"]] == [1.0, 0.0]
    assert ("grad_scaler" in shared) is not first_release


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda stored: stored["fp32_from_fp16_params"][0][1].add_(1), "the fp32 copy of"),
        (lambda stored: stored["fp32_from_fp16_params"][1].pop(), "has no param of its shape"),
        (lambda stored: stored["optimizer"]["state"].pop(3), "has no exp_avg of its shape"),
        (lambda stored: stored["optimizer"]["param_groups"].pop(), "it has 1 groups of parameters, and 2 are known"),
        (lambda stored: stored["optimizer"]["param_groups"][0]["params"].pop(), "a group has"),
        (lambda stored: stored["optimizer"].pop("state"), "it is a distributed optimizer's, and"),
        (lambda stored: stored["optimizer"].pop("param_groups"), "it has no groups of parameters"),
    ],
)
def test_what_is_not_whole_stays_behind(tmp_path: Path, change: Callable[[Any], Any], said: str) -> None:
    network = Network.random()
    write(tmp_path, network, arguments=network.arguments())
    stored = optimizer_of(tmp_path, first_release=False)
    change(stored)
    changed(tmp_path / "mp_rank_00", set_key("optimizer", stored))
    found = describe(tmp_path)
    assert found["optimizer"] is None
    assert said in found["left_behind"]
    assert not [key for key in RankWeights(tmp_path, job_of(network)).keys() if "optimizer" in key]  # noqa: SIM118
