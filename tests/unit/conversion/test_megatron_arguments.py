"""Megatron-LM's arguments and our model section, and which of its folders hold a checkpoint to import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.refused import refused
from support.training import four_layer_job, layout

from orchestrator.cli.models import megatron
from orchestrator.conversion.megatron.arguments import (
    differences,
    network_of,
    require_representable,
    scheduler_state,
    to_arguments,
    to_model,
)
from orchestrator.conversion.megatron.checkpoint_keys import wanted_tensors
from orchestrator.errors import UserError
from orchestrator.planning.training_schedule.batch import Progress
from orchestrator.run_directory.checkpoints.commit_markers import MEGATRON_TRACKER
from orchestrator.run_directory.checkpoints.pretrained import find_weights
from orchestrator.spec.model import ModelSpec

MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {"position_embedding_type": "learned_absolute", "max_position_embeddings": 128, "activation": "gelu_tanh"},
    "llama": {
        **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False, "num_query_groups": 2},
        **{"untie_embeddings_and_output_weights": True, "rotary_base": 500000, "norm_epsilon": 1e-6},
        "no_rope_freq": 2,
    },
    "nemotron": {
        **{"activation": "squared_relu", "apply_layernorm_1p": True, "rotary_percent": 0.5, "kv_channels": 32},
        **{"add_qkv_bias": True, "add_bias_linear": False, "qk_layernorm": True, "hidden_dropout": 0.1},
    },
    "experts": {
        **{"num_experts": 4, "moe_router_topk": 3, "moe_ffn_hidden_size": 96, "moe_layer_freq": [0, 1, 0, 1]},
        **{"add_bias_linear": False, "activation": "swiglu", "moe_aux_loss_coeff": 0.01},
    },
    "delta": {
        **{"normalization": "RMSNorm", "activation": "swiglu", "add_bias_linear": False, "apply_layernorm_1p": True},
        **{"linear_attention_freq": 4, "linear_num_key_heads": 4, "linear_num_value_heads": 8},
        **{"linear_key_head_dim": 12, "linear_value_head_dim": 24, "linear_conv_kernel_dim": 3},
        "attention_output_gate": True,
    },
}


def test_a_flag_that_switches_off_is_the_argument_by_its_name() -> None:
    """Megatron-LM's parser keeps `--no-rope-fusion` as `apply_rope_fusion`, and other flags by what follows `no-`."""
    latent = {"kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 12}
    of_latents = {**latent, "add_bias_linear": False, "normalization": "RMSNorm", "activation": "swiglu"}
    job = four_layer_job("latents", model=of_latents)
    arguments = to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=256)
    assert arguments["apply_rope_fusion"] is False
    assert not {"no_rope_fusion", "rope_fusion"} & arguments.keys()


@pytest.mark.parametrize("name", MODELS)
def test_there_and_back(name: str) -> None:
    job = four_layer_job(name, model=MODELS[name], parallelism=layout(tp=2, pp=2, sequence_parallel=True))
    require_representable(job)
    arguments = to_arguments(job, iteration=7, consumed_samples=56, padded_vocab=256)
    assert (arguments["iteration"], arguments["consumed_train_samples"], arguments["padded_vocab_size"]) == (7, 56, 256)
    assert (arguments["tensor_model_parallel_size"], arguments["world_size"]) == (2, 4)
    assert arguments["lr"] == job.optimizer.lr, "what its flags say is there too"
    back = ModelSpec.model_validate({**to_model(arguments), "vocab_size": 250})
    written = job.model.model_dump()
    filled = {"ffn_hidden_size": job.model.ffn_size, "kv_channels": back.kv_channels}
    if job.model.num_query_groups is None:
        filled["num_query_groups"] = None
    assert back.model_dump() == {**written, **filled}
    assert differences(job, arguments) == []


@pytest.mark.parametrize(("activation", "fuses"), [("gelu_tanh", True), ("gelu", False)])
def test_gelu_that_is_fused_with_a_bias_is_the_approximation(activation: str, fuses: bool) -> None:
    """As Megatron-LM's own checkpoints say it, which have no `openai_gelu`."""
    job = four_layer_job("job", model={"activation": activation, "add_bias_linear": True})
    arguments = to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=256)
    assert arguments["bias_gelu_fusion"] == fuses
    assert to_model(arguments)["activation"] == activation
    assert differences(job, {**arguments, "bias_gelu_fusion": not fuses}) != []
    without = {**arguments, "bias_gelu_fusion": True, "add_bias_linear": False, "openai_gelu": True}
    assert to_model(without)["activation"] == "gelu", "megatron-core ignores openai_gelu"


