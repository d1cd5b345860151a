"""Whether the core of attention is FlashAttention 4: what the machine has for it, on which all ranks agree."""

from __future__ import annotations

import fcntl
import inspect
import os
from pathlib import Path
from typing import Any

import torch

from orchestrator.errors import UserError
from orchestrator.kernel_selection.attention import may_use_flash
from orchestrator.kernel_selection.libraries import FLASH, flash_version
from orchestrator.runtime.layers.attention.flash import attend, interface
from orchestrator.runtime.processes.device import Device
from orchestrator.runtime.processes.process_groups import Ranks
from orchestrator.runtime.processes.rank_agreement import Control, of_any
from orchestrator.spec.job import JobSpec
from orchestrator.spec.rules.kernels.flash_attention import ATTENTION

_HOPPER = 9
_NEEDED = {
    "_flash_attn_fwd": {"q", "k", "v", "softmax_scale", "causal", "return_lse", "out"},
    "_flash_attn_bwd": {"q", "k", "v", "out", "dout", "lse", "softmax_scale", "causal", "dq", "dk", "dv"},
}
"""The arguments of its inner functions that are used here: a beta may rename them."""
_TRIED_TOKENS = 512
"""Several of its blocks: a sequence of one is computed by other kernels."""
_CACHE = "FLASH_ATTENTION_CUTE_DSL_CACHE_"


def choose_attention(job: JobSpec, device: Device, ranks: Ranks, control: Control) -> bool:
    """Whether FlashAttention 4 computes the attention of the layers that are built next.

    Where a machine cannot, or has it broken, `auto` goes on without, and rank 0 says why, unless it is simply not
    installed. Raises UserError, on all ranks, where the job demands it.
    """
    if not may_use_flash(job):
        return False
    demanded = job.runtime.attention_backend == "flash"
    why = of_any(control, missing(device) or failure(job, device))
    if why is None:
        return True
    if demanded:
        raise UserError(
            f"{ATTENTION} is flash, which is not available here: {why}; write auto or fused",
            code="unavailable_flash_attention",
        )
    if ranks.is_first and flash_version() is not None:
        print(f"attention is the layers' own, not FlashAttention 4: {why}", flush=True)
    return False


def missing(device: Device) -> str | None:
    """What this process lacks to compute with it; where nothing is, it has been imported."""
    found = flash_version()
    if found is None:
        return f"{FLASH} is not installed"
    if not device.is_cuda or torch.cuda.get_device_capability(device.torch_device)[0] != _HOPPER:
        return f"it was measured on Hopper GPUs, and this is {device.name}"
    keep_compiled()
    try:
        module = interface()
    except (ImportError, OSError, RuntimeError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        return f"{FLASH} {found} cannot be imported: {said}"
    if not all(arguments <= _arguments_of(module, name) for name, arguments in _NEEDED.items()):
        return f"{FLASH} {found} has other functions than 4.0.0b36"
    return None


def failure(job: JobSpec, device: Device) -> str | None:
    """What comes of its two passes over heads like those of a rank instead of numbers; None where they compute. They
    are compiled for such heads here, which the first step would do else. What the GPU fails at is raised.
    """
    model = job.model
    per_group = model.num_attention_heads // max(model.query_groups, job.parallelism.tensor_model_parallel_size)
    shape = (min(model.seq_length, _TRIED_TOKENS), 1, 1, per_group + 2, model.head_dim)
    dtype = torch.bfloat16 if job.precision.dtype == "bf16" else torch.float16
    try:
        joined = torch.zeros(shape, dtype=dtype, device=device.torch_device, requires_grad=True)
        parts = [joined[..., :per_group, :], joined[..., per_group : per_group + 1, :], joined[..., per_group + 1 :, :]]
        query, key, value = (part.flatten(2, 3) for part in parts)
        if per_group > 1:  # as they are split for it
            query, key, value = query.contiguous(), key.contiguous(), value.contiguous()
        out = attend(query, key, value, 1.0)
        [gradient] = torch.autograd.grad(out, [joined], torch.zeros_like(out))
        gradient.sum().item()  # waits for it
    except Exception as error:  # whatever its compiler raises; the layers' own attention is there
        if isinstance(error, torch.OutOfMemoryError) or "CUDA error" in str(error):
            raise
        said = next(iter(str(error).splitlines()), "")
        return f"{FLASH} {flash_version()} fails here: {type(error).__name__}: {said}"
    return None


def _arguments_of(module: Any, name: str) -> set[str]:
    function = getattr(module, name, None)
    return set() if function is None else set(inspect.signature(function).parameters)


def keep_compiled() -> None:
    """Let the package keep what it compiles, about 5 s in each process, in the user's cache folder; it reads where when
    it is imported. What the user says goes. Where a folder cannot be made or locked, as on some shared file systems, it
    is left off: the package waits for a lock, and then fails.
    """
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "orchestrator" / "flash-attn-4"
    if f"{_CACHE}ENABLED" in os.environ or f"{_CACHE}DIR" in os.environ:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "lock", "w") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return
    os.environ[f"{_CACHE}ENABLED"], os.environ[f"{_CACHE}DIR"] = "1", str(folder)
