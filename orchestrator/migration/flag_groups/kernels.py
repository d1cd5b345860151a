"""Some flags of Megatron-LM switch on what is on here by itself: they are written so that it trains as fast. Others
switch off what is on there by default and refused beside other flags. None says anything of a job when it is read
(the table of `megatron_flags/performance.py`).
"""

from __future__ import annotations

from orchestrator.kernel_selection.experts import can_fuse_permutation, can_fuse_router, groups_experts
from orchestrator.kernel_selection.fused_kernels import fuses_dropout
from orchestrator.kernel_selection.layers import may_have_engine
from orchestrator.migration.megatron_flags.flag_writer import FlagWriter
from orchestrator.migration.megatron_flags.given_flags import GivenFlags
from orchestrator.models.blocks.flags import FlagGroup


def read(given: GivenFlags) -> None:
    """Nothing."""


def write(writer: FlagWriter) -> None:
    job = writer.job
    if job.runtime.device == "cpu":
        return
    engines = may_have_engine(job)
    if engines and can_fuse_permutation(job):
        writer.add("RUNTIME", "moe-permute-fusion")
    if engines and can_fuse_router(job):
        writer.add("RUNTIME", "moe-router-fusion")
    if engines and groups_experts(job, "transformer_engine") and not fuses_dropout(job.model):
        writer.add("RUNTIME", "no-bias-dropout-fusion")
    if not job.runtime.deterministic:  # Megatron-LM's is not
        writer.add("RUNTIME", "cross-entropy-loss-fusion")
        if engines:
            writer.add("RUNTIME", "cross-entropy-fusion-impl", "te")
    writer.add("RUNTIME", "manual-gc")


KERNELS = (FlagGroup({}, read, write, ()),)