def test_another_network_is_named() -> None:
    job = four_layer_job("job", model=MODELS["llama"])
    arguments = to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=256)
    assert differences(job, {**arguments, "rotary_base": 10000, "num_query_groups": 4}) == [
        "model.num_query_groups is 4 there and 2 here",
        "model.rotary_base is 10000 there and 500000 here",
    ]
    capped = four_layer_job("job", model={**MODELS["llama"], "attention_logit_softcapping": 30.0})
    assert differences(capped, arguments) == ["model.attention_logit_softcapping is None there and 30.0 here"]
    with refused("network_not_importable", "another attention", "state space layers"):
        to_model({**arguments, "experimental_attention_variant": "dsa", "hybrid_override_pattern": "M*"})
    with refused("unsupported_positions", "mrope"):
        to_model({**arguments, "position_embedding_type": "mrope"})
    with refused("missing_megatron_arguments", "hidden_size", "--job"):
        to_model({"num_layers": 2, "num_attention_heads": 2})
    with refused("network_not_importable", "normalization", "LayerNorm", "RMSNorm"):
        differences(job, {**arguments, "normalization": "L1Norm"})
    assert to_model({**arguments, "use_rotary_position_embeddings": True, "norm_epsilon": None})


@pytest.mark.parametrize("changed", [{"normalization": "LayerNorm"}, {"activation": "gelu"}])
def test_linear_attention_has_the_norm_and_the_activation_of_the_model_there(changed: dict[str, Any]) -> None:
    job = four_layer_job("job", model={**MODELS["delta"], **changed})
    with refused("network_not_in_megatron", *changed):
        require_representable(job)
    arguments = to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=256)
    with refused("linear_attention_not_imported"):
        to_model(arguments)


LATENT: dict[str, Any] = {
    **{"kv_lora_rank": 16, "qk_head_dim": 16, "qk_pos_emb_head_dim": 8, "v_head_dim": 12, "add_bias_linear": False},
    **{"normalization": "RMSNorm", "activation": "swiglu", "num_query_groups": 4},
}
YARN = {"type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096}


def latent_arguments(scaling: dict[str, Any] | None = None) -> dict[str, Any]:
    job = four_layer_job("job", model={**LATENT, "rope_scaling": scaling})
    require_representable(job)
    return to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=256)


@pytest.mark.parametrize("scaling", [None, YARN, {**YARN, "mscale": 0.7, "mscale_all_dim": 0.9}])
def test_latent_attention_there_and_back(scaling: dict[str, Any] | None) -> None:
    arguments = latent_arguments(scaling)
    assert arguments["group_query_attention"] is False, "Megatron-LM refuses both"
    job = four_layer_job("job", model={**LATENT, "rope_scaling": scaling, "num_query_groups": None})
    assert differences(job, arguments) == []
    assert differences(job, {**arguments, "position_embedding_type": "none"}) == []
    # megatron-core's latent attention rotates by itself, and knows no scaling of Llama's kind.
    assert differences(job, {**arguments, "use_rope_scaling": True}) == []


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"mscale": 0.7}, "latent_scaling_not_imported"),
        ({"mscale": 0, "mscale_all_dim": 1}, "latent_scaling_not_imported"),
        ({"mscale": -1.0}, "latent_scaling_not_imported"),
        ({"rope_type": "x"}, "latent_scaling_not_imported"),
        ({"rope_type": ["rope"]}, "latent_scaling_not_imported"),
        ({"rotary_scaling_factor": 0.5}, "latent_scaling_not_imported"),
        ({"rotary_scaling_factor": "40"}, "argument_not_a_number"),
        ({"rotary_scaling_factor": float("nan")}, "argument_not_a_number"),
        ({"mscale": True}, "argument_not_a_number"),
        ({"mla_down_proj_fusion": True}, "network_not_importable"),
        ({"use_mup": True}, "network_not_importable"),
        ({"window_size": "ab"}, "unsupported_window"),
        ({"window_size": []}, "unsupported_window"),
        ({"window_size": 5}, "unsupported_window"),
    ],
)
def test_arguments_of_another_network_are_refused(change: dict[str, Any], code: str) -> None:
    with refused(code):
        to_model({**latent_arguments(YARN), **change})


def test_a_release_that_counts_from_another_length_is_refused() -> None:
    arguments = latent_arguments(YARN)
    del arguments["rope_type"]
    with refused("latent_scaling_not_imported"):
        to_model(arguments)


def test_more_layers_than_are_stored_are_refused_before_they_are_counted(tmp_path: Path) -> None:
    found = {"kinds": ["decoder"], "tensors": {"decoder.layers.mlp.linear_fc2.weight": (4, 8, 8)}}
    for name in ("num_layers", "mtp_num_layers"):
        with refused("layers_not_stored"):
            megatron.job_of(tmp_path, {**found, "arguments": {**latent_arguments(), name: 2_000_000_000}}, None, None)


