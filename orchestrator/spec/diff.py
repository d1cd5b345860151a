"""What a changed spec means for a run that goes on: each changed field with its class and the reason.

`safe`: the losses agree with those of the unchanged run up to rounding. `trajectory`: training goes on, with other
losses. `forbidden`: the run cannot go on as the changed job, most often because its checkpoint does not fit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from orchestrator.spec.base import Section
from orchestrator.spec.hybrid import layer_pattern, state_space_heads
from orchestrator.spec.job import JobSpec
from orchestrator.spec.shape import leaf_paths

ChangeClass = Literal["safe", "trajectory", "forbidden"]


@dataclass(frozen=True)
class Change:
    """One field that differs."""

    path: str
    old: Any
    new: Any
    kind: ChangeClass
    reason: str


Verdict: TypeAlias = tuple[ChangeClass, str]
Judge: TypeAlias = Callable[[JobSpec, JobSpec], Verdict]


def diff_jobs(old: JobSpec, new: JobSpec) -> list[Change]:
    """The differences in the order of the schema; empty for equal jobs."""
    changes = list(_field_changes(old, new))
    if old.global_batch_size != new.global_batch_size and not any(
        change.path == "batch.global_batch_size" for change in changes
    ):
        reason = "the global batch follows from micro-batch · micro-batches · DP: " + _GLOBAL_BATCH
        sizes = old.global_batch_size, new.global_batch_size
        changes.append(Change("batch.global_batch_size", *sizes, "trajectory", reason))
    return changes


def _field_changes(old: JobSpec, new: JobSpec) -> Iterator[Change]:
    for path in leaf_paths():
        before, after = _value(old, path), _value(new, path)
        if before == after:
            continue
        rule = judgement(path)
        kind, reason = rule(old, new) if callable(rule) else rule
        yield Change(path, _plain(before), _plain(after), kind, reason)


def judgement(path: str) -> Verdict | Judge:
    """The entry of the table for a field: its own, or else that of its section. Raises KeyError when there is none."""
    if path in TABLE:
        return TABLE[path]
    return TABLE[path.partition(".")[0] + ".*"]


def _value(job: JobSpec, path: str) -> Any:
    value: Any = job
    for part in path.split("."):
        if value is None:
            return None
        value = getattr(value, part)
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [
            item.model_dump(mode="json", exclude_defaults=True) if isinstance(item, Section) else item for item in value
        ]
    return value


_GLOBAL_BATCH = "each step sees another number of samples"
_SHAPE: Verdict = ("forbidden", "the checkpoint's weights have another shape or meaning")
_LAYOUT: Verdict = ("safe", "checkpoints are read at any layout; losses agree, not bitwise")
_LOGIC: Verdict = ("trajectory", "the model computes something else from the same weights")
_RATE: Verdict = ("trajectory", "the learning rate of the steps to come changes")
_UPDATE: Verdict = ("trajectory", "the optimizer takes other steps")
_ORDER: Verdict = ("trajectory", "the samples to come are others")
_ROUNDING: Verdict = ("trajectory", "every step rounds differently")
_SCALING: Verdict = ("trajectory", "which steps overflow in fp16, and are skipped, changes")
_BALANCE: Verdict = ("trajectory", "the gradient that balances the experts changes")
_ADAPTERS: Verdict = ("forbidden", "the checkpoint has other adapters; start another run from it")
_LOSS: Verdict = ("trajectory", "the loss is computed otherwise")
_TOKENS: Verdict = ("forbidden", "token ids may have another meaning")
_INITIAL: Verdict = ("safe", "weights are initialised once, and they are in the checkpoint")


def _global_batch(old: JobSpec, new: JobSpec) -> Verdict:
    if old.global_batch_size == new.global_batch_size:
        return "safe", "the global batch is the same"
    return "trajectory", _GLOBAL_BATCH


def _micro_batch(old: JobSpec, new: JobSpec) -> Verdict:
    if _balances_groups_of_tokens(old) or _balances_groups_of_tokens(new):
        return "trajectory", "experts are balanced over other groups of tokens"
    if old.global_batch_size == new.global_batch_size:
        return "safe", "the global batch is the same; losses agree, not bitwise"
    return "trajectory", _GLOBAL_BATCH


def _balances_groups_of_tokens(job: JobSpec) -> bool:
    """Whether experts are balanced within each micro-batch."""
    model = job.model
    by_loss = model.moe_router_load_balancing_type == "aux_loss" and model.moe_aux_loss_coeff > 0
    return model.num_experts is not None and (by_loss or _assigns_by_rank(job))


def _assigns_by_rank(job: JobSpec) -> bool:
    """Whether what a token is given to depends on the others of its rank."""
    model = job.model
    return model.moe_router_load_balancing_type == "sinkhorn" or model.moe_expert_capacity_factor is not None


def _parts_of_sequences(old: JobSpec, new: JobSpec) -> Verdict:
    if _assigns_by_rank(old) or _assigns_by_rank(new):
        return "trajectory", "experts are given out among other groups of tokens"
    return _LAYOUT


def _distributed_optimizer(old: JobSpec, new: JobSpec) -> Verdict:
    if "fp32" in (old.precision.dtype, new.precision.dtype):
        return "forbidden", "in fp32 the plain and the distributed optimizer store their state differently"
    return "safe", "the state is read either way; losses agree, not bitwise"


def _vocabulary(old: JobSpec, new: JobSpec) -> Verdict:
    return "forbidden", "the embedding has another number of rows, or its rows another meaning"


def _seed(old: JobSpec, new: JobSpec) -> Verdict:
    if old.model.hidden_dropout == old.model.attention_dropout == 0.0:
        return "safe", "weights are in the checkpoint, and there is no dropout"
    return "trajectory", "dropout draws other masks"


def _positions(old: JobSpec, new: JobSpec) -> Verdict:
    if "learned_absolute" not in (old.model.position_embedding_type, new.model.position_embedding_type):
        return "safe", "there is no table of positions"
    if old.model.positions == new.model.positions:
        return "safe", "the table of positions has the same length"
    return _SHAPE


def _activation(old: JobSpec, new: JobSpec) -> Verdict:
    if {old.model.activation, new.model.activation} == {"gelu", "gelu_tanh"}:
        return "trajectory", "the tanh approximation differs from GeLU by up to 0.0005"
    return _SHAPE


def _sequence(old: JobSpec, new: JobSpec) -> Verdict:
    if "learned_absolute" in (old.model.position_embedding_type, new.model.position_embedding_type) and (
        old.model.positions != new.model.positions
    ):
        return "forbidden", "the table of learned positions has another length"
    return "trajectory", "the data is cut into other samples"


def _place(path: str | None) -> str | None:
    """The absolute path, so that spellings of the same path are equal."""
    return None if path is None else os.path.abspath(path)


def _sources(old: JobSpec, new: JobSpec) -> Verdict:
    before, after = ([(_place(entry.path), entry.weight) for entry in job.data.blend or []] for job in (old, new))
    if before == after:
        return "safe", "the same data sets; only how a missing one would be made changes"
    return _ORDER


def _training_part(old: JobSpec, new: JobSpec) -> Verdict:
    if old.data.training_share == new.data.training_share:
        return "safe", "evaluation sees other data; training does not change"
    return "trajectory", "another part of each source is for training: the samples to come are others"


def _parameter_groups(old: JobSpec, new: JobSpec) -> Verdict:
    return "forbidden", "the checkpoint's optimizer has other groups of parameters"


def _decoupled_rate(old: JobSpec, new: JobSpec) -> Verdict:
    if (old.optimizer.decoupled_lr is None) != (new.optimizer.decoupled_lr is None):
        return _parameter_groups(old, new)
    return _RATE


def _width_of_images(job: JobSpec) -> int | None:
    return None if job.model.vision is None else job.model.vision.ffn_size


def _momentum(old: JobSpec, new: JobSpec) -> Verdict:
    if old.optimizer.state_tensors != new.optimizer.state_tensors:
        return "forbidden", "the optimizer's state is another one"
    return _UPDATE


def _same_or(size: Callable[[JobSpec], object], otherwise: Verdict) -> Judge:
    """Safe when what follows from a field is the same although the field was written differently."""

    def judge(old: JobSpec, new: JobSpec) -> Verdict:
        if size(old) == size(new):
            return "safe", "written differently, with the same result"
        return otherwise

    return judge


TABLE: dict[str, Verdict | Judge] = {
    "name": ("forbidden", "another name is another job, whose runs have a folder of their own"),
    # model
    "model.architecture": _SHAPE,
    "model.preset": ("safe", "a preset only fills in fields, which are compared themselves"),
    "model.num_layers": _SHAPE,
    "model.hidden_size": _SHAPE,
    "model.num_attention_heads": _SHAPE,
    "model.seq_length": _sequence,
    "model.ffn_hidden_size": _same_or(lambda job: job.model.ffn_size, _SHAPE),
    "model.num_query_groups": _same_or(lambda job: job.model.query_groups, _SHAPE),
    "model.kv_channels": _same_or(lambda job: job.model.head_dim, _SHAPE),
    "model.max_position_embeddings": _positions,
    "model.vocab_size": _vocabulary,
    "model.make_vocab_size_divisible_by": _vocabulary,
    "model.position_embedding_type": _SHAPE,
    "model.rotary_percent": _LOGIC,
    "model.rotary_base": _LOGIC,
    "model.rope_scaling.type": _LOGIC,
    "model.rope_scaling.factor": _LOGIC,
    "model.rope_scaling.original_max_position_embeddings": _LOGIC,
    "model.rope_scaling.low_freq_factor": _LOGIC,
    "model.rope_scaling.high_freq_factor": _LOGIC,
    "model.rope_scaling.beta_fast": _LOGIC,
    "model.rope_scaling.beta_slow": _LOGIC,
    "model.rope_scaling.attention_factor": _LOGIC,
    "model.sliding_window": _LOGIC,
    "model.window_attn_skip_freq": _LOGIC,
    "model.attention_logit_softcapping": _LOGIC,
    "model.softmax_scale": _LOGIC,
    "model.final_logit_softcapping": _LOGIC,
    "model.normalization": _SHAPE,
    "model.transformer_block_type": _SHAPE,
    "model.norm_epsilon": _LOGIC,
    "model.apply_layernorm_1p": ("forbidden", "the weights of norms have another meaning"),
    "model.activation": _activation,
    "model.add_bias_linear": _SHAPE,
    "model.add_qkv_bias": _same_or(lambda job: job.model.has_qkv_bias, _SHAPE),
    "model.qk_layernorm": _SHAPE,
    "model.untie_embeddings_and_output_weights": _SHAPE,
    "model.scale_embeddings": _LOGIC,
    "model.scale_decoder_outputs": _LOGIC,
    "model.add_output_bias": _SHAPE,
    "model.bert_binary_head": _SHAPE,
    "model.num_tokentypes": _same_or(lambda job: job.model.tokentypes, _SHAPE),
    "model.encoder_num_layers": _same_or(lambda job: job.model.encoder_layers, _SHAPE),
    "model.decoder_num_layers": _same_or(lambda job: job.model.decoder_layers, _SHAPE),
    "model.decoder_seq_length": _LOGIC,
    "model.relative_attention_num_buckets": _SHAPE,
    "model.relative_attention_max_distance": _LOGIC,
    "model.hidden_dropout": _LOGIC,
    "model.attention_dropout": _LOGIC,
    "model.num_experts": _SHAPE,
    "model.moe_layer_freq": _same_or(lambda job: job.model.moe_layers, _SHAPE),
    "model.moe_ffn_hidden_size": _same_or(lambda job: job.model.moe_ffn_size, _SHAPE),
    "model.moe_shared_expert_intermediate_size": _SHAPE,
    "model.moe_router_topk": _LOGIC,
    "model.moe_router_score_function": _LOGIC,
    "model.moe_router_pre_softmax": _LOGIC,
    "model.moe_router_dtype": ("trajectory", "the router rounds differently, and near ties choose other experts"),
    "model.moe_router_load_balancing_type": _BALANCE,
    "model.moe_aux_loss_coeff": _BALANCE,
    "model.moe_z_loss_coeff": _BALANCE,
    "model.moe_expert_capacity_factor": _LOGIC,
    "model.moe_token_dispatcher_type": ("safe", "tokens come to their experts another way; losses agree, not bitwise"),
    "model.moe_grouped_gemm": ("safe", "the same products in other kernels; losses agree, not bitwise"),
    "model.lora.rank": _ADAPTERS,
    "model.lora.target_modules": _ADAPTERS,
    "model.lora.alpha": _LOGIC,
    "model.lora.lora_dropout": _LOGIC,
    "model.vision.image_size": _SHAPE,
    "model.vision.patch_size": _SHAPE,
    "model.vision.num_layers": _SHAPE,
    "model.vision.hidden_size": _SHAPE,
    "model.vision.num_attention_heads": _SHAPE,
    "model.vision.ffn_hidden_size": _same_or(_width_of_images, _SHAPE),
    "model.vision.activation": _LOGIC,
    "model.vision.norm_epsilon": _LOGIC,
    "model.vision.images_per_sequence": _ORDER,
    "model.vision.freeze": _parameter_groups,
    "model.hybrid_override_pattern": _same_or(lambda job: layer_pattern(job.model), _SHAPE),
    "model.hybrid_attention_ratio": _same_or(lambda job: layer_pattern(job.model), _SHAPE),
    "model.hybrid_mlp_ratio": _same_or(lambda job: layer_pattern(job.model), _SHAPE),
    "model.mamba_state_dim": _SHAPE,
    "model.mamba_head_dim": _SHAPE,
    "model.mamba_num_groups": _SHAPE,
    "model.mamba_num_heads": _same_or(lambda job: state_space_heads(job.model), _SHAPE),
    "model.init_method_std": _INITIAL,
    # parallelism
    "parallelism.*": _LAYOUT,
    "parallelism.tensor_model_parallel_size": _parts_of_sequences,
    "parallelism.context_parallel_size": _parts_of_sequences,
    "parallelism.use_distributed_optimizer": _distributed_optimizer,
    "parallelism.overlap_grad_reduce": ("safe", "only when communication happens changes"),
    "parallelism.overlap_param_gather": ("safe", "only when communication happens changes"),
    "parallelism.tp_comm_overlap": ("safe", "only when communication happens changes"),
    # batch
    "batch.micro_batch_size": _micro_batch,
    "batch.global_batch_size": _global_batch,
    "batch.num_micro_batches": _global_batch,
    "batch.rampup_batch_size.start_global_batch_size": ("trajectory", _GLOBAL_BATCH),
    "batch.rampup_batch_size.increment": ("trajectory", _GLOBAL_BATCH),
    "batch.rampup_batch_size.samples": ("trajectory", _GLOBAL_BATCH),
    "batch.calculate_per_token_loss": _same_or(lambda job: job.has_per_token_loss, _LOSS),
    # data
    "data.blend": _sources,
    "data.split": _training_part,
    "data.seed": _ORDER,
    "data.random_tokens": _ORDER,
    "data.reset_position_ids": _LOGIC,
    "data.eod_mask_loss": ("trajectory", "the loss is taken over other tokens"),
    "data.chat.packing": _ORDER,
    "data.chat.long_conversations": _ORDER,
    "data.chat.template": ("safe", "only how a missing data set would be made changes"),
    "data.chat.date": ("safe", "only how a missing data set would be made changes"),
    "data.mask_prob": _ORDER,
    "data.short_seq_prob": _ORDER,
    "data.bert_order": _ORDER,
    "data.validation": _training_part,
    "data.test": _training_part,
    "data.tokenizer.type": ("forbidden", "token ids have another meaning"),
    "data.tokenizer.path": _same_or(lambda job: _place(job.data.tokenizer.path), _TOKENS),
    "data.tokenizer.merges": _same_or(lambda job: _place(job.data.tokenizer.merges), _TOKENS),
    "data.tokenizer.lower_case": ("forbidden", "text may become other tokens"),
    "data.tokenizer.vocab_extra_ids": ("forbidden", "the ids of T5's sentinels have another meaning"),
    "data.prepare": ("safe", "only what happens when a data set is missing changes"),
    "data.cache_dir": ("safe", "the order of samples does not depend on where it is cached"),
    "data.num_workers": ("safe", "the order of samples does not depend on who loads them"),
    "data.num_dataset_builder_threads": ("safe", "the order of samples does not depend on who builds it"),
    # task
    "task.name": ("forbidden", "the checkpoint has another head"),
    "task.train": _same_or(lambda job: [_place(path) for path in job.task.train] if job.task else None, _ORDER),
    "task.validation": ("safe", "evaluation sees other examples; training does not change"),
    # optimizer and schedule
    "optimizer.*": _UPDATE,
    "optimizer.name": ("forbidden", "the optimizer's state has another meaning"),
    "optimizer.lr": _RATE,
    "optimizer.min_lr": _RATE,
    "optimizer.decoupled_lr": _decoupled_rate,
    "optimizer.decoupled_min_lr": _RATE,
    "optimizer.decay_norms": _parameter_groups,
    "optimizer.apply_wd_to_qk_layernorm": _parameter_groups,
    "optimizer.decay_embeddings": _parameter_groups,
    "optimizer.sgd_momentum": _momentum,
    "schedule.*": _RATE,
    "schedule.train_iters": ("trajectory", "the length sets the decay and how much data is drawn"),
    "schedule.train_samples": ("trajectory", "the length sets the decay and how much data is drawn"),
    "schedule.train_tokens": ("trajectory", "the length sets the decay and how much data is drawn"),
    "schedule.drop_last": ("trajectory", "the length sets the decay and how much data is drawn"),
    # precision
    "precision.dtype": _ROUNDING,
    "precision.fp8.recipe": _ROUNDING,
    "precision.fp8.format": _ROUNDING,
    "precision.fp8.margin": _ROUNDING,
    "precision.fp8.amax_history_len": _ROUNDING,
    "precision.fp8.amax_compute_algo": _ROUNDING,
    "precision.fp8.num_layers_at_start_in_bf16": _ROUNDING,
    "precision.fp8.num_layers_at_end_in_bf16": _ROUNDING,
    "precision.grad_reduce_in_fp32": _ROUNDING,
    "precision.loss_scale": _SCALING,
    "precision.initial_loss_scale": ("safe", "the scale in force is in the checkpoint"),
    "precision.min_loss_scale": _SCALING,
    "precision.loss_scale_window": _SCALING,
    "precision.hysteresis": _SCALING,
    # the rest
    "checkpoint.*": ("safe", "when and where checkpoints are written does not touch training"),
    "checkpoint.pretrained": ("safe", "where the weights came from: the run goes on from its own checkpoint"),
    "evaluation.*": ("safe", "evaluation does not touch training"),
    "tracking.*": ("safe", "tracking does not touch training"),
    "throughput.*": ("safe", "how speed is counted does not touch training"),
    "notifications.*": ("safe", "who is told does not touch training"),
    "launch.*": ("safe", "where a job runs does not touch training; losses agree, not bitwise"),
    "runtime.device": ("safe", "losses agree, not bitwise"),
    "runtime.layers": ("safe", "both implementations read the same checkpoints; losses agree, not bitwise"),
    "runtime.attention_backend": ("safe", "the same attention in other kernels; losses agree, not bitwise"),
    "runtime.cuda_graphs": ("safe", "the same kernels; losses agree, not bitwise with several replicas"),
    "runtime.seed": _seed,
    "runtime.deterministic": ("safe", "losses agree, not bitwise"),
    "runtime.train_step": _LOSS,
    "runtime.train_step_arguments": _LOSS,
    "runtime.threads_per_rank": ("safe", "losses agree, not bitwise"),
    "runtime.max_bad_steps": ("safe", "only when the job gives up changes"),
    "runtime.hang_timeout": ("safe", "only when the job gives up changes"),
    "runtime.fused_linear_cross_entropy": ("safe", "the same loss in other kernels; losses agree, not bitwise"),
    "runtime.gradient_accumulation_fusion": ("safe", "the same gradients, rounded less; losses agree, not bitwise"),
    "runtime.recompute_granularity": ("safe", "recomputation gives the same values"),
    "runtime.recompute_method": ("safe", "recomputation gives the same values"),
    "runtime.recompute_num_layers": ("safe", "recomputation gives the same values"),
    "runtime.recompute_modules": ("safe", "recomputation gives the same values"),
    "runtime.distribute_saved_activations": ("safe", "recomputation gives the same values"),
    "runtime.cpu_offloading_num_layers": ("safe", "only where activations wait for the backward pass changes"),
}
