"""Number formats."""

from typing import Annotated, Literal

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag
from orchestrator.fields.values import Positive, PositiveNumber
from orchestrator.spec.sections.quantization import Fp4Spec, Fp8Spec

DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of one element."""

_FP16 = ("precision.dtype", "fp16")


class PrecisionSpec(Section):
    """bf16 needs no loss scaling; fp16 scales dynamically unless `loss_scale` fixes it."""

    dtype: Annotated[
        Literal["bf16", "fp16", "fp32"],
        resume.ROUNDING,
        AlsoCalled("mixed_precision torch_dtype params_dtype", bf16="bf16", fp16="fp16", fp32="fp32"),
    ] = "bf16"
    """Format of weights and activations; the optimizer always keeps fp32 copies."""
    fp8: Annotated[Fp8Spec | None, resume.ROUNDING, AlsoCalled("enable_fp8")] = None
    """Matrix products of the layers in FP8, on top of bf16: `fp8: {recipe: delayed}`."""
    fp4: Annotated[Fp4Spec | None, resume.ROUNDING, HashedIfChanged(), AlsoCalled("fp4_format")] = None
    """Matrix products of the layers in FP4, on top of bf16, in place of fp8: `fp4: {recipe: nvfp4}`."""
    grad_reduce_in_fp32: Annotated[bool, resume.ROUNDING, AlsoCalled("accumulate_allreduce_grads_in_fp32")] = True
    """Accumulate and reduce gradients in fp32."""
    loss_scale: Annotated[PositiveNumber | None, resume.SCALING] = None
    """fp16: a fixed loss scale."""
    initial_loss_scale: Annotated[
        PositiveNumber,
        resume.safe("the scale in force is in the checkpoint"),
        AlsoCalled("initial_scale_power"),
        MegatronFlag(only=_FP16),
    ] = 2.0**32
    """fp16: the first dynamic loss scale."""
    min_loss_scale: Annotated[PositiveNumber, resume.SCALING, MegatronFlag(only=_FP16)] = 1.0
    """fp16: the smallest dynamic loss scale."""
    loss_scale_window: Annotated[Positive, resume.SCALING, MegatronFlag(only=_FP16)] = 1000
    """fp16: good steps before the scale doubles."""
    hysteresis: Annotated[Positive, resume.SCALING, MegatronFlag(only=_FP16)] = 2
    """fp16: bad steps before the scale halves."""

    @property
    def quantization(self) -> Fp8Spec | Fp4Spec | None:
        """The narrow format of the layers' matrix products; None where they have the dtype."""
        return self.fp8 or self.fp4

    @property
    def products(self) -> str:
        """Format of the layers' matrix products: "fp8", "mxfp8", "nvfp4", or the dtype."""
        return self.dtype if self.quantization is None else self.quantization.number_format
