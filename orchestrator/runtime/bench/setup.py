"""Everything that a step's time depends on beside the job, for whoever wants to measure it again."""

from __future__ import annotations

import dataclasses
import os
import platform
from typing import Any

import torch

from orchestrator.kernel_selection.libraries import versions_of
from orchestrator.runtime.layers.config import LayerConfig, defaults_beyond_megatron
from orchestrator.runtime.optimizer_step import parts_of
from orchestrator.runtime.session import Session

_NCCL: Any = torch.cuda.nccl  # has no types, nor has the other
_CUDNN: Any = torch.backends.cudnn
_PACKAGES = (
    "torch",
    "megatron-core",
    "transformer-engine",
    "triton",
    "flash-attn",
    "flash-attn-4",
    "apex",
    "nvidia-cudnn-frontend",
)
_VARIABLES = (
    "CUDA_",
    "CUDNN_",
    "FLASH_ATTENTION_",
    "GLOO_",
    "MKL_",
    "NCCL_",
    "NVTE_",
    "OMP_",
    "PYTORCH_",
    "TORCH_",
    "UB_",
)
_VARIABLES_OF_COMPILERS = ("TORCHDYNAMO_", "TORCHINDUCTOR_", "TRITON_")
_NO_MATTER = ("_DIR", "_FILE", "_HOME", "_PATH")
"""How the names of variables begin that change how fast something is computed, and how those end that only say where
something lies. No other is shown: one may hold a secret.
"""
_CHOICES = (
    "gradient_accumulation_fusion",
    "apply_rope_fusion",
    "rotates_projection",
    "rotates_images",
    "normalizes_in_kernels",
    "bias_activation_fusion",
    "use_te_activation_func",
    "bias_dropout_fusion",
    "masked_softmax_fusion",
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_fusion",
    "tp_comm_overlap",
    "batch_p2p_comm",
    "batch_p2p_sync",
    "overlap_p2p_comm",
    "cuda_graph_impl",
    "enable_cuda_graph",
    "overlap_grad_reduce",
    "overlap_param_gather",
    "bucket_size",
)
"""Settings of megatron-core, as far as its version has them, and of our layers, that say how something is computed and
not what.
"""


def setup_of(session: Session) -> dict[str, Any]:
    """Versions, the GPU, environment variables, and what was chosen."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions_of(_PACKAGES),
        **(_gpu() if session.processes.device.is_cuda else {"cpu_threads": torch.get_num_threads()}),
        "environment": {name: os.environ[name] for name in sorted(os.environ) if _matters(name)},
        "choices": _choices(session),
    }


def _matters(name: str) -> bool:
    return name.startswith((*_VARIABLES, *_VARIABLES_OF_COMPILERS)) and not name.endswith(_NO_MATTER)


def _gpu() -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    nccl = _NCCL.version()
    return {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "cuda": torch.version.cuda,
        "cudnn": _CUDNN.version(),
        "nccl": ".".join(map(str, nccl)) if isinstance(nccl, tuple) else str(nccl),
    }


def _choices(session: Session) -> dict[str, Any]:
    """What `auto` and the machine decided: the layers, settings of megatron-core's and of our own layers."""
    found: dict[str, Any] = {"layers": session.network.layers, "device": session.processes.device.kind}
    found["cuda_graphs"] = session.network.captured is not None
    for config in (session.network.chunks[0].config, session.network.chunks[0].ddp_config):
        own = defaults_beyond_megatron() if isinstance(config, LayerConfig) else ()
        values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
        names = [*_CHOICES, *own]
        found |= {name: values[name] for name in names if isinstance(values.get(name), bool | int | float | str)}
    parts = parts_of(session.network.optimizer)
    found["optimizer"] = type(parts[0].optimizer).__name__
    return found
