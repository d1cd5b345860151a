"""Megatron-LM's arguments, which its checkpoints carry, and the model section of a job: both ways, without torch.

Most arguments have our fields' names. What they are read for when a checkpoint is loaded there: to compare the network,
the layout and the position in the data (`load_args_from_checkpoint`, `check_checkpoint_args` and `load_checkpoint` of
Megatron-LM's training/checkpointing.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from orchestrator.errors import UserError
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.planning.batch import BatchSchedule, Progress
from orchestrator.planning.hyperparameters import HyperparameterSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.model import ModelSpec

SAME = (
    *("num_layers", "hidden_size", "num_attention_heads", "seq_length", "ffn_hidden_size", "kv_channels"),
    *("make_vocab_size_divisible_by", "rotary_percent", "rotary_base", "normalization", "norm_epsilon"),
    *("apply_layernorm_1p", "add_bias_linear", "add_qkv_bias", "qk_layernorm", "untie_embeddings_and_output_weights"),
    *("hidden_dropout", "attention_dropout", "init_method_std", "num_experts"),
)
"""Arguments that are fields of the model section under the same name."""
SAME_OF_EXPERTS = (
    *("moe_layer_freq", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_router_topk"),
    *("moe_router_score_function", "moe_router_pre_softmax", "moe_router_dtype", "moe_router_load_balancing_type"),
    *("moe_aux_loss_coeff", "moe_z_loss_coeff", "moe_expert_capacity_factor", "moe_token_dispatcher_type"),
)
"""The same where there are experts."""
_ACTIVATIONS = {"swiglu": "swiglu", "squared_relu": "squared_relu"}
_POSITIONS = ("learned_absolute", "rope", "none")
_NOT_HERE = {
    "multi_latent_attention": "multi-latent attention",
    "heterogeneous_layers_config_path": "layers of several shapes",
    "heterogeneous_layers_config_encoded_json": "layers of several shapes",
    "mtp_num_layers": "multi-token prediction",
    "hybrid_override_pattern": "state space layers",
    "hybrid_layer_pattern": "state space layers",
    "spec": "layers of a specification of its own",
    "rotary_interleaved": "interleaved rotary positions",
    "no_rope_freq": "layers without positions",
    "quick_geglu": "quick GeGLU",
    "onnx_safe": "another GeLU",
    "apply_residual_connection_post_layernorm": "residuals behind the norm",
    "apply_query_key_layer_scaling": "scores scaled by the layer's number",
    "window_size": "a sliding window",
    "attention_output_gate": "gated attention",
    "use_rope_scaling": "scaled rotary positions",
    "rotary_seq_len_interpolation_factor": "scaled rotary positions",
    "moe_router_enable_expert_bias": "biased routing",
    "moe_router_num_groups": "routing by groups",
    "moe_latent_size": "latent experts",
    "experimental_attention_variant": "another attention",
}
"""Arguments of Megatron-LM that, when they are set, make a network which is not described here."""
_ONE = ("rotary_seq_len_interpolation_factor",)
"""For which 1 is none."""


def to_model(arguments: Mapping[str, Any], architecture: str = "gpt") -> dict[str, Any]:
    """The model section that arguments describe, of a GPT or a BERT, which they do not tell apart. Raises UserError
    when there is none.
    """
    if missing := [name for name in ("num_layers", "hidden_size", "num_attention_heads") if name not in arguments]:
        raise UserError(f"the checkpoint's arguments do not say {', '.join(missing)}: give the job with --job")
    stray = {what for name, what in _NOT_HERE.items() if _is_set(name, arguments.get(name))}
    if stray:
        raise UserError(f"the checkpoint's network has {', '.join(sorted(stray))}, which is not imported")
    arguments = {"norm_epsilon": arguments.get("layernorm_epsilon"), **arguments}
    names = (*SAME, *(SAME_OF_EXPERTS if arguments.get("num_experts") else ()))
    model = {name: arguments[name] for name in names if arguments.get(name) is not None}
    positions = arguments.get("position_embedding_type", "learned_absolute")
    if arguments.get("use_rotary_position_embeddings"):
        positions = "rope"
    if positions not in _POSITIONS:
        raise UserError(f"the checkpoint's network has positions {positions}; imported are {', '.join(_POSITIONS)}")
    model["position_embedding_type"] = positions
    if positions == "learned_absolute" and arguments.get("max_position_embeddings"):
        model["max_position_embeddings"] = arguments["max_position_embeddings"]
    if arguments.get("group_query_attention") and arguments.get("num_query_groups"):
        model["num_query_groups"] = arguments["num_query_groups"]
    # In one kernel with a bias GeLU is its approximation; in none with experts. Nothing reads `openai_gelu`.
    fuses = arguments.get("bias_gelu_fusion") and arguments.get("add_bias_linear") and not arguments.get("num_experts")
    plain = "gelu_tanh" if fuses else "gelu"
    model["activation"] = next((ours for name, ours in _ACTIVATIONS.items() if arguments.get(name)), plain)
    return model if architecture == "gpt" else {"architecture": architecture, **model}


def _is_set(name: str, value: Any) -> bool:
    return bool(value) and not (name in _ONE and value == 1)


_NO_NETWORK = (
    *("seq_length", "make_vocab_size_divisible_by", "hidden_dropout", "attention_dropout", "init_method_std"),
    *("moe_router_dtype", "moe_router_load_balancing_type", "moe_aux_loss_coeff", "moe_z_loss_coeff"),
    *("moe_expert_capacity_factor", "moe_token_dispatcher_type"),
)
"""What may be another in a job that goes on from a checkpoint."""


def differences(job: JobSpec, arguments: Mapping[str, Any], architecture: str = "gpt") -> list[str]:
    """Where a job's network is not what arguments describe. Raises UserError when they describe none that is here."""
    described = {name: value for name, value in to_model(arguments, architecture).items() if name not in _NO_NETWORK}
    try:
        theirs = ModelSpec.model_validate({"seq_length": job.model.seq_length, **described})
    except ValidationError as error:
        said = "; ".join(f"{each['loc'][0]}: {each['msg']}" for each in error.errors() if each["loc"])
        raise UserError(f"the checkpoint's arguments describe a network that is not here: {said}") from error
    ours = job.model
    pairs = {name: (getattr(theirs, name), getattr(ours, name)) for name in described}
    pairs |= {
        "num_query_groups": (theirs.query_groups, ours.query_groups),
        "ffn_hidden_size": (theirs.ffn_size, ours.ffn_size),
        "kv_channels": (_head(theirs), _head(ours)),
        "max_position_embeddings": (theirs.positions, ours.positions),
    }
    if theirs.position_embedding_type != "learned_absolute":
        del pairs["max_position_embeddings"]
    return [f"model.{name} is {there} there and {here} here" for name, (there, here) in pairs.items() if there != here]


