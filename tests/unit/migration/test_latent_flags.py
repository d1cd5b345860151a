"""Megatron-LM's flags of multi-latent attention as fields of a spec."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.training import four_layer_job

from orchestrator.migration.to_megatron import to_megatron

Flags = Callable[..., Any]
LATENTS = "--multi-latent-attention --position-embedding-type rope --qk-layernorm"


def test_latent_attention(flags: Flags) -> None:
    """Of DeepSeek-V2-Lite's script: YaRN with one factor for all channels."""
    words = f"{LATENTS} --kv-lora-rank 512 --qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 128 --kv-channels 16"
    factors = "--rotary-scaling-factor 40 --mscale 0.707 --mscale-all-dim 0.707"
    migrated = flags(*words.split(), *factors.split())
    model = migrated.job.model
    assert (model.kv_lora_rank, model.q_lora_rank, model.kv_channels, model.qk_layernorm) == (512, None, None, True)
    assert (model.qk_head_dim, model.qk_pos_emb_head_dim, model.v_head_dim) == (128, 64, 128)
    assert model.rope_scaling.model_dump(exclude_unset=True) == {
        **{"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096},
        **{"mscale": 0.707, "mscale_all_dim": 0.707},
    }
    assert migrated.outcome("--kv-channels") == "no_effect"


@pytest.mark.parametrize(
    ("words", "factors"),
    [
        ("", None),
        ("--rotary-scaling-factor 1.0", None),
        ("--rope-type rope --rotary-scaling-factor 40", None),
        ("--rope-type rope --use-rope-scaling --rope-scaling-factor 4", None),
        ("--rotary-scaling-factor 4 --rope-type yarn", (None, None)),
        ("--rotary-scaling-factor 4 --mscale 1.0 --mscale-all-dim 1.0", (1.0, 1.0)),
    ],
)
def test_positions_of_latent_attention(flags: Flags, words: str, factors: Any) -> None:
    job = flags(*LATENTS.split(), *words.split()).job
    model = job.model
    assert model.kv_lora_rank == 32
    scaling = model.rope_scaling
    assert (None if scaling is None else (scaling.mscale, scaling.mscale_all_dim)) == factors
    unfused = "--no-rope-fusion" in to_megatron(job).words
    assert unfused is (factors is None), "megatron-core's kernel rotates as YaRN does, and it refuses it else"


def test_a_factor_below_1_is_refused(flags: Flags) -> None:
    migrated = flags(*LATENTS.split(), "--rotary-scaling-factor", "0.5")
    assert migrated.outcome("--rotary-scaling-factor") == "not_supported"


def test_megatron_s_own_layers_are_not_asked_for() -> None:
    """Its attention takes no values of another width than keys, and no bias for relative positions."""
    latent = {"kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 12}
    of_latents = {**latent, "add_bias_linear": False, "normalization": "RMSNorm", "activation": "swiglu"}
    of_distances = {"architecture": "t5", "position_embedding_type": "relative", "decoder_seq_length": 32}
    for model, is_written in (({}, True), (of_latents, False), (of_distances, False)):
        command = to_megatron(four_layer_job("job", model=model, runtime={"layers": "torch"}))
        assert ("--transformer-impl" in command.words) is is_written
        assert ("runtime.layers" in [each.path for each in command.otherwise]) is not is_written


def test_flags_of_latents_alone_do_nothing(flags: Flags) -> None:
    migrated = flags(*["--kv-lora-rank", "64", "--mscale", "2", "--rope-type", "yarn"])
    assert not migrated.job.model.has_latent_attention
    assert {migrated.outcome(flag) for flag in ("--kv-lora-rank", "--mscale", "--rope-type")} == {"no_effect"}
