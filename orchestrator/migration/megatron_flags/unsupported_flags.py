"""Megatron-LM's flags that no field of a job spec has: those without effect here, those that the job goes without, and
those without which it would train something else.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from orchestrator.migration.megatron_flags.performance import by_reason
from orchestrator.models.blocks.flags import INFERENCE, NOT_MEASURED, Effect, IdleFlags
from orchestrator.models.blocks.registry import block_flags


@dataclass(frozen=True)
class UnsupportedFlag:
    """What is known of a flag that no field has."""

    reason: str
    effect: Effect
    path: str | None = None
    """The field that a person has to write then, where one corresponds."""


_LOGS = "metrics go to the run directory and from there to MLflow; `tracking` says where else (TensorBoard, W&B)"
_KERNELS = "the runtime chooses its kernels; results do not depend on it"
_COMMUNICATION = "the runtime determines how ranks communicate; results do not depend on it"
_CHECKPOINTS = "checkpoints are distributed, written in parallel, and complete or absent"
_LAUNCH = "the launcher sets it for each process"
_NO_SPIKES = (
    "unusually large losses and gradients are not detected; the curves show them, and optimizer.clip_grad bounds them"
)
_NO_STRAGGLERS = "stragglers are not detected during training; launch.health_check measures GPUs and network before it"
_NO_INPROCESS = (
    "processes are not restarted in place: a failed run restarts from its last checkpoint (launch.on_failure)"
)
_NO_MUP = "muP is not in this version"
_NO_FAULTS = "no faults are injected; `orchestrator drill` proves that a run comes back"
_PROFILING = "there is no profiler in this version; results do not depend on it"
_OTHER_MODEL = "it is for another kind of model"
_FP8 = "FP8 and FP4 are for the layers' matrix products, with the recipes of Transformer Engine"
_VARIANT = "this variant of the model is not in this version"
_NO_FIM = "fill-in-the-middle data is not in this version"
_NO_RL = "reinforcement learning is not in this version"
_NO_TEACHER = "distillation and frozen layers are not in this version"
_NO_DEEPSPEED = "DeepSpeed's engine is not used; parallelism.use_distributed_optimizer shards the optimizer"
_OLD = "it no longer has an effect in Megatron-LM either"

# By reason; `name=` takes a value, `name=*` any number of them, `name` none.
_NO_EFFECT: dict[str, str] = {
    _LOGS: """
        tensorboard-log-interval= tensorboard-queue-size= log-timers-to-tensorboard
        log-batch-size-to-tensorboard log-learning-rate-to-tensorboard no-log-learnig-rate-to-tensorboard
        no-log-loss-scale-to-tensorboard disable-log-loss-scale-to-tensorboard
        log-validation-ppl-to-tensorboard log-memory-to-tensorboard
        log-world-size-to-tensorboard log-throughput log-progress log-memory-interval= log-device-memory-used
        logging-level= no-one-logger
        one-logger-project= one-logger-run-name= one-logger-async app-tag-run-name= app-tag-run-version=
        config-logger-dir=
        timing-log-level= timing-log-option= no-barrier-with-level-1-timing""",
    NOT_MEASURED: "log-params-norm log-num-zeros-in-grad log-energy log-max-attention-logit",
    "the program and its pattern of layers say it": "is-hybrid-model",
    _KERNELS: """
        use-flash-attn-v1 use-flash-attn-v2 use-flash-attn-triton use-flash-attn-builder
        use-te attention-softmax-in-fp32 export-force-local-attention""",
    _COMMUNICATION: """
        distributed-timeout-seconds-after-init= use-contiguous-buffers-in-local-ddp
        no-contiguous-buffers-in-local-ddp DDP-impl=""",
    _CHECKPOINTS: """
        ckpt-format= dist-ckpt-format= use-dist-ckpt auto-detect-ckpt-format dist-ckpt-strictness=
        load-model-opt-format no-ckpt-load-validate-sharding-integrity disable-ckpt-load-validate-sharding-integrity
        no-stream-ckpt-dequant disable-stream-ckpt-dequant verify-integrity""",
    "`orchestrator resume` and checkpoint.pretrained end with an error where there is no checkpoint": """
        exit-on-missing-checkpoint""",
    "replicas begin with the same weights, as with it, and each draws its dropout from a seed of its own": """
        data-parallel-random-init""",
    "parallelism.pipeline_model_parallel_size says it": "no-pipeline-parallel",
    "model.architecture is the model that it names": "model-provider=",
    _LAUNCH: "local-rank= rank= world-size= lazy-mpu-init=",
    "a step with a NaN or an infinity is skipped, and runtime.max_bad_steps of them in a row end the run": """
        check-for-nan-in-loss-and-grad""",
    "runtime.hang_timeout ends a step that hangs, and launch.on_failure says what follows": """
        enable-ft-package calc-ft-timeouts ft-num-warmup-iters=""",
    _PROFILING: """
        profile profile-step-start= profile-step-end= profile-ranks=* use-pytorch-profiler record-memory-history
        memory-snapshot-path= nvtx-ranges record-shapes dump-param-to-param-group-map=""",
    "the data is read through memory maps, and each rank reads only what it needs": "mmap-warmup data-impl=",
    "a signal or a time limit always leads to a checkpoint": """
        exit-signal-handler exit-signal-handler-dataloader exit-signal-handler-for-dataloader
        exit-signal-handler-for-training""",
    "data sets know their lengths": "per-dataset-sequences-path=",
    "a run restarts automatically, and is requeued on a cluster": "adlr-autoresume adlr-autoresume-interval=",
    "the model is always the one of megatron-core": "use-mcore-models",
    "a preset or the flags determine the sizes": """
        no-use-tokenizer-model-from-checkpoint-args disable-use-tokenizer-model-from-checkpoint-args""",
    "checkpoints are written so that any layout reads them": """
        dist-ckpt-optim-fully-reshardable dist-ckpt-save-pre-mcore-014""",
    "the tokenizer's files say what it does, with either of Megatron-LM's readers": "legacy-tokenizer",
    "it is for object stores": "disable-msc enable-msc object-storage-cache-path=",
    _OLD: "fp8-interval= onnx-safe= rotary-seq-len= trust-remote-code",
}

_NOT_SUPPORTED: dict[str, str] = {
    _NO_SPIKES: "check-for-spiky-loss check-for-large-grads",
    _NO_STRAGGLERS: """
        log-straggler gpu-sniff-test-interval= disable-straggler-on-startup
        straggler-ctrlr-port= straggler-minmax-count=""",
    "kernels are the usual ones; runtime.deterministic makes runs equal": "batch-invariant-mode",
    "processes are real ones": "fake-process-group",
    "parameters are laid out by the distributed optimizer": "no-use-layer-wise-param-layout",
    "the weights of data-parallel replicas are not compared while training": """
        check-weight-hash-across-dp-replicas-interval=""",
    "steps are not computed twice to find wrong results": "rerun-mode= result-rejected-tracker-filename=",
    _NO_FAULTS: "error-injection-rate= error-injection-type=",
    "`orchestrator bench` measures where the time of a step goes; a run cannot do so on demand": """
        run-workload-inspector-server""",
    "validation takes the batches of the training, from its first interval on": """
        eval-global-batch-size= eval-micro-batch-size= start-eval-at-iter=""",
    "SIGTERM, SIGINT and SIGUSR1 end a run with a checkpoint; other signals do not": "exit-signal=",
    "all ranks that hold the same weights share their largest values": "tp-only-amax-red",
    "FSDP is parallelism.fsdp, without options": """
        use-custom-fsdp no-strict-fsdp-dtensor-load
        disable-strict-fsdp-dtensor-load""",
    "it is less exact than what is done here": "fp16-lm-cross-entropy",
    "Megatron-LM's own layers are not available: megatron-core's compute the same": "use-legacy-models",
    "the data is written in data.blend: list its sources there": "data-args-path= per-split-data-args-path=",
    "write the sources and their weights in data.blend, data.validation and data.test; data.split cuts them": """
        train-weighted-split-paths=* train-weighted-split-paths-path= valid-weighted-split-paths=*
        valid-weighted-split-paths-path= test-weighted-split-paths=* test-weighted-split-paths-path=""",
    "the batch is as large as it is written": "decrease-batch-size-if-needed",
    "whole data sets are not evaluated: evaluation.eval_iters says how many batches": """
        full-validation multiple-validation-sets validation-set-names=*""",
    "the layout is the job's; a checkpoint is read in any": "use-mp-args-from-checkpoint-args",
    "`orchestrator checkpoint import` makes a run of a checkpoint, and its --iteration says of which": """
        ckpt-step= override-ckpt-iteration=""",
    "it goes with --ckpt-convert-format": "ckpt-convert-save= ckpt-convert-update-legacy-dist-opt-format",
    "a checkpoint of fp32 weights is loaded as it is": "load-main-params-from-ckpt",
    "the optimizer and the random state are always saved": "no-save-optim no-save-rng",
    "it goes with --sft": "sft-tokenizer-prompt-format= chat-template=",
    "checkpoints in memory or on local disks are not in this version": """
        non-persistent-save-interval= non-persistent-ckpt-type= non-persistent-global-ckpt-dir=
        non-persistent-local-ckpt-dir= non-persistent-local-ckpt-algo= replication replication-jump=
        replication-factor=""",
    "write launch.time and schedule: a run ends with its training, or at its time limit and then comes back": """
        exit-interval= exit-duration-in-mins=""",
    "optimizer state is on the device of the weights": "cpu-optimizer cpu-torch-adam",
}
"""What the training does without: how fast it is, what is logged and kept, or what goes with another flag."""


_OTHER_TRAINING: dict[str, str] = {
    _VARIANT: """
        embedding-init-method-std= init-method-xavier-uniform""",
    "it gives YaRN's positions (factor 32 of 131072 tokens) to a model that ModelOpt builds, and to no other: write "
    "model.rope_scaling, or leave it out (--without)": "enable-gpt-oss",
    _NO_MUP: "use-mup",
    "a norm after the embedding (BLOOM's) is not in this version": "embed-layernorm",
    "write model.make_vocab_size_divisible_by: this size divided by the tensor-parallel size pads to as much": """
        pad-vocab-size-to=""",
    "write model.make_vocab_size_divisible_by: 1": "no-pad-vocab-size disable-pad-vocab-size",
    "weights are not clipped by the size of their scores": "qk-clip",
    "write optimizer.apply_wd_to_qk_layernorm: true": "no-weight-decay-cond-type=",
    "a token that padding shares, such as the end of a document, counts in the loss": "allow-ambiguous-pad-tokens",
    "the attention mask across documents is not in this version": """
        reset-attention-mask dataloader-inter-document-masking""",
    "this version has only the sampler of `--dataloader-type single`": "dataloader-type= sample-rate=",
    _NO_FIM: "fim-data",
    _FP8: "kitchen-config-file= kitchen-recipe-number=",
    "the batch grows linearly (batch.rampup_batch_size) or not at all": "step-batch-size-schedule=*",
    "curricula and dropped layers or tokens are not in this version": """
        curriculum-learning-legacy data-efficiency-curriculum-learning random-ltd""",
    _NO_TEACHER: "freeze-all-layers logits-load-dir= kd mos",
    "Megatron-LM takes sizes from the checkpoint: `orchestrator checkpoint import DIR -o JOB.yaml` writes them": """
        use-checkpoint-args""",
    "Megatron-LM converts a checkpoint with it and ends: `orchestrator checkpoint import` and `export` do so here": """
        ckpt-convert-format=""",
    "conversations are made into a data set first (`data tokenize --chat`) and read with data.chat": "sft",
    _NO_RL: "perform-rl-step",
    "Megatron-LM takes its settings from this file": "yaml-cfg=",
    "skipping steps is not in this version": "iterations-to-skip=* phase-transition-iterations=",
    "training always runs": "skip-train test-mode",
}
"""Without these another network is trained, from other data or by another loss, or something else than a training is
asked for.
"""
_WITHOUT_FIELD = tuple(each for flags in block_flags() for each in flags.without_field)
"""The same of blocks."""
_PATTERNS: tuple[tuple[str, str, Effect], ...] = (
    (r"(.*-)?inference(-.*)?|.*prefill.*|refit-method|max-tokens-to-oom|use-legacy-static-engine|"
     r"num-speculative-tokens|use-same-sampling-seed-.*", INFERENCE, "none"),
    (r"save-(activations|dgrads|wgrads|params|tokens-per-expert)-interval", NOT_MEASURED, "aside"),
    (r"((no|disable)-)?flight-recorder-.*", _LOGS, "none"),
    (r"pytorch-profiler-.*", _PROFILING, "none"),
    *(pattern for flags in block_flags() for pattern in flags.patterns),
    (r"(no-)?fp8-(?!(format|recipe|margin|amax-history-len|amax-compute-algo)$).*|fp4-(?!(format|recipe)$).*|.*mxfp8.*|kitchen-.*|"
     r"te-precision-config-file", _FP8, "aside"),
    (r"muon-fp32-matmul-prec", "Newton-Schulz iterations are in bf16 on GPUs, and in fp32 on CPUs", "aside"),
    (r"muon-tp-mode", "every layout orthogonalizes whole matrices, not their parts on tensor-parallel ranks", "aside"),
    (r"muon-scalar-optimizer", "what muon does not orthogonalize is updated by adam", "aside"),
    (r"lion-.*", "it goes with --optimizer lion", "aside"),
    (r"fim-.*", "it goes with --fim-data", "aside"),
    (r"(no-)?(rl|grpo|langrl)-.*", "it goes with --perform-rl-step", "aside"),
    (r"qk-clip-.*", "it goes with --qk-clip", "aside"),
    (r"((no|disable)-)?dsa-.*", "it goes with --experimental-attention-variant", "aside"),
    (r"hybrid-(?!(override-pattern|attention-ratio|mlp-ratio)$).*|(retro|heterogeneous)-.*",
     "this kind of model is not in this version", "training"),
    (r"megatron-fsdp-.*|fsdp-.*|gtp-.*", "FSDP is parallelism.fsdp, without options", "aside"),
    (r"logits-.*", _NO_TEACHER, "aside"),
    (r"freeze-.*", _NO_TEACHER, "training"),
    (r"((no|disable)-)?(null-)?(tokenizer|tiktoken)-(eod|pad|hf|metadata|special|sentencepiece|pattern|num).*",
     "a tokenizer is what its files say, and has no options", "aside"),
    (r"deepspeed.*|zero-.*", _NO_DEEPSPEED, "aside"),
    (r"inprocess-.*", _NO_INPROCESS, "aside"),
    (r"fault-injector-.*", _NO_FAULTS, "aside"),
    (r"mup-.*", "it goes with --use-mup", "aside"),
    (r"otel-.*", _LOGS, "none"),
    (r"ddp-.*", _COMMUNICATION, "none"),
    (r"(.*-)?cuda-graphs?(-.*)?|flash-decode|symmetric-ar-type|disable-jit-fuser|enable-experimental",
     _KERNELS, "none"),
    (r"(ict|biencoder|retriever|indexer|dino|swin|vision|img)-.*|mask-(type|factor)|bert-(load|embedder-type)",
     _OTHER_MODEL, "none"),
    (r"patch-dim|head-lr-mult|iter-per-epoch",
     _OTHER_MODEL, "none"),
    (r"(titles|block|evidence)-data-path|embedding-path|(data-per-)?class(es)?-fraction|num-(channels|classes)",
     _OTHER_MODEL, "none"),
    (r"no-data-sharding|query-in-block-prob|use-one-sent-docs", _OTHER_MODEL, "none"),
)  # fmt: skip
"""(pattern of names, reason, effect): what the first one says that matches."""


def _named(names: str) -> dict[str, int | None]:
    """Each of these flags, and how many words it takes; None for any number."""
    counts = {"": 0, "=": 1, "=*": None}
    return {(name := text.rstrip("=*")): counts[text.removeprefix(name)] for text in names.split()}


def _by_name(groups: dict[str, str], answers: dict[str, str], effect: Effect) -> dict[str, str]:
    """Flags, and the reason of each; of those of blocks the ones with this effect."""
    of_blocks = [(each.reason, each.names) for each in _WITHOUT_FIELD if each.effect == effect]
    pairs = (*groups.items(), *of_blocks, *answers.items())
    return {name: reason for reason, names in pairs for name in _named(names)}


NO_EFFECT = _by_name(_NO_EFFECT, by_reason("on"), "none")
NOT_SUPPORTED = _by_name(_NOT_SUPPORTED, by_reason("refused"), "aside")
OTHER_TRAINING = _by_name(_OTHER_TRAINING, by_reason("training"), "training")
OPENS: dict[str, str] = {
    "init-method-xavier-uniform": "model.init_method_std",
    "enable-gpt-oss": "model.rope_scaling",
    **dict.fromkeys(
        ("pad-vocab-size-to", "no-pad-vocab-size", "disable-pad-vocab-size"), "model.make_vocab_size_divisible_by"
    ),
    "no-weight-decay-cond-type": "optimizer.apply_wd_to_qk_layernorm",
    "step-batch-size-schedule": "batch.rampup_batch_size",
    "sliding-window": "model.sliding_window",
    "glu-activation": "model.activation",
    **dict.fromkeys(("fp8-output-proj", "te-precision-config-file"), "precision.fp8"),
    **dict.fromkeys(("kitchen-config-file", "kitchen-recipe-number"), "precision.fp8"),
    **{name: each.path for each in _WITHOUT_FIELD if each.path is not None for name in _named(each.names)},
}
"""Fields that stand open where a flag would change the training: `--set` says what to do without it."""
_TABLES: tuple[tuple[dict[str, str], Effect], ...] = (
    (NO_EFFECT, "none"),
    (OTHER_TRAINING, "training"),
    (NOT_SUPPORTED, "aside"),
)
WORDS: dict[str, int | None] = {
    name: count
    for names in chain(
        *(each.values() for each in (_NO_EFFECT, _NOT_SUPPORTED, _OTHER_TRAINING)),
        (each.names for each in _WITHOUT_FIELD),
        *(by_reason(answer).values() for answer in ("on", "refused", "training")),
    )
    for name, count in _named(names).items()
}
"""How many words each of them takes; None for any number. What stands behind them belongs to no flag."""
HINTS: dict[str, str] = {
    "pp-partition-method": "layers are distributed evenly; parallelism.num_layers_in_first_pipeline_stage, "
    "num_layers_in_last_pipeline_stage or pipeline_model_parallel_layout say otherwise",
    "sliding-window": "write model.sliding_window, which counts the token itself; Megatron-LM's --window-size does not",
    "glu-activation": "write model.activation: swiglu or geglu",
}
"""What to do about flags of other groups."""
HARMLESS_VALUES: dict[str, tuple[str, ...]] = {
    "dataloader-type": ("single",),
    "rerun-mode": ("disabled",),
    "exit-signal": ("SIGTERM", "SIGINT", "SIGUSR1"),
    "error-injection-rate": ("0",),
    "check-weight-hash-across-dp-replicas-interval": ("0",),
    "cp-comm-type": ("p2p",),
    "num-distributed-optimizer-instances": ("1",),
    "main-grads-dtype": ("fp32",),
    "main-params-dtype": ("fp32",),
    "sample-rate": ("1.0", "1"),
    "data-parallel-sharding-strategy": ("no_shard",),
    **{name: each.harmless for each in _WITHOUT_FIELD if each.harmless for name in _named(each.names)},
}
"""Values of flags that are not supported which ask for nothing."""


_IDLE = (
    *(each for flags in block_flags() for each in flags.idle),
    IdleFlags(
        "reset-attention-mask",
        "runtime.layers",
        lambda layers: layers != "torch",
        "the causal attention of Transformer Engine's layers takes no mask",
    ),
)


def why_idle(name: str, value_of: Callable[[str], Any]) -> str | None:
    """Why a flag of another training changes nothing for a job of these values; None where it does."""
    return next(
        (each.reason for each in _IDLE if re.fullmatch(each.pattern, name) and each.is_idle(value_of(each.path))), None
    )


def unsupported_flag(name: str) -> UnsupportedFlag | None:
    """What is known of a flag that no field has; None for a flag that nobody knows."""
    for table, effect in _TABLES:
        if name in table:
            return UnsupportedFlag(table[name], effect, OPENS.get(name))
    for pattern, reason, effect in _PATTERNS:
        if re.fullmatch(pattern, name):
            return UnsupportedFlag(reason, effect, OPENS.get(name))
    return None
