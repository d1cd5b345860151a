"""Variables that a script exports for the training program."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from orchestrator.kernel_selection.cuda_connections import CONNECTIONS, chosen_connections
from orchestrator.migration.report import FlagOutcome, Migration, Outcome, Source
from orchestrator.migration.shell.values import Unknown, Value, known, shown

OWNED = re.compile(
    r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|LOCAL_WORLD_SIZE|N?NODE_RANK|NNODES|NUM_NODES|GPUS_PER_NODE|MASTER_(ADDR|PORT)|"
    r"(ORCHESTRATOR|TORCHELASTIC|PET|PBS|SLURM|SBATCH|SRUN)_.*"
)
_FOR_PROGRAMS = re.compile(
    r"(NCCL|RCCL|CUDA|HIP|HSA|MIOPEN|TORCH|PYTORCH|NVTE|OMP|UCX|UB|FI|GLOO|HF|TRANSFORMERS|TOKENIZERS|TRITON|NVIDIA|"
    r"NVSHMEM|WANDB)_.*|LD_(LIBRARY_PATH|PRELOAD)"
)
_BACKEND = "runtime.attention_backend chooses, and megatron-core refuses another word in the environment"
_NOT_CARRIED: dict[str, tuple[Outcome, str]] = {
    **dict.fromkeys(("NVTE_FLASH_ATTN", "NVTE_FUSED_ATTN", "NVTE_UNFUSED_ATTN"), ("no_counterpart", _BACKEND)),
    "NVTE_APPLY_QK_LAYER_SCALING": ("no_counterpart", "scores are not scaled by layer here"),
    "PYTHONPATH": (
        "no_counterpart",
        "modules there would take precedence over the megatron-core that trains: put what the job itself needs into "
        "launch.env",
    ),
}
_SECRET = re.compile(r".*(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(_.*)?", re.IGNORECASE)
_ADDRESS_WITH_CREDENTIALS = re.compile(r"://[^/@\s]*:[^/@\s]*@")


def read_environment(migration: Migration, environment: Iterable[tuple[str, Value]], read: frozenset[str]) -> None:
    """Variables that the script exports for the training program, as `launch.env`.

    What the script itself reads and no library knows is the script's own.
    """
    kept: dict[str, str] = {}
    by_itself = _set_by_a_launch(migration.values)
    for name, value in environment:
        if name in _NOT_CARRIED:
            outcome, reason = _NOT_CARRIED[name]
            migration.accounts.append(FlagOutcome(outcome, f"export {name}={shown(value)}", None, None, reason))
            continue
        if OWNED.fullmatch(name) or (name in by_itself and by_itself[name] == known(value)):
            continue
        if name == CONNECTIONS and known(value) == "1":
            reason = "a launch chooses: copies to the host's memory hold up what is computed behind them in one queue"
            migration.accounts.append(FlagOutcome("no_effect", f"export {name}={shown(value)}", None, None, reason))
            continue
        if name in read and not _FOR_PROGRAMS.fullmatch(name):
            continue
        account = f"export {name}={shown(value)}"
        is_address = _ADDRESS_WITH_CREDENTIALS.search(shown(value))
        if (_SECRET.fullmatch(name) or is_address) and value:
            kept[name] = f"${{env:{name}}}"
            reason = "a secret is not written down: it is read where the job starts"
            migration.accounts.append(
                FlagOutcome("carried", f"export {name}", f"launch.env.{name}", kept[name], reason)
            )
            continue
        text = _referring(value)
        if text is None:
            migration.accounts.append(FlagOutcome("not_known", account, "launch.env", None, "write it into launch.env"))
            continue
        kept[name] = text
        migration.accounts.append(FlagOutcome("carried", account, f"launch.env.{name}", text))
    if kept:
        migration.values["launch.env"] = kept
        migration.sources["launch.env"] = Source("exported by the script")


def _referring(value: Value) -> str | None:
    """The value with variables of the environment as `${env:NAME}`; None where something else is not known."""
    parts: list[str] = []
    for part in value:
        if isinstance(part, Unknown):
            if part.variable is None or not re.fullmatch(r"[A-Z_][A-Z0-9_]*", part.variable) or "condition" in part.why:
                return None
            parts.append(f"${{env:{part.variable}}}")
        elif "${" in part:
            return None
        else:
            parts.append(part)
    return "".join(parts)


def _set_by_a_launch(values: Mapping[str, Any]) -> dict[str, str]:
    """What the launch script of such a job sets by itself."""
    offloads = values.get("runtime.cpu_offloading_num_layers") is not None
    tp, cp = (values.get(f"parallelism.{name}_parallel_size", 1) for name in ("tensor_model", "context"))
    return {CONNECTIONS: str(chosen_connections(offloads, tp, cp)), "PYTHONUNBUFFERED": "1"}
