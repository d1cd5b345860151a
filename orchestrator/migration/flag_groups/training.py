"""Batches, length, learning rate, precision, checkpoints, evaluation, recomputation."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import Any, get_args

from orchestrator.fields.flag_values import whole_number
from orchestrator.migration.flag_groups.data import BLEND, RANDOM, SPLIT, VALIDATION
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.migration.report import WRITE_IT
from orchestrator.models.blocks.flags import FlagGroup
from orchestrator.spec.layout.ramp import batch_sizes, steps_to, whole_steps_to
from orchestrator.spec.sections.runtime import RecomputedModule

GLOBAL, RAMPUP = "batch.global_batch_size", "batch.rampup_batch_size"
SAMPLES, TOKENS, DROP_LAST = "schedule.train_samples", "schedule.train_tokens", "schedule.drop_last"
WARMUPS = {
    "lr-warmup-iters": "schedule.lr_warmup_iters",
    "lr-warmup-samples": "schedule.lr_warmup_samples",
    "lr-warmup-fraction": "schedule.lr_warmup_fraction",
}
REDUCE = "precision.grad_reduce_in_fp32"
_SCALES = {
    name: f"precision.{name.replace('-', '_')}"
    for name in ("loss-scale", "initial-loss-scale", "min-loss-scale", "loss-scale-window", "hysteresis")
}
_DEEPSPEED_SCALE = 2.0**16
SAVE, KEEP = "checkpoint.save_interval", "checkpoint.keep_every"
INTERVAL, BATCHES = "evaluation.eval_interval", "evaluation.eval_iters"
GRANULARITY, METHOD, LAYERS = (
    "runtime.recompute_granularity",
    "runtime.recompute_method",
    "runtime.recompute_num_layers",
)
MODULES, OFFLOADED = "runtime.recompute_modules", "runtime.cpu_offloading_num_layers"
_EVAL_INTERVAL, _EVAL_ITERS = 1000, 100
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]+")
_EXTENSION = re.compile(r"(?<=.)\.[A-Za-z][A-Za-z0-9]*$")


def as_name(text: str) -> str:
    """A text as the name of a job; empty where nothing of it can be one."""
    return _NO_NAME.sub("-", text).strip("-._")[:80]


def name_of_file(source: str) -> str:
    """The name of a job that a file describes: the file's without its extension, which begins with a letter."""
    return as_name(_EXTENSION.sub("", PurePath(source).name))


def read_batch(given: GivenFlags) -> None:
    if given.has("global-batch-size"):
        size = given.number("global-batch-size")
        if size is None:
            given.write_it("global-batch-size", GLOBAL)
        else:
            given.carry("global-batch-size", GLOBAL, size)
    name = "rampup-batch-size"
    if given.has(name):
        words = given.words(name)
        if words is not None and len(words) == 1:
            words = words[0].split()
        numbers = [number for word in words or () if (number := whole_number(word)) is not None]
        if words is not None and len(words) == len(numbers) == 3:
            start, increment, samples = numbers
            given.carry(name, RAMPUP, {"start_global_batch_size": start, "increment": increment, "samples": samples})
        else:
            given.write_it(name, RAMPUP)


def write_batch(writer: FlagWriter) -> None:
    batch = writer.job.batch
    writer.add("TRAINING", "global-batch-size", writer.job.global_batch_size)
    if batch.num_micro_batches is not None:
        writer.say_otherwise("batch.num_micro_batches", f"--global-batch-size {writer.job.global_batch_size}")
    if batch.global_batch_size is None:
        writer.say_otherwise(GLOBAL, f"--global-batch-size {writer.job.global_batch_size}")
    if (rampup := batch.rampup_batch_size) is not None:
        words = (rampup.start_global_batch_size, rampup.increment, rampup.samples)
        writer.add("TRAINING", "rampup-batch-size", *words)
        if writer.job.schedule.train_iters is not None:
            writer.unsaid_value(RAMPUP, "Megatron-LM refuses it beside --train-iters: write schedule.train_samples")


