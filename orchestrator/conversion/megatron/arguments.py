"""Megatron-LM's arguments, which its checkpoints carry, and the model section of a job: both ways, without torch.

Most arguments have our fields' names. What they are read for when a checkpoint is loaded there: to compare the network,
the layout and the position in the data (`load_args_from_checkpoint`, `check_checkpoint_args` and `load_checkpoint` of
Megatron-LM's training/checkpointing.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from orchestrator.conversion.megatron import bert_and_t5
from orchestrator.errors import UserError
from orchestrator.fields.metadata import MegatronFlag, NotOfNetwork
from orchestrator.fields.resume import AtTheStart
from orchestrator.kernel_selection.fused_kernels import fuses_activation
from orchestrator.migration.flag_groups.rotary_positions import LLAMA_SCALING
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.models.blocks.flags import number_of
from orchestrator.models.blocks.registry import block_flags
from orchestrator.models.registry import GPT, ModelFamily
from orchestrator.planning.training_schedule.batch import BatchSchedule, Progress
from orchestrator.planning.training_schedule.hyperparameters import HyperparameterSchedule
from orchestrator.spec.job import JobSpec
from orchestrator.spec.messages.validation import errors_in_words
from orchestrator.spec.model import ModelSpec
from orchestrator.spec.schema.shape import declared

SAME = (
    *("ffn_hidden_size", "normalization", "num_experts"),
    *(name for name, flag in declared(MegatronFlag, ModelSpec) if flag.only is None or flag.only[1] == "rope"),
)
"""Arguments that are fields of the model section under the same name: those whose flags are for any model, and three
that say more or less than their flags."""
NULL_TOKENIZER = "NullTokenizer"
"""Megatron-LM's tokenizer that counts ids; an end of document comes to its --vocab-size."""
_RENAMED = {"layernorm_epsilon": "norm_epsilon", "layernorm_zero_centered_gamma": "apply_layernorm_1p"}
"""Arguments with another name than their flag and our field have; old releases have the flag's."""
_OF_BLOCKS = tuple(flags.arguments for flags in block_flags() if flags.arguments is not None)
_ACTIVATIONS = {"swiglu": "swiglu", "squared_relu": "squared_relu", "quick_geglu": "quick_geglu"}
_POSITIONS = ("learned_absolute", "rope", "relative", "none")
_NOT_HERE = {
    "heterogeneous_layers_config_path": "layers of several shapes",
    "heterogeneous_layers_config_encoded_json": "layers of several shapes",
    "spec": "layers of a specification of its own",
    "use_legacy_models": "layers of Megatron-LM's own",
    "use_te_activation_func": "activations of Transformer Engine",
    "onnx_safe": "another GeLU",
    "use_mup": "muP's multipliers",
    "softmax_type": "another softmax of the scores",
    **{name: what for flags in block_flags() for name, what in flags.not_imported.items()},
}
"""Arguments of Megatron-LM that, when they are set, make a network which is not described here."""
_KNOWN = {
    "softmax_type": ("vanilla", "learnable"),
    **{name: values for flags in block_flags() for name, values in flags.imported.items()},
}
"""Values of them with which the network is described here."""
_SCALING_FACTOR = 8.0
"""Of --use-rope-scaling, whatever --rope-scaling-factor says: GPT's builder hands megatron-core no other, in 0.16.1 and
in 0.19. Nor does it hand it --rotary-seq-len-interpolation-factor.
"""


def to_model(arguments: Mapping[str, Any], family: ModelFamily = GPT) -> dict[str, Any]:
    """The model section that arguments describe, which do not say of what family it is. Raises UserError when there is
    none.
    """
    if missing := [name for name in ("num_layers", "hidden_size", "num_attention_heads") if name not in arguments]:
        raise UserError(
            f"the checkpoint's arguments do not say {', '.join(missing)}: give the job with --job",
            code="missing_megatron_arguments",
        )
    arguments = bert_and_t5.with_known_layers(arguments, family)
    stray = {what for name, what in _NOT_HERE.items() if arguments.get(name) not in (*_UNSET, *_KNOWN.get(name, ()))}
    if stray:
        raise UserError(
            f"the checkpoint's network has {', '.join(sorted(stray))}, which is not imported",
            code="network_not_importable",
        )
    arguments = {**{ours: arguments.get(theirs) for theirs, ours in _RENAMED.items()}, **arguments}
    names = (*SAME, *(name for each in _OF_BLOCKS if arguments.get(each.asked) for name in each.fields))
    model = {name: arguments[name] for name in names if arguments.get(name) is not None}
    if model.get("add_bias_linear"):
        model.pop("add_qkv_bias", None)  # Megatron-LM's checks set it wherever linear layers have biases
    model |= _positions(arguments)
    if arguments.get("group_query_attention") and arguments.get("num_query_groups"):
        model["num_query_groups"] = arguments["num_query_groups"]
    # In one kernel with a bias GeLU is its approximation; in none with experts. Nothing reads `openai_gelu`.
    fuses = arguments.get("bias_gelu_fusion") and arguments.get("add_bias_linear") and not arguments.get("num_experts")
    plain = "gelu_tanh" if fuses else "gelu"
    model["activation"] = next((ours for name, ours in _ACTIVATIONS.items() if arguments.get(name)), plain)
    model |= {**_window(arguments, family), **bert_and_t5.to_fields(arguments, family)}
    for each in _OF_BLOCKS:
        model |= each.to_fields(arguments) if arguments.get(each.asked) else {}
    return model