@pytest.mark.parametrize(
    ("model", "values"),
    [
        ({"position_embedding_type": "alibi"}, ("model.position_embedding_type", "alibi")),
        ({"transformer_block_type": "sandwich_ln"}, ("model.transformer_block_type", "sandwich_ln")),
        ({"residual_multiplier": 0.5}, ("model.residual_multiplier", "0.5")),
        ({"parallel_residual": "one_norm"}, ("model.parallel_residual", "one_norm")),
        ({"norm_bias": False}, ("model.norm_bias", "False")),
        ({"qk_layernorm": True, "qk_layernorm_scope": "per_head"}, ("model.qk_layernorm_scope", "per_head")),
        ({"no_rope_freq": 3}, ("model.no_rope_freq", "3")),
        ({**LATENT, "rope_scaling": {**YARN, "truncate": False}}, ("model.rope_scaling",)),
        ({"final_logit_softcapping": 9.0}, ("model.final_logit_softcapping", "9.0")),
        ({"activation": "gelu_tanh", "add_bias_linear": False}, ("model.activation", "gelu_tanh", "biases")),
    ],
)
def test_what_megatron_has_not_is_refused(model: dict[str, Any], values: tuple[str, ...]) -> None:
    with refused("network_not_in_megatron", *values):
        require_representable(four_layer_job("job", model=model))


def test_adapters_are_refused_with_the_way_out() -> None:
    with refused("adapters_not_in_megatron", "model.lora", "--to hf"):
        require_representable(four_layer_job("job", model={**MODELS["llama"], "lora": {"rank": 4}}))


def test_images_are_refused_with_the_way_out() -> None:
    with refused("images_not_in_megatron", "model.vision", "--to hf"):
        require_representable(four_layer_job("job", model={**MODELS["llama"], "seq_length": 1024, "vision": {}}))


def test_a_vocabulary_that_the_tokenizer_has_too_is_no_reason() -> None:
    tokenizer = {"type": "huggingface", "path": "tokenizer.json"}
    job = four_layer_job("job", model={"vocab_size": 300}, data={"tokenizer": tokenizer})
    require_representable(job)
    assert to_arguments(job, iteration=1, consumed_samples=4, padded_vocab=384)["padded_vocab_size"] == 384


def test_the_longest_sequence_without_a_table_is_said() -> None:
    """As an import writes it."""
    job = four_layer_job("imported", model={**MODELS["llama"], "max_position_embeddings": 128})
    require_representable(job)
    assert to_arguments(job, iteration=0, consumed_samples=0, padded_vocab=256)["max_position_embeddings"] == 128


def test_the_schedule_is_in_samples() -> None:
    job = four_layer_job("job", schedule={"train_iters": 20, "lr_warmup_iters": 2, "lr_decay_style": "cosine"})
    assert scheduler_state(job, Progress(10, 80, 80 * 64)) == {
        **{"max_lr": 1e-3, "min_lr": 0.0, "lr_warmup_steps": 16, "lr_decay_steps": 160, "lr_decay_style": "cosine"},
        **{"num_steps": 80, "start_wd": 0.01, "end_wd": 0.01, "wd_incr_style": "constant", "wd_incr_steps": 160},
    }


def test_the_decay_of_a_run_whose_sequences_became_longer_ends_where_its_tokens_do() -> None:
    job = four_layer_job("job", model={"seq_length": 128}, schedule={"train_iters": None, "train_tokens": 20_480})
    assert scheduler_state(job, Progress(10, 80, 80 * 64))["lr_decay_steps"] == 80 + (20_480 - 80 * 64) // 128


def test_folders_of_other_kinds(tmp_path: Path) -> None:
    def refusal(folder: Path, iteration: int | None = None) -> str:
        with pytest.raises(UserError) as caught:
            megatron.checkpoint_in(folder, iteration)
        return str(caught.value)

    tracker, checkpoint = tmp_path / MEGATRON_TRACKER, tmp_path / "iter_0000500"
    tracker.write_text("five hundred")
    assert "does not name an iteration: 'five hundred'" in refusal(tmp_path)
    tracker.write_text("500\n")
    assert refusal(tmp_path) == f"{checkpoint} does not exist"
    (checkpoint / "mp_rank_00").mkdir(parents=True)
    assert megatron.checkpoint_in(tmp_path, None) == checkpoint, "the older format, a pickle per rank"
    assert megatron.is_megatron(checkpoint.rename(tmp_path / "alone"))
    checkpoint.mkdir()
    assert "it has neither .metadata nor mp_rank_" in refusal(tmp_path)
    (checkpoint / ".metadata").touch()
    assert megatron.checkpoint_in(tmp_path, None) == checkpoint
    assert megatron.checkpoint_in(checkpoint, None) == checkpoint
    assert "iter_0000300 does not exist" in refusal(tmp_path, 300)
    assert "goes with a folder of several" in refusal(checkpoint, 500)
    assert megatron.is_megatron(tmp_path)
    assert megatron.is_megatron(checkpoint)
    assert not megatron.is_megatron(tmp_path.parent)
    for folder in (tmp_path, checkpoint):
        with refused("checkpoint_not_imported", f"`orchestrator checkpoint import {folder}`"):
            find_weights(str(folder), tmp_path / "runs")