def read_length(given: GivenFlags) -> None:
    """A row reads --train-iters."""
    name = "train-samples"
    if not given.has(name):
        return
    samples, batch = given.number(name), given.get(GLOBAL)
    if samples is None:
        given.write_it(name, SAMPLES)
    else:
        given.carry(name, SAMPLES, samples)
    is_whole = isinstance(batch, int) and batch > 0 and samples is not None and samples % batch == 0
    if not is_whole or given.get(RAMPUP) is not None:
        given.default(DROP_LAST, True, "Megatron-LM rounds --train-samples down")


def write_length(writer: FlagWriter) -> None:
    """A length in samples or tokens as one in samples of which Megatron-LM makes the same steps."""
    job = writer.job
    schedule, rampup, samples = job.schedule, job.batch.rampup_batch_size, job.written_samples
    if samples is None:
        writer.leave(DROP_LAST, "--train-iters is a length in steps")
        return
    if not schedule.drop_last:
        pass_size = job.batch.micro_batch_size * job.data_parallel_size
        thresholds, sizes = batch_sizes(job.global_batch_size, pass_size, rampup)
        steps, samples = steps_to(thresholds, sizes, 0, samples)
        if whole_steps_to(thresholds, sizes, 0, samples, rampup)[0] > steps:
            # During the ramp-up it takes another step where one ends with the last sample.
            samples -= 1
            if schedule.lr_decay_samples is None and schedule.lr_decay_iters is None:
                writer.add("TRAINING", "lr-decay-samples", samples + 1)
                writer.say_otherwise("schedule.lr_decay_samples", f"--lr-decay-samples {samples + 1}")
    said = f"--train-samples {samples}"
    writer.add("TRAINING", "train-samples", samples)
    if schedule.train_tokens is not None:
        writer.say_otherwise("schedule.train_tokens", said)
    if schedule.train_samples != samples:
        writer.say_otherwise(SAMPLES, said)
    if schedule.drop_last != (rampup is not None or samples % job.global_batch_size > 0):
        writer.say_otherwise(DROP_LAST, f"{said}, which Megatron-LM rounds down")


def read_warmup(given: GivenFlags) -> None:
    for name, path in WARMUPS.items():
        if not given.has(name):
            continue
        text = given.text(name)
        try:
            value: Any = float(text) if text is not None else None
        except ValueError:
            value = None
        if value is None or (name != "lr-warmup-fraction" and not value.is_integer()):
            given.write_it(name, path)
        elif value == 0:
            given.settle(name, "default", path, 0)
        else:
            given.carry(name, path, value if name == "lr-warmup-fraction" else int(value))


_IN_TOKENS = {
    "lr-decay-tokens": ("schedule.lr_decay_samples", ("lr-decay-samples", "lr-decay-iters")),
    "lr-warmup-tokens": (WARMUPS["lr-warmup-samples"], tuple(WARMUPS)),
}
_LENGTHS = ("train-samples", "train-iters")