def _head(model: ModelSpec) -> int:
    """Width of an attention head."""
    return model.kv_channels or model.hidden_size // model.num_attention_heads


def require_representable(job: JobSpec) -> None:
    """Raises UserError when Megatron-LM has no such network, or its arguments cannot say it."""
    if job.model.architecture != "gpt" or job.task is not None:
        raise UserError(
            f"{job.name} is a {job.model.architecture}: checkpoints for Megatron-LM are written of decoders alone"
        )
    if job.model.vision is not None:
        raise UserError(
            f"{job.name} has images (model.vision), and checkpoints for Megatron-LM are written of decoders alone: "
            "export it --to hf"
        )
    if job.model.lora is not None:
        raise UserError(
            f"{job.name} has adapters (model.lora), for which Megatron-LM's checkpoints have no place: "
            "export it --to hf, which adds them to the weights, import that, and export the import"
        )
    unsaid = [each for each in to_megatron(job).unsaid if each.path.startswith("model.")]
    # A checkpoint's arguments say how many rows there are, whatever Megatron-LM takes from the tokenizer, and the
    # longest sequence, which an imported model names also where its positions have no table.
    said = ("model.preset", "model.vocab_size", "model.max_position_embeddings")
    unsaid = [each for each in unsaid if not each.path.startswith(said)]
    if unsaid:
        listed = "; ".join(f"{each.path} is {each.value} ({each.reason})" for each in unsaid)
        raise UserError(f"Megatron-LM has no such network: {listed}")


