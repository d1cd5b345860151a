"""Matrix products in 8-bit floating point (Transformer Engine)."""

from typing import Annotated, Literal

from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled
from orchestrator.fields.values import Positive, Size

Fp8Format = Literal["hybrid", "e4m3"]
Fp8Recipe = Literal["delayed", "tensorwise", "blockwise"]


class Fp8Spec(Section):
    """Linear layers multiply in FP8; attention, norms, embedding, output layer and loss stay in bf16 and fp32."""

    recipe: Annotated[Fp8Recipe, AlsoCalled("fp8_recipe")] = "delayed"
    """Where the scaling factors come from: each tensor's largest values in previous steps (`delayed`), its own largest
    value (`tensorwise`: current scaling), or that of each block of 128 (`blockwise`, Hopper and later)."""
    format: Annotated[Fp8Format | None, AlsoCalled("fp8_format", fp8_e4m3="e4m3", fp8_hybrid="hybrid")] = None
    """`e4m3` for all tensors, or `hybrid`: e4m3 forward, and e5m2, which has a wider range, for gradients. `hybrid` by
    default, and `e4m3` for blockwise."""
    margin: Annotated[Size, AlsoCalled("fp8_margin")] = 0
    """delayed: scaling factors are divided by 2 to the power of this, which leaves room for growing values."""
    amax_history_len: Annotated[Positive, AlsoCalled("fp8_amax_history_len amax_history_length")] = 1024
    """delayed: forward (and backward) passes whose largest values are remembered."""
    amax_compute_algo: Annotated[Literal["max", "most_recent"], AlsoCalled("fp8_amax_compute_algo")] = "max"
    """delayed: which of the remembered values sets the scaling factor."""
    num_layers_at_start_in_bf16: Annotated[Size, AlsoCalled("first_last_layers_bf16")] = 0
    """Number of first layers that compute in bf16 (tensorwise, blockwise)."""
    num_layers_at_end_in_bf16: Annotated[Size, AlsoCalled("first_last_layers_bf16")] = 0
    """Number of last layers that compute in bf16 (tensorwise, blockwise)."""

    def share_of_layers(self, layers: int) -> float:
        """Part of so many layers that multiply in FP8."""
        return max(layers - self.num_layers_at_start_in_bf16 - self.num_layers_at_end_in_bf16, 0) / layers

    @property
    def chosen_format(self) -> Fp8Format:
        """The format that is written, or else what suits the recipe."""
        return self.format or ("e4m3" if self.recipe == "blockwise" else "hybrid")