def read_tokens(given: GivenFlags) -> None:
    """Megatron-DeepSpeed's lengths in tokens go over those in samples and steps; a training ends by what is first."""
    sequence = given.get("model.seq_length")
    for name, (path, others) in _IN_TOKENS.items():
        if not given.has(name):
            continue
        tokens = given.number(name)
        _overrule(given, others, name)
        if tokens is None or not isinstance(sequence, int) or sequence < 1:
            given.write_it(name, path)
        else:
            shown = f"{given.flags[name].shown}, in sequences of {sequence}"
            given.carry(name, path, -(-tokens // sequence), shown)
    _read_train_tokens(given, sequence)


def _read_train_tokens(given: GivenFlags, sequence: Any) -> None:
    name = "train-tokens"
    if not given.has(name):
        return
    tokens, samples = given.number(name), given.number("train-samples")
    steps, batch = given.get("schedule.train_iters"), given.get(GLOBAL)
    if samples is None and isinstance(steps, int) and isinstance(batch, int):
        samples = steps * batch
    if tokens is not None and samples is not None and isinstance(sequence, int) and samples * sequence <= tokens:
        given.no_effect(name, "the training ends before")
        return
    _overrule(given, _LENGTHS, name)
    given.migration.drop(DROP_LAST)
    if tokens is None:
        given.write_it(name, TOKENS)
    else:
        given.carry(name, TOKENS, tokens)


def _overrule(given: GivenFlags, names: tuple[str, ...], by: str) -> None:
    for name in names:
        if given.has(name):
            given.overrule(name, f"--{by} goes over it")


def write_tokens(writer: FlagWriter) -> None:
    """Megatron-LM has lengths in samples and steps."""


def write_warmup(writer: FlagWriter) -> None:
    for name, path in WARMUPS.items():
        value = writer.value(path)
        if value:
            writer.add("TRAINING", name, repr(value))
        elif value is not None:
            writer.say_otherwise(path, "0 is no warm-up")
    schedule = writer.job.schedule
    in_steps = schedule.train_iters is not None
    kinds = ("lr_warmup", "lr_decay", "lr_wsd_decay")
    for field in (f"{kind}_samples" if in_steps else f"{kind}_iters" for kind in kinds):
        if getattr(schedule, field) is not None:
            path, length = f"schedule.{field}", "--train-iters" if in_steps else "--train-samples"
            writer.unsaid_value(path, f"Megatron-LM refuses it beside {length}: write it in the same unit")


def read_reduction(given: GivenFlags) -> None:
    dtype = given.get("precision.dtype")
    in_fp32, in_bf16 = "accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16"
    if dtype == "bf16" and given.has(in_bf16):
        given.carry(in_bf16, REDUCE, False)
        given.no_effect(in_fp32, f"--{in_bf16} turns it off")
    elif dtype == "fp16" and not given.has(in_fp32):
        given.default(REDUCE, False)
    elif given.has(in_fp32):
        given.carry(in_fp32, REDUCE, True)
    given.no_effect(in_bf16, "it is for --bf16")


def read_deepspeed_scale(given: GivenFlags) -> None:
    """DeepSpeed scales the loss by its own configuration, whatever Megatron's flags say."""
    if not given.has("deepspeed"):
        return
    for name in _SCALES:
        if given.has(name):
            given.overrule(name, "under --deepspeed the loss scale is DeepSpeed's: fp16 in its configuration")
    given.migration.notes.append(
        f"optimizer.clip_grad: {given.get('optimizer.clip_grad')} is what Megatron's flags say; DeepSpeed clips by "
        "gradient_clipping in its configuration"
    )
    if given.get("precision.dtype") == "fp16":
        initial = _SCALES["initial-loss-scale"]
        given.default(initial, _DEEPSPEED_SCALE, "DeepSpeed's default")
        given.migration.notes.append(
            f"{initial}: {_DEEPSPEED_SCALE:.0f} is DeepSpeed's default; where fp16 in its configuration says something "
            "else (initial_scale_power, loss_scale, loss_scale_window, hysteresis, min_loss_scale), write that"
        )


def write_deepspeed_scale(writer: FlagWriter) -> None:
    """Megatron-LM's own flags say the loss scale."""


def write_reduction(writer: FlagWriter) -> None:
    precision = writer.job.precision
    if precision.dtype == "bf16" and not precision.grad_reduce_in_fp32:
        writer.add("TRAINING", "grad-reduce-in-bf16")
    elif precision.dtype == "fp16" and precision.grad_reduce_in_fp32:
        writer.add("TRAINING", "accumulate-allreduce-grads-in-fp32")
    elif precision.dtype == "fp32":
        writer.leave(REDUCE, "gradients of fp32 are fp32")


def read_checkpoints(given: GivenFlags) -> None:
    given.no_effect("save", "checkpoints are written into the run directory (launch.runs_dir)")
    steps, every = given.get("schedule.train_iters"), given.number("save-interval")
    if given.has("save-interval"):
        if every is None:
            given.write_it("save-interval", SAVE)
        elif not given.has("save"):
            given.no_effect("save-interval", "Megatron-LM saves nothing without --save; the end is saved here")
        elif every == 0:
            given.no_effect("save-interval", "0 is at no step; a checkpoint is always written at the end")
        elif isinstance(steps, int) and every > steps:
            given.no_effect("save-interval", "it is never reached; a checkpoint is always written at the end")
        else:
            given.carry("save-interval", SAVE, every)
    if given.has("save-retain-interval"):
        kept = given.number("save-retain-interval")
        if kept is None:
            given.write_it("save-retain-interval", KEEP)
        elif isinstance(given.get(SAVE), int):
            given.carry("save-retain-interval", KEEP, kept)
        else:
            given.no_effect("save-retain-interval", "no checkpoints are written at fixed steps")
    elif isinstance(given.get(SAVE), int):
        given.default(KEEP, given.get(SAVE), "Megatron-LM keeps every checkpoint")


def write_checkpoints(writer: FlagWriter) -> None:
    checkpoint = writer.job.checkpoint
    every, kept = checkpoint.save_interval, checkpoint.keep_every
    reason = "Megatron-LM keeps every checkpoint"
    if every is not None:
        folder = f"{writer.job.launch.runs_dir}/{writer.job.name}/megatron-lm"
        writer.add("CHECKPOINT", "save", folder)
        writer.add("CHECKPOINT", "load", folder)
        writer.add("CHECKPOINT", "save-interval", every)
        if writer.job.parallelism.use_distributed_optimizer:  # else its optimizer is bound to the ranks that wrote it
            writer.add("CHECKPOINT", "dist-ckpt-optim-fully-reshardable")
        if kept is None:
            writer.say_otherwise(KEEP, reason)
        elif kept % every == 0 and kept != every:
            writer.add("CHECKPOINT", "save-retain-interval", kept)
        elif kept != every:
            writer.unsaid_value(KEEP, f"--save-retain-interval is a multiple of --save-interval {every}")
    writer.leave("checkpoint.keep_last", reason if kept is None else "Megatron-LM keeps the newest one")
    writer.leave("checkpoint.save_seconds", "Megatron-LM saves at fixed steps only")
    writer.leave("checkpoint.export", "Megatron-LM converts checkpoints with a program of its own, afterwards")


_WRITTEN_BLENDS = (
    *("valid-weighted-split-paths", "valid-weighted-split-paths-path", "per-split-data-args-path"),
    *("valid-data-args-path", "data-args-path"),
)
"""Flags whose sources of validation, or all sources, a person has to write into the job."""


def _has_validation(given: GivenFlags) -> bool:
    own = (VALIDATION, "task.validation")
    if given.get(RANDOM) is True or any(given.get(path) or path in given.migration.missing for path in own):
        return True
    split = given.get(SPLIT)
    if any(given.has(flag) for flag in _WRITTEN_BLENDS):
        return True
    is_there = given.get(BLEND) is not None or BLEND in given.migration.missing
    return is_there and (split == WRITE_IT or float(split.split(",")[1]) > 0)


def read_evaluation(given: GivenFlags) -> None:
    names = ("eval-iters", "eval-interval")
    if given.has("eval-iters") and given.number("eval-iters") == 0:
        given.settle("eval-iters", "default", INTERVAL, None, "nothing is evaluated")
        given.no_effect("eval-interval", "--eval-iters 0: nothing is evaluated")
        return
    if not _has_validation(given):
        given.no_effect(names, "there is no validation data")
        return
    defaults = (_EVAL_ITERS, _EVAL_INTERVAL)
    for name, path, default in zip(names, (BATCHES, INTERVAL), defaults, strict=True):
        if not given.has(name):
            given.default(path, default)
        elif given.number(name) is None:
            given.write_it(name, path)
        else:
            given.carry(name, path, given.number(name))


def write_evaluation(writer: FlagWriter) -> None:
    evaluation = writer.job.evaluation
    if evaluation.eval_interval is None:
        writer.add("EVALUATION", "eval-iters", 0)
        writer.add("EVALUATION", "eval-interval", 1000)  # 0.16 divides by it all the same
        writer.leave(BATCHES, "nothing is evaluated at fixed steps")
    else:
        writer.add("EVALUATION", "eval-interval", evaluation.eval_interval)
        writer.add("EVALUATION", "eval-iters", evaluation.eval_iters)
        if writer.job.data.test is not None and writer.job.data.validation is None:
            for path in (INTERVAL, BATCHES):
                writer.unsaid_value(path, "without --valid-data-path Megatron-LM has no validation data here")
    if not evaluation.same_samples:
        writer.say_otherwise("evaluation.same_samples", "Megatron-LM always goes on through the set")
    writer.leave("evaluation.eval_at_start", "Megatron-LM evaluates at fixed steps and at the end")
    writer.leave("evaluation.eval_at_end", "Megatron-LM evaluates at fixed steps and at the end")


def read_recomputation(given: GivenFlags) -> None:
    if given.get(GRANULARITY) == "full":
        if not given.has("recompute-method"):
            given.default(METHOD, "uniform")
        if not given.has("recompute-num-layers"):
            given.default(LAYERS, 1)
    name = "recompute-modules"
    if given.has(name):
        words, known = given.words(name), get_args(RecomputedModule)
        if given.get(GRANULARITY) != "selective":
            given.no_effect(name, "it is for selective recomputation")
        elif words and set(words) <= set(known):
            given.carry(name, MODULES, words)
        else:
            given.not_supported(name, f"of its words this version has {', '.join(known)}")


def write_recomputation(writer: FlagWriter) -> None:
    """The rest is in rows."""
    modules = writer.job.runtime.recompute_modules
    if modules is not None:
        writer.add("TRAINING", "recompute-modules", *modules)


def read_offloading(given: GivenFlags) -> None:
    """megatron-core's option, which core_r0.16.0 has as a flag; the runtime hands it on as it is."""
    name = "cpu-offloading-num-layers"
    if not given.has(name):
        return
    layers = given.number(name)
    if layers is None:
        given.write_it(name, OFFLOADED)
    elif layers == 0:
        given.settle(name, "default", OFFLOADED, 0, "none")
    else:
        given.carry(name, OFFLOADED, layers)


def write_offloading(writer: FlagWriter) -> None:
    layers = writer.job.runtime.cpu_offloading_num_layers
    if layers is not None:
        writer.add("TRAINING", "cpu-offloading-num-layers", layers)


TRAINING = (
    FlagGroup(
        {"global-batch-size": 1, "rampup-batch-size": None},
        read_batch,
        write_batch,
        (GLOBAL, RAMPUP, "batch.num_micro_batches"),
    ),
    FlagGroup({}, read_deepspeed_scale, write_deepspeed_scale, ()),
    FlagGroup({"train-samples": 1}, read_length, write_length, (SAMPLES, TOKENS, DROP_LAST)),
    FlagGroup(dict.fromkeys(WARMUPS, 1), read_warmup, write_warmup, tuple(WARMUPS.values())),
    FlagGroup(dict.fromkeys((*_IN_TOKENS, "train-tokens"), 1), read_tokens, write_tokens, ()),
    FlagGroup(
        {"accumulate-allreduce-grads-in-fp32": 0, "grad-reduce-in-bf16": 0}, read_reduction, write_reduction, (REDUCE,)
    ),
    FlagGroup(
        {"save": 1, "save-interval": 1, "save-retain-interval": 1},
        read_checkpoints,
        write_checkpoints,
        (SAVE, KEEP, "checkpoint.keep_last", "checkpoint.save_seconds", "checkpoint.export"),
    ),
    FlagGroup(
        {"eval-interval": 1, "eval-iters": 1},
        read_evaluation,
        write_evaluation,
        (INTERVAL, BATCHES, "evaluation.same_samples", "evaluation.eval_at_start", "evaluation.eval_at_end"),
    ),
    FlagGroup({"recompute-modules": None}, read_recomputation, write_recomputation, (MODULES,)),
    FlagGroup({"cpu-offloading-num-layers": 1}, read_offloading, write_offloading, (OFFLOADED,)),
)
