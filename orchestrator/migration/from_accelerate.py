"""Accelerate's configuration of a Megatron-LM training as the part of a job that it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.errors import SpecError, UserError
from orchestrator.migration.defaults import default_of
from orchestrator.migration.flag_groups.training import name_of_file
from orchestrator.migration.report import WRITE_IT, FlagOutcome, Migration, Outcome, Source
from orchestrator.spec.yaml.reader import LocatedValue, parse_yaml

_SECTION = "megatron_lm_config"
_REQUIRED = {
    "model.num_layers": "the model is in the program, not in this file",
    "model.hidden_size": "the model is in the program, not in this file",
    "model.num_attention_heads": "the model is in the program, not in this file",
    "model.seq_length": "the model is in the program, not in this file",
    "data.blend": "the data is in the program, not in this file; or random_tokens: true",
    "optimizer.lr": "the learning rate is in the program, not in this file",
    "schedule.train_iters": "the length is in the program, not in this file",
}
"""What a job needs and such a file does not hold."""
_MODEL = tuple(path for path in _REQUIRED if path.startswith("model."))


def _count(value: Any) -> int:
    number = int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise ValueError("a whole number from 1 is expected")
    return number


def _yes(value: Any) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    answer = words.get(str(value).lower())
    if answer is None:
        raise ValueError("true or false is expected")
    return answer


def _selective(value: Any) -> str | None:
    return "selective" if _yes(value) else None


def _norm(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise ValueError("a number is expected") from None


def _dtype(value: Any) -> str:
    names = {"no": "fp32", "false": "fp32", "fp16": "fp16", "bf16": "bf16"}
    if str(value).lower() not in names:
        raise ValueError(f"this version has {', '.join(('no', 'fp16', 'bf16'))}")
    return names[str(value).lower()]


def _device(value: Any) -> str:
    return "cpu" if _yes(value) else "auto"


_KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    f"{_SECTION}.megatron_lm_tp_degree": ("parallelism.tensor_model_parallel_size", _count),
    f"{_SECTION}.megatron_lm_pp_degree": ("parallelism.pipeline_model_parallel_size", _count),
    f"{_SECTION}.megatron_lm_num_micro_batches": ("batch.num_micro_batches", _count),
    f"{_SECTION}.megatron_lm_sequence_parallelism": ("parallelism.sequence_parallel", _yes),
    f"{_SECTION}.megatron_lm_recompute_activations": ("runtime.recompute_granularity", _selective),
    f"{_SECTION}.megatron_lm_use_distributed_optimizer": ("parallelism.use_distributed_optimizer", _yes),
    f"{_SECTION}.megatron_lm_gradient_clipping": ("optimizer.clip_grad", _norm),
    "mixed_precision": ("precision.dtype", _dtype),
    "num_machines": ("launch.nodes", _count),
    "num_processes": ("launch.gpus_per_node", _count),
    "use_cpu": ("runtime.device", _device),
}
_SHARDED = f"{_SECTION}.megatron_lm_use_distributed_optimizer"
_NO_EFFECT = {
    **dict.fromkeys(("compute_environment", "main_training_function", "distributed_type"), "there is one way to train"),
    **dict.fromkeys(
        ("machine_rank", "main_process_ip", "main_process_port", "rdzv_backend", "same_network", "gpu_ids"),
        "the launcher sets it for each process",
    ),
    **dict.fromkeys(("debug", "enable_cpu_affinity", "numa_affinity"), "the runtime determines how it runs"),
    "megatron_lm_config.megatron_lm_gradient_accumulation_steps": "micro-batches are the accumulation",
}
_EMPTY: tuple[Any, ...] = (None, {}, [], "", "no", False)


def is_accelerate(text: str) -> bool:
    """Whether a text is such a configuration, by its keys."""
    root = parse_yaml(text, "").root
    keys = root.content if root is not None and isinstance(root.content, dict) else {}
    return _SECTION in keys or "distributed_type" in keys


def migrate_accelerate(text: str, source: str, preset: str | None = None) -> Migration:
    """The job that such a file says a part of.

    Raises SpecError for what is no YAML, UserError for another kind of file.
    """
    parsed = parse_yaml(text, source, "configuration of Accelerate")
    if parsed.problems:
        raise SpecError(problems=parsed.problems)
    document = _plain(parsed.root)
    if not isinstance(document, dict) or not isinstance(document.get(_SECTION), dict):
        raise UserError(
            f"{source} has no {_SECTION}: it is not a configuration of Accelerate with Megatron-LM",
            code="accelerate_without_megatron",
        )
    migration = Migration(source)
    migration.values["name"] = name_of_file(source) or "migrated"
    inner = {f"{_SECTION}.{key}": value for key, value in document.pop(_SECTION).items()}
    for key, value in {**inner, **document}.items():
        _read_key(migration, key, value)
    _spread(migration, document)
    for key, value in (("mixed_precision", "fp32"), (_SHARDED, False)):
        path, _ = _KEYS[key]
        if key not in document and key not in inner:
            migration.values[path] = value
            migration.sources[path] = Source("Accelerate's default", is_default=True)
    migration.notes.append(
        "the micro-batch is the batch of the program's data loader, which this file does not say: taken as 1 "
        "(--set batch.micro_batch_size=N)"
    )
    if preset is not None:
        migration.values["model.preset"] = preset
        migration.sources["model.preset"] = Source("--preset")
    for path, why in _REQUIRED.items():
        if path not in _MODEL or preset is None:
            migration.missing[path] = why
            if path != "data.blend":
                migration.values[path] = WRITE_IT
                migration.sources[path] = Source(f"write it: {why}")
    return migration


def _plain(written: LocatedValue | None) -> Any:
    content = written.content if written is not None else None
    if isinstance(content, dict):
        return {key: _plain(value) for key, value in content.items()}
    return [_plain(item) for item in content] if isinstance(content, list) else content


def _read_key(migration: Migration, key: str, value: Any) -> None:
    shown = f"{key.removeprefix(f'{_SECTION}.')}: {value}"
    if key in _NO_EFFECT:
        migration.accounts.append(FlagOutcome("no_effect", shown, reason=_NO_EFFECT[key]))
        return
    if key not in _KEYS:
        empty = FlagOutcome("no_effect", shown, reason="it asks for nothing")
        migration.accounts.append(empty if value in _EMPTY else FlagOutcome("no_counterpart", shown))
        return
    path, read = _KEYS[key]
    try:
        meant = read(value)
    except ValueError as error:
        outcome: Outcome = "not_supported" if path == "precision.dtype" else "not_known"
        migration.accounts.append(FlagOutcome(outcome, shown, path, reason=str(error)))
        migration.missing[path] = f"{shown} ({error})"
        migration.values[path] = WRITE_IT
        migration.sources[path] = Source(f"write it: {shown}")
        return
    is_default = meant == default_of(path)
    migration.accounts.append(FlagOutcome("default" if is_default else "carried", shown, path, meant))
    if not is_default:
        migration.values[path] = meant
        migration.sources[path] = Source(shown)


def _spread(migration: Migration, document: dict[str, Any]) -> None:
    """Processes on each machine; sequence parallelism where there is something to shard over."""
    values = migration.values
    processes, nodes = values.get("launch.gpus_per_node"), values.get("launch.nodes", 1)
    if isinstance(processes, int) and isinstance(nodes, int) and nodes > 1:
        if processes % nodes:
            migration.missing["launch.gpus_per_node"] = f"num_processes {processes} / num_machines {nodes} is not whole"
            values["launch.gpus_per_node"] = WRITE_IT
        else:
            values["launch.gpus_per_node"] = processes // nodes
            migration.sources["launch.gpus_per_node"] = Source(f"num_processes {processes} / num_machines {nodes}")
    if values.get("parallelism.tensor_model_parallel_size", 1) == 1:
        values.pop("parallelism.sequence_parallel", None)