_UNSET: tuple[Any, ...] = (None, False, 0, "", [], {})


def _positions(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """How positions are told apart. Raises UserError for another way."""
    kind = arguments.get("position_embedding_type", "learned_absolute")
    if arguments.get("use_rotary_position_embeddings"):
        kind = "rope"
    if kind not in _POSITIONS:
        raise UserError(
            f"the checkpoint's network has positions {kind}; imported are {', '.join(_POSITIONS)}",
            code="unsupported_positions",
        )
    found: dict[str, Any] = {"position_embedding_type": kind}
    if kind == "learned_absolute" and arguments.get("max_position_embeddings"):
        found["max_position_embeddings"] = arguments["max_position_embeddings"]
    if kind == "rope" and (freq := arguments.get("no_rope_freq")):
        if not isinstance(freq, int):
            raise UserError(
                "the checkpoint's network has positions by a list of layers, which is not imported",
                code="unsupported_positions",
            )
        found["no_rope_freq"] = freq
    if kind == "rope" and arguments.get("use_rope_scaling"):
        found["rope_scaling"] = {"type": "llama3", "factor": _SCALING_FACTOR, **LLAMA_SCALING}
    return found


def _window(arguments: Mapping[str, Any], family: ModelFamily) -> dict[str, Any]:
    """The window of attention. Raises UserError for a BERT's that is not as wide on both sides."""
    size, skip = arguments.get("window_size"), arguments.get("window_attn_skip_freq")
    if size is None:
        return {}
    if not isinstance(size, list | tuple) or len(size) != 2 or not all(type(each) is int for each in size):
        raise UserError(
            f"the checkpoint's argument window_size is {str(size)[:40]!r}, and two whole numbers are expected: it was "
            "changed or damaged; import another iteration (--iteration)",
            code="unsupported_window",
        )
    if size[0] < 0:
        return {}
    if family.is_masked_lm and size[0] != size[1]:
        raise UserError(
            f"the checkpoint's network has a window of {size[0]} tokens before a token and {size[1]} after it; a BERT "
            "with as many on both sides is imported",
            code="unsupported_window",
        )
    return {"sliding_window": size[0] + 1, **({"window_attn_skip_freq": skip} if skip else {})}


_NO_NETWORK = {"vision"}.union(name for kind in (NotOfNetwork, AtTheStart) for name, _ in declared(kind, ModelSpec))
"""What may be another in a job that goes on from a checkpoint; images are refused for themselves."""


def differences(job: JobSpec, arguments: Mapping[str, Any], family: ModelFamily = GPT) -> list[str]:
    """Where a job's network is not what arguments describe. Raises UserError when they describe none that is here."""
    described = {"seq_length": job.model.seq_length, **to_model(arguments, family)}
    try:
        theirs = ModelSpec.model_validate(described)
    except ValidationError as error:
        said = errors_in_words(error)
        raise UserError(
            f"the checkpoint's arguments describe an unsupported network: {said}", code="network_not_importable"
        ) from error
    there, here = network_of(theirs), network_of(job.model)
    return [f"model.{name} is {there[name]} there and {here[name]} here" for name in there if there[name] != here[name]]


def network_of(model: ModelSpec) -> dict[str, Any]:
    """What of a model decides its network, by field; None for what it does not depend on. Two of equal networks are
    equal here, however each is written.
    """
    found = {
        **model.model_dump(),
        "ffn_hidden_size": None if all(model.moe_layers) else model.ffn_size,
        "max_position_embeddings": model.positions if model.position_embedding_type == "learned_absolute" else None,
        **bert_and_t5.network(model),
    }
    for flags in block_flags():
        found |= flags.network(model)
    return {name: value for name, value in found.items() if name not in _NO_NETWORK}


def require_layers(arguments: Mapping[str, Any], tensors: Mapping[str, Sequence[int]]) -> None:
    """Raises UserError when arguments speak of more layers than there can be in stored `tensors` of these shapes: it
    asks before anything counts them.
    """
    most = max([len(tensors), *(shape[0] for shape in tensors.values() if shape)])
    for name in ("num_layers", "mtp_num_layers"):
        if (count := number_of(arguments, name, 0)) > most:
            raise UserError(
                f"the checkpoint's argument {name} says {count:,.0f}, and its tensors are of {most:,} layers at most: "
                "it was changed or damaged; import another iteration (--iteration)",
                code="layers_not_stored",
            )


def require_representable(job: JobSpec) -> None:
    """Raises UserError when Megatron-LM has no such network, or its arguments cannot say it."""
    if not bert_and_t5.has_layout(job.model.family) or job.has_task:
        what = "has a task" if job.has_task else f"is a {job.model.family.name}"
        raise UserError(
            f"{job.name} {what}: checkpoints for Megatron-LM support only GPT, BERT and T5",
            code="family_not_in_megatron",
        )
    bert_and_t5.require_halves_alike(job)
    if job.model.has_vision:
        raise UserError(
            f"{job.name} has images (model.vision), which checkpoints for Megatron-LM do not support: "
            "export it --to hf",
            code="images_not_in_megatron",
        )
    for require_exportable in (flags.require_exportable for flags in block_flags()):
        if require_exportable is not None:
            require_exportable(job)
    if job.model.has_adapters:
        raise UserError(
            f"{job.name} has adapters (model.lora), which Megatron-LM's checkpoints do not support: export it --to "
            "hf, which merges them into the weights, import the result, and export that",
            code="adapters_not_in_megatron",
        )
    unsaid = [each for each in to_megatron(job).unsaid if each.path.startswith("model.")]
    # A checkpoint's arguments say how many rows there are, whatever Megatron-LM takes from the tokenizer, and the
    # longest sequence, which an imported model names also where its positions have no table.
    said = ("model.preset", "model.vocab_size", "model.max_position_embeddings")
    unsaid = [each for each in unsaid if not each.path.startswith(said)]
    if unsaid:
        listed = "; ".join(f"{each.path} is {each.value} ({each.reason})" for each in unsaid)
        raise UserError(f"Megatron-LM has no such network: {listed}", code="network_not_in_megatron")
    arguments = to_arguments(job, iteration=0, consumed_samples=0, padded_vocab=0)
    if otherwise := differences(job, arguments, job.model.family):
        raise UserError(
            f"Megatron-LM's arguments do not describe this network ({'; '.join(otherwise)}): export it --to hf",
            code="network_not_in_megatron",
        )


def to_arguments(job: JobSpec, *, iteration: int, consumed_samples: int, padded_vocab: int) -> dict[str, Any]:
    """What Megatron-LM would have for arguments, at that point of the training."""
    model, degrees = job.model, job.parallelism
    flags = dict(_argument(flag) for _, group in to_megatron(job).groups for flag in group)
    size = model.vocab_size
    if size is not None and flags.get("tokenizer_type") == NULL_TOKENIZER:
        size -= 1  # it leaves out the end of a document
    names = (*SAME, *(name for each in _OF_BLOCKS if getattr(model, each.has) for name in each.fields))
    return {
        **flags,
        **{name: getattr(model, name) for name in names},
        **{theirs: getattr(model, ours) for theirs, ours in _RENAMED.items()},
        **bert_and_t5.to_arguments(model),
        "ffn_hidden_size": model.ffn_size,
        "kv_channels": model.head_dim,
        "add_qkv_bias": model.has_qkv_bias,
        "window_size": model.window_size,
        "group_query_attention": model.num_query_groups is not None and not model.has_latent_attention,
        "num_query_groups": model.query_groups,
        "swiglu": model.activation == "swiglu",
        "squared_relu": model.activation == "squared_relu",
        "quick_geglu": model.activation == "quick_geglu",
        "bias_gelu_fusion": model.activation == "gelu_tanh" and fuses_activation(model),
        "position_embedding_type": model.position_embedding_type,
        "add_position_embedding": True,
        "use_rotary_position_embeddings": False,
        "max_position_embeddings": model.positions,
        "vocab_size": size,
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


_SWITCHED_OFF = {"no_rope_fusion": "apply_rope_fusion"}
"""Flags whose argument is not the flag's name without `no_`."""


def _argument(flag: tuple[str, ...]) -> tuple[str, Any]:
    """The name and the value of a flag as its parser has them."""
    name, words = flag[0].removeprefix("--").replace("-", "_"), flag[1:]
    if not words:
        return (_SWITCHED_OFF.get(name, name.removeprefix("no_")), False) if name.startswith("no_") else (name, True)
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