def to_arguments(job: JobSpec, *, iteration: int, consumed_samples: int, padded_vocab: int) -> dict[str, Any]:
    """What Megatron-LM would have for arguments, at that point of the training."""
    model, degrees = job.model, job.parallelism
    flags = [flag for _, group in to_megatron(job).groups for flag in group]
    names = (*SAME, *(SAME_OF_EXPERTS if model.num_experts else ()))
    return {
        **dict(_argument(flag) for flag in flags),
        **{name: getattr(model, name) for name in names},
        "ffn_hidden_size": model.ffn_size,
        "kv_channels": _head(model),
        "group_query_attention": model.num_query_groups is not None,
        "num_query_groups": model.query_groups,
        "swiglu": model.activation == "swiglu",
        "squared_relu": model.activation == "squared_relu",
        "bias_gelu_fusion": model.activation == "gelu_tanh" and model.add_bias_linear and model.num_experts is None,
        "position_embedding_type": model.position_embedding_type,
        "add_position_embedding": True,
        "use_rotary_position_embeddings": False,
        "max_position_embeddings": model.positions,
        "vocab_size": model.vocab_size,
        "padded_vocab_size": padded_vocab,
        "bf16": job.precision.dtype == "bf16",
        "fp16": job.precision.dtype == "fp16",
        "tensor_model_parallel_size": degrees.tensor_model_parallel_size,
        "pipeline_model_parallel_size": degrees.pipeline_model_parallel_size,
        "virtual_pipeline_model_parallel_size": degrees.virtual_pipeline_model_parallel_size,
        "context_parallel_size": degrees.context_parallel_size,
        "expert_model_parallel_size": degrees.expert_model_parallel_size,
        "data_parallel_size": job.data_parallel_size,
        "world_size": job.world_size,
        "global_batch_size": job.global_batch_size,
        "micro_batch_size": job.batch.micro_batch_size,
        "use_distributed_optimizer": degrees.use_distributed_optimizer,
        "dist_ckpt_optim_fully_reshardable": True,
        "ckpt_format": "torch_dist",
        "no_save_rng": True,  # our generators are kept otherwise
        "iteration": iteration,
        "consumed_train_samples": consumed_samples,
        "skipped_train_samples": 0,
        "consumed_valid_samples": 0,
    }


def _argument(flag: tuple[str, ...]) -> tuple[str, Any]:
    """The name and the value of a flag as its parser has them."""
    name, words = flag[0].removeprefix("--").replace("-", "_"), flag[1:]
    if not words:
        return (name.removeprefix("no_"), False) if name.startswith("no_") else (name, True)
    values = [_value(word) for word in words]
    return name, values[0] if len(values) == 1 else values


def _value(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def scheduler_state(job: JobSpec, done: Progress) -> dict[str, Any]:
    """The state of megatron-core's OptimizerParamScheduler, whose steps are samples, of a training of which `done` is
    done.
    """
    schedule = HyperparameterSchedule.of(job, BatchSchedule.of(job, done))
    rates, decay = schedule.rates, schedule.weight_decay
    return {
        "max_lr": rates.lr,
        "lr_warmup_steps": rates.warmup_samples,
        "num_steps": done.samples,
        "lr_decay_style": rates.style,
        "lr_decay_steps": rates.decay_samples,
        "min_lr": rates.min_lr,
        "start_wd": decay.start,
        "end_wd": decay.end,
        "wd_incr_style": decay.style,
        "wd_incr_steps": decay.samples,
    }
