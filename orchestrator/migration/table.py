"""Megatron-LM's flags and the fields of a job spec: one table, read in both directions.

Facts about the flags (names, defaults, number of values) are those of Megatron-LM's argument parser, releases
core_r0.5.0 to core_r0.16.0, with spellings of earlier ones. What several flags say together is in `flag_groups/`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.migration.defaults import REQUIRED
from orchestrator.models.registry import BERT, FAMILIES, MAMBA, T5

OURS: Any = object()
"""The default of Megatron-LM is the spec's own."""


@dataclass(frozen=True)
class Kind:
    """How the value of a flag is read and written."""

    values: int
    """Words behind the flag."""
    read: Callable[[str], Any]
    """Raises ValueError for what the field cannot take."""
    write: Callable[[Any], str | None]
    """None for what the flag cannot say."""
    is_choice: bool = False
    """Another word is something that this version does not have, and no slip."""


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        number = _number(text, "a whole number")
    if not number.is_integer():  # infinity is none either
        raise ValueError(f"{text!r} is not a whole number")
    return int(number)


def _number(text: str, kind: str = "a number") -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not {kind}") from None


def _number_text(number: Any) -> str:
    return repr(number)


WHOLE = Kind(1, _whole, str)
NUMBER = Kind(1, _number, _number_text)
NUMBER_OR_ZERO = Kind(1, lambda text: _number(text) or None, _number_text)
"""A number, where 0 is none."""
TEXT = Kind(1, str, str)
MINUTES = Kind(1, lambda text: _whole(text) * 60, lambda s: str(s // 60) if s % 60 == 0 else None)


def switch(value: Any) -> Kind:
    """A flag without values that stands for one."""
    return Kind(0, lambda text: value, lambda given: "" if given == value else None)


def choice(names: Mapping[str, Any], others: Mapping[str, Any] | None = None) -> Kind:
    """A flag with one of several words; `others` are those of earlier releases and forks, read and never written."""
    known = {**names, **(others or {})}

    def read(text: str) -> Any:
        if text not in known:
            raise ValueError(f"of its choices this version has {', '.join(names)}")
        return known[text]

    def write(value: Any) -> str | None:
        return next((name for name, meant in names.items() if meant == value), None)

    return Kind(1, read, write, is_choice=True)


def same(*names: str) -> Kind:
    """A flag whose words are ours."""
    return choice({name: name for name in names})


@dataclass(frozen=True)
class Row:
    """A flag and the field that it is."""

    flag: str
    path: str
    kind: Kind
    default: Any = OURS
    """What Megatron-LM does without the flag, where the spec's default is another; REQUIRED where it refuses."""
    only: tuple[str, Any] | None = None
    """(path, value, or several): what it is for; elsewhere it has no effect."""
    choices: tuple[str, Mapping[Any, tuple[str, ...]]] | None = None
    """(path, values by that of the path): where not every job can have every value."""

    def is_for(self, value: Any) -> bool:
        """Whether it has an effect where `only`'s path has that value."""
        wanted = self.only[1] if self.only is not None else value
        return value in wanted if isinstance(wanted, tuple) else bool(value == wanted)

    @property
    def purpose(self) -> str:
        """What it is for, in words."""
        assert self.only is not None, "for some jobs alone"
        path, wanted = self.only
        return f"it is for {path}: {' or '.join(wanted) if isinstance(wanted, tuple) else wanted}"


_SENTENCES = ("model.architecture", tuple(each.name for each in FAMILIES.values() if each.least_sentences))
_BERT = ("model.architecture", BERT.name)
_T5 = ("model.architecture", T5.name)
_MAMBA = ("model.architecture", MAMBA.name)
_RELATIVE = ("model.position_embedding_type", "relative")
_ROPE = ("model.position_embedding_type", "rope")
_FP16 = ("precision.dtype", "fp16")
_ADAM = ("optimizer.name", "adam")
_WSD = ("schedule.lr_decay_style", "WSD")
# Megatron-DeepSpeed writes them small.
_NORMS = choice({"LayerNorm": "LayerNorm", "RMSNorm": "RMSNorm"}, {"layernorm": "LayerNorm", "rmsnorm": "RMSNorm"})
# Other groups' flags know ALiBi, and the first two by their names of old.
_POSITIONS = choice(
    {name: name for name in ("learned_absolute", "rope", "relative", "none")},
    {"absolute": "learned_absolute", "rotary": "rope", "alibi": "alibi"},
)
_POSITIONS_OF = {name: family.positions for name, family in FAMILIES.items()}
_WSD_STYLES = ("exponential", "linear", "cosine", "minus_sqrt")
# Megatron-LM's flash attention takes jobs that FlashAttention 4 does not, and nothing that ran is to be refused.
_ATTENTION = choice({"auto": "auto", "fused": "fused", "flash": "auto"})

ROWS: tuple[Row, ...] = (
    # model
    Row("num-layers", "model.num_layers", WHOLE),
    Row("hidden-size", "model.hidden_size", WHOLE),
    Row("num-attention-heads", "model.num_attention_heads", WHOLE),
    Row("seq-length", "model.seq_length", WHOLE),
    Row("kv-channels", "model.kv_channels", WHOLE),
    Row("make-vocab-size-divisible-by", "model.make_vocab_size_divisible_by", WHOLE),
    Row(
        "position-embedding-type",
        "model.position_embedding_type",
        _POSITIONS,
        "learned_absolute",
        choices=("model.architecture", _POSITIONS_OF),
    ),
    Row("rotary-percent", "model.rotary_percent", NUMBER, only=_ROPE),
    Row("rotary-base", "model.rotary_base", WHOLE, only=_ROPE),
    Row("normalization", "model.normalization", _NORMS),
    Row("norm-epsilon", "model.norm_epsilon", NUMBER),
    Row("apply-layernorm-1p", "model.apply_layernorm_1p", switch(True)),
    Row("disable-bias-linear", "model.add_bias_linear", switch(False)),
    Row("add-qkv-bias", "model.add_qkv_bias", switch(True)),
    Row("qk-layernorm", "model.qk_layernorm", switch(True)),
    Row("untie-embeddings-and-output-weights", "model.untie_embeddings_and_output_weights", switch(True)),
    Row("hidden-dropout", "model.hidden_dropout", NUMBER, 0.1),
    Row("attention-dropout", "model.attention_dropout", NUMBER, 0.1),
    Row("init-method-std", "model.init_method_std", NUMBER),
    Row("decoder-num-layers", "model.decoder_num_layers", WHOLE, only=_T5),
    Row("decoder-seq-length", "model.decoder_seq_length", WHOLE, only=_T5),
    Row("relative-attention-num-buckets", "model.relative_attention_num_buckets", WHOLE, only=_RELATIVE),
    Row("relative-attention-max-distance", "model.relative_attention_max_distance", WHOLE, only=_RELATIVE),
    Row("bert-no-binary-head", "model.bert_binary_head", switch(False), only=_BERT),
    Row("hybrid-attention-ratio", "model.hybrid_attention_ratio", NUMBER, only=_MAMBA),
    Row("hybrid-mlp-ratio", "model.hybrid_mlp_ratio", NUMBER, only=_MAMBA),
    Row("mamba-state-dim", "model.mamba_state_dim", WHOLE, only=_MAMBA),
    Row("mamba-head-dim", "model.mamba_head_dim", WHOLE, only=_MAMBA),
    Row("mamba-num-groups", "model.mamba_num_groups", WHOLE, only=_MAMBA),
    Row("mamba-num-heads", "model.mamba_num_heads", WHOLE, only=_MAMBA),
    # parallelism
    Row(
        "tensor-model-parallel-size",
        "parallelism.tensor_model_parallel_size",
        WHOLE,
    ),
    Row("pipeline-model-parallel-size", "parallelism.pipeline_model_parallel_size", WHOLE),
    Row("pipeline-model-parallel-split-rank", "parallelism.pipeline_model_parallel_split_rank", WHOLE, only=_T5),
    Row("decoder-first-pipeline-num-layers", "parallelism.num_layers_in_first_pipeline_stage", WHOLE),
    Row("decoder-last-pipeline-num-layers", "parallelism.num_layers_in_last_pipeline_stage", WHOLE),
    Row("account-for-embedding-in-pipeline-split", "parallelism.account_for_embedding_in_pipeline_split", switch(True)),
    Row("account-for-loss-in-pipeline-split", "parallelism.account_for_loss_in_pipeline_split", switch(True)),
    Row("context-parallel-size", "parallelism.context_parallel_size", WHOLE),
    Row("expert-model-parallel-size", "parallelism.expert_model_parallel_size", WHOLE),
    Row("use-distributed-optimizer", "parallelism.use_distributed_optimizer", switch(True), False),
    Row("overlap-grad-reduce", "parallelism.overlap_grad_reduce", switch(True), False),
    # batch
    Row("micro-batch-size", "batch.micro_batch_size", WHOLE, REQUIRED),
    # data
    Row("data-cache-path", "data.cache_dir", TEXT),
    Row("num-workers", "data.num_workers", WHOLE),
    Row("reset-position-ids", "data.reset_position_ids", switch(True)),
    Row("eod-mask-loss", "data.eod_mask_loss", switch(True)),
    Row("num-dataset-builder-threads", "data.num_dataset_builder_threads", WHOLE),
    Row("vocab-extra-ids", "data.tokenizer.vocab_extra_ids", WHOLE),
    Row("mask-prob", "data.mask_prob", NUMBER, only=_SENTENCES),
    Row("short-seq-prob", "data.short_seq_prob", NUMBER, only=_SENTENCES),
    # optimizer
    Row("optimizer", "optimizer.name", same("adam", "sgd")),
    Row("lr", "optimizer.lr", NUMBER),
    Row("min-lr", "optimizer.min_lr", NUMBER),
    Row("decoupled-lr", "optimizer.decoupled_lr", NUMBER),
    Row("decoupled-min-lr", "optimizer.decoupled_min_lr", NUMBER),
    Row("weight-decay", "optimizer.weight_decay", NUMBER),
    Row("weight-decay-incr-style", "optimizer.weight_decay_incr_style", same("constant", "linear", "cosine")),
    Row("start-weight-decay", "optimizer.start_weight_decay", NUMBER),
    Row("end-weight-decay", "optimizer.end_weight_decay", NUMBER),
    Row("apply-wd-to-qk-layernorm", "optimizer.apply_wd_to_qk_layernorm", switch(True)),
    Row("adam-beta1", "optimizer.adam_beta1", NUMBER, only=_ADAM),
    Row("adam-beta2", "optimizer.adam_beta2", NUMBER, only=_ADAM),
    Row("adam-eps", "optimizer.adam_eps", NUMBER, only=_ADAM),
    Row("sgd-momentum", "optimizer.sgd_momentum", NUMBER, only=("optimizer.name", "sgd")),
    Row("clip-grad", "optimizer.clip_grad", NUMBER),
    # schedule
    Row("train-iters", "schedule.train_iters", WHOLE),
    Row(
        "lr-decay-style",
        "schedule.lr_decay_style",
        same("constant", "linear", "cosine", "inverse-square-root", "WSD"),
        "linear",
    ),
    Row("lr-decay-iters", "schedule.lr_decay_iters", WHOLE),
    Row("lr-decay-samples", "schedule.lr_decay_samples", WHOLE),
    Row("lr-wsd-decay-style", "schedule.lr_wsd_decay_style", same(*_WSD_STYLES), only=_WSD),
    Row("lr-wsd-decay-iters", "schedule.lr_wsd_decay_iters", WHOLE, only=_WSD),
    Row("lr-wsd-decay-samples", "schedule.lr_wsd_decay_samples", WHOLE, only=_WSD),
    Row("lr-warmup-init", "schedule.lr_warmup_init", NUMBER),
    # precision
    Row("bf16", "precision.dtype", switch("bf16"), "fp32"),
    Row("fp16", "precision.dtype", switch("fp16"), "fp32"),
    Row("loss-scale", "precision.loss_scale", NUMBER_OR_ZERO, only=_FP16),
    Row("initial-loss-scale", "precision.initial_loss_scale", NUMBER, only=_FP16),
    Row("min-loss-scale", "precision.min_loss_scale", NUMBER, only=_FP16),
    Row("loss-scale-window", "precision.loss_scale_window", WHOLE, only=_FP16),
    Row("hysteresis", "precision.hysteresis", WHOLE, only=_FP16),
    # checkpoint, tracking, runtime
    Row("async-save", "checkpoint.async_save", switch(True), False),
    Row("log-interval", "tracking.log_interval", WHOLE, 100),
    Row("recompute-granularity", "runtime.recompute_granularity", same("selective", "full")),
    Row(
        "recompute-method",
        "runtime.recompute_method",
        same("uniform", "block"),
        only=("runtime.recompute_granularity", "full"),
    ),
    Row("recompute-num-layers", "runtime.recompute_num_layers", WHOLE, only=("runtime.recompute_granularity", "full")),
    Row(
        "distribute-saved-activations",
        "runtime.distribute_saved_activations",
        switch(True),
        only=("runtime.recompute_granularity", "full"),
    ),
    Row("transformer-impl", "runtime.layers", choice({"local": "torch", "transformer_engine": "transformer_engine"})),
    Row("attention-backend", "runtime.attention_backend", _ATTENTION),
    Row("no-gradient-accumulation-fusion", "runtime.gradient_accumulation_fusion", switch(False)),
    Row("deterministic-mode", "runtime.deterministic", switch(True)),
    Row("distributed-timeout-minutes", "runtime.hang_timeout", MINUTES),
)

IMPLIED: dict[str, tuple[str, str | None]] = {
    "use-rotary-position-embeddings": ("position-embedding-type", "rope"),
    "recompute-activations": ("recompute-granularity", "selective"),
    "checkpoint-activations": ("recompute-granularity", "full"),
    "activations-checkpoint-method": ("recompute-granularity", "full"),
    "fp8-e4m3": ("fp8-format", "e4m3"),
    "fp8-hybrid": ("fp8-format", "hybrid"),
    "distribute-checkpointed-activations": ("distribute-saved-activations", None),
}
"""Flags that stand for another one, and go over it where both are given."""
OLD_NAMES: dict[str, str] = {
    "activations-checkpoint-method": "recompute-method",
    "activations-checkpoint-num-layers": "recompute-num-layers",
    "checkpoint-num-layers": "recompute-num-layers",
    "hybrid-layer-pattern": "hybrid-override-pattern",
    "persistent-save-interval": "save-interval",
    "override-lr-scheduler": "override-opt-param-scheduler",
    "use-checkpoint-lr-scheduler": "use-checkpoint-opt-param-scheduler",
    "warmup": "lr-warmup-fraction",
    "encoder-num-layers": "num-layers",
    "encoder-seq-length": "seq-length",
    "layernorm-epsilon": "norm-epsilon",
    "model-parallel-size": "tensor-model-parallel-size",
    "batch-size": "micro-batch-size",
    "tokenizer-name-or-path": "tokenizer-model",
    "moe-num-experts": "num-experts",
    "moe-top-k": "moe-router-topk",
    "moe-loss-weight": "moe-aux-loss-coeff",
    "moe-loss-coeff": "moe-aux-loss-coeff",
    "moe-expert-parallel-size": "expert-model-parallel-size",
    "topk": "moe-router-topk",
    "ds-sequence-parallel-size": "context-parallel-size",
}
"""Flags that have another name, with the same values."""