@pytest.mark.parametrize(
    ("kind", "taken"),
    [("fully_reshardable", True), ("dp_reshardable", False), ("fsdp_dtensor", False), (None, False)],
)
def test_an_optimizer_that_is_bound_to_its_ranks_stays_behind(
    kind: str | None, taken: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    found = found_with(kind)
    assert megatron.takes_optimizer(Path("there"), found, four_layer_job("job")) is taken
    said = capsys.readouterr().err
    assert ("is not imported" in said) is not taken
    assert ("--dist-ckpt-optim-fully-reshardable" in said) is (kind == "dp_reshardable")


def test_an_optimizer_that_only_the_job_refuses_is_not_to_be_saved_once_more(
    capsys: pytest.CaptureFixture[str],
) -> None:
    job = four_layer_job("job", parallelism={"use_distributed_optimizer": False})
    assert not megatron.takes_optimizer(Path("there"), found_with("fully_reshardable"), job)
    said = capsys.readouterr().err
    assert "parallelism.use_distributed_optimizer" in said
    assert "--dist-ckpt-optim-fully-reshardable" not in said


@pytest.mark.parametrize(
    ("sections", "taken"),
    [
        ({}, True),
        ({"parallelism": {"use_distributed_optimizer": False}}, True),
        ({"precision": {"dtype": "bf16"}}, False),
        ({"optimizer": {"name": "sgd"}}, False),
    ],
)
def test_the_older_formats_optimizer_is_adams_in_one_precision(sections: dict[str, Any], taken: bool) -> None:
    job = four_layer_job("job", **sections)
    assert megatron.takes_optimizer(Path("there"), {**found_with("whole"), "dtype": "fp32"}, job) is taken


def test_the_state_of_another_optimizer_stays_behind(capsys: pytest.CaptureFixture[str]) -> None:
    """What SGD calls its momentum has the name of one of Adam's."""
    job = four_layer_job("job", optimizer={"name": "sgd", "sgd_momentum": 0.9})
    assert not megatron.takes_optimizer(Path("there"), found_with("fully_reshardable"), job)
    assert "optimizer is sgd" in capsys.readouterr().err


def found_with(kind: str | None) -> dict[str, Any]:
    """What is found of a checkpoint of a tiny job, by the format of its optimizer."""
    tensors = wanted_tensors(four_layer_job("job"), 256, with_optimizer=True)
    said = {"is_resumable": True, "torn": None, "left_behind": None, "unread": None}
    return {"optimizer": kind, **said, "rows": 256, "tensors": tensors}


@pytest.mark.parametrize(
    ("this", "that"),
    [
        ({"num_query_groups": 4}, {}),
        ({"add_qkv_bias": True}, {}),
        ({"kv_channels": 16, "ffn_hidden_size": 256}, {}),
        ({"position_embedding_type": "none", "rotary_percent": 0.5}, {"position_embedding_type": "none"}),
        (
            {"num_experts": 2, "moe_layer_freq": [1, 1, 1, 1], "moe_ffn_hidden_size": 256, "ffn_hidden_size": 64},
            {"num_experts": 2},
        ),
        ({"window_attn_skip_freq": 2, "moe_router_topk": 1}, {}),
    ],
)
def test_equal_networks_that_are_written_otherwise(this: dict[str, Any], that: dict[str, Any]) -> None:
    tiny = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64}
    one, other = (ModelSpec.model_validate({**tiny, **each}) for each in (this, that))
    assert network_of(one) == network_of(other)


def test_fields_that_decide_no_network() -> None:
    of_training = {
        *("attention_dropout", "hidden_dropout", "init_method_std", "moe_aux_loss_coeff", "moe_expert_capacity_factor"),
        *("moe_grouped_gemm", "moe_router_bias_update_rate", "moe_router_dtype", "moe_router_load_balancing_type"),
        *("moe_token_dispatcher_type", "moe_z_loss_coeff", "mtp_loss_scaling_factor"),
    }
    model = four_layer_job("job").model
    assert set(ModelSpec.model_fields) - network_of(model).keys() == {
        *of_training,
        *("make_vocab_size_divisible_by", "preset", "seq_length", "vision", "vocab_size"),
    }
