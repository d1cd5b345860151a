"""Matrix products in 8-bit and 4-bit floating point (Transformer Engine)."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Literal

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled
from orchestrator.fields.values import Positive, Size

Fp8Format = Literal["hybrid", "e4m3"]
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise", "mxfp8"]
Fp4Recipe = Literal["nvfp4"]
NumberFormat = Literal["fp8", "mxfp8", "nvfp4"]
ELEMENT_BYTES: Mapping[str, float] = {"fp8": 1, "mxfp8": 1 + 1 / 32, "nvfp4": 1 / 2 + 1 / 16}
"""Bytes of an element of an operand. In MXFP8, 32 elements share a scaling factor of one byte, in NVFP4 16 do. Those of
FP8, at the most 4 bytes for each 128 elements (blockwise), are not counted."""


class Quantization(Section):
    """Operands of the layers' matrix products in a narrow format."""

    def share_of_layers(self, layers: int) -> float:
        """Part of so many layers whose products are in the narrow format."""
        return max(layers - sum(self.ends_in_bf16), 0) / layers

    @property
    @abstractmethod
    def ends_in_bf16(self) -> tuple[int, int]:
        """First and last layers that compute in bf16."""

    @property
    @abstractmethod
    def field(self) -> str:
        """Which field of `precision` it is."""

    @property
    @abstractmethod
    def number_format(self) -> NumberFormat:
        """What is multiplied."""

    @property
    def is_microscaled(self) -> bool:
        """Whether blocks of 32 or 16 elements share a scaling factor, which only GPUs of compute capability 10.x
        multiply (Transformer Engine's `check_mxfp8_support`, which excludes 12.x; its NVFP4 fails there)."""
        return self.number_format != "fp8"

    @property
    def scales_blocks(self) -> bool:
        """Whether a tensor has more than one scaling factor."""
        return self.is_microscaled

    @property
    def element_bytes(self) -> float:
        """Bytes of an element of an operand."""
        return ELEMENT_BYTES[self.number_format]


class Fp8Spec(Quantization):
    """Linear layers multiply in FP8; attention, norms, embedding, output layer and loss stay in bf16 and fp32."""

    recipe: Annotated[Fp8Recipe, AlsoCalled("fp8_recipe")] = "delayed"
    """Where the scaling factors come from: each tensor's largest values in previous steps (`delayed`), its own largest
    value (`tensorwise`: current scaling), that of each block of 128 (`blockwise`, Hopper and later) or of each block of
    32 (`mxfp8`, GPUs of compute capability 10.x: B200, GB200, B300)."""
    format: Annotated[Fp8Format | None, AlsoCalled("fp8_format", fp8_e4m3="e4m3", fp8_hybrid="hybrid")] = None
    """`e4m3` for all tensors, or `hybrid`: e4m3 forward, and e5m2, which has a wider range, for gradients. `hybrid` by
    default, and `e4m3` for blockwise and mxfp8."""
    margin: Annotated[Size, AlsoCalled("fp8_margin")] = 0
    """delayed: scaling factors are divided by 2 to the power of this, which leaves room for growing values."""
    amax_history_len: Annotated[Positive, AlsoCalled("fp8_amax_history_len amax_history_length")] = 1024
    """delayed: forward (and backward) passes whose largest values are remembered."""
    amax_compute_algo: Annotated[Literal["max", "most_recent"], AlsoCalled("fp8_amax_compute_algo")] = "max"
    """delayed: which of the remembered values sets the scaling factor."""
    num_layers_at_start_in_bf16: Annotated[Size, AlsoCalled("first_last_layers_bf16")] = 0
    """Number of first layers that compute in bf16 (tensorwise, blockwise, mxfp8)."""
    num_layers_at_end_in_bf16: Annotated[Size, AlsoCalled("first_last_layers_bf16")] = 0
    """Number of last layers that compute in bf16 (tensorwise, blockwise, mxfp8)."""

    @property
    def field(self) -> str:
        """Which field of `precision` it is."""
        return "fp8"

    @property
    def ends_in_bf16(self) -> tuple[int, int]:
        """First and last layers that compute in bf16."""
        return self.num_layers_at_start_in_bf16, self.num_layers_at_end_in_bf16

    @property
    def number_format(self) -> NumberFormat:
        """Both FP8 formats are multiplied at the same rate."""
        return "mxfp8" if self.recipe == "mxfp8" else "fp8"

    @property
    def scales_blocks(self) -> bool:
        """Whether a tensor has more than one scaling factor."""
        return self.recipe in ("blockwise", "mxfp8")

    @property
    def chosen_format(self) -> Fp8Format:
        """The format that is written, or else what suits the recipe."""
        return self.format or ("e4m3" if self.scales_blocks else "hybrid")


class Fp4Spec(Quantization):
    """Linear layers multiply in FP4 (NVIDIA 2025, "Pretraining Large Language Models with NVFP4"); attention, norms,
    embedding, output layer and loss stay in bf16 and fp32."""

    recipe: Annotated[Fp4Recipe, AlsoCalled("fp4_recipe", fp4_format="nvfp4")] = "nvfp4"
    """`nvfp4`: e2m1 with a scaling factor in e4m3 for each block of 16 and one in fp32 for each tensor; weights are
    scaled in blocks of 16 x 16, gradients rounded stochastically, and the operands of weight gradients pass a random
    Hadamard transform. GPUs of compute capability 10.x: B200, GB200, B300."""
    num_layers_at_start_in_bf16: Annotated[Size, AlsoCalled("first_last_layers_bf16")] = 0
    """Number of first layers that compute in bf16."""
    num_layers_at_end_in_bf16: Annotated[Size, AlsoCalled("first_last_layers_bf16")] = 0
    """Number of last layers that compute in bf16. The paper keeps about a sixth of the layers, mostly these."""

    @property
    def field(self) -> str:
        """Which field of `precision` it is."""
        return "fp4"

    @property
    def ends_in_bf16(self) -> tuple[int, int]:
        """First and last layers that compute in bf16."""
        return self.num_layers_at_start_in_bf16, self.num_layers_at_end_in_bf16

    @property
    def number_format(self) -> NumberFormat:
        """That of the one recipe."""
        return "nvfp4"
