"""How the training program behaves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from orchestrator.spec.base import Section
from orchestrator.spec.values import Duration, ImportPath, Plain, Positive, Seed

Layers = Literal["torch", "transformer_engine"]
"""The implementations of a transformer layer."""
RecomputedModule = Literal["core_attn", "layernorm", "mlp", "moe"]
"""What of a layer can be recomputed alone: the attention without its linears, the norms, a dense MLP, the experts with
their router and the exchange of tokens."""


class RuntimeSpec(Section):
    """How the training program behaves."""

    device: Literal["auto", "cuda", "cpu"] = "auto"
    """`auto` takes CUDA where there is one."""
    layers: Literal["auto", "torch", "transformer_engine"] = "auto"
    """Layer implementation; `auto` takes Transformer Engine on a GPU where it is installed, and torch's where the plan
    for that GPU, and for its host as it is measured at the start, has the host hold it up by a tenth of a step. A run
    keeps what it began with while its layout is the same."""
    attention_backend: Literal["auto", "fused", "flash"] = "auto"
    """The core of a GPT's attention: the layers' own (`fused`: cuDNN's in Transformer Engine's, torch's choice in
    torch's) or FlashAttention 4 (`flash`); `auto` takes that where nothing stands in the way, on Hopper GPUs where
    `flash-attn-4` is installed."""
    seed: Seed = 1234
    """Seed of initial weights and dropout."""
    deterministic: bool = False
    """Ask for deterministic GPU kernels (slower); the CPU always is."""
    threads_per_rank: Positive | None = None
    """CPU threads per process (OMP_NUM_THREADS); 1 on the CPU with several ranks by default."""
    max_bad_steps: Positive = 10
    """Consecutive steps with a NaN or infinite loss or gradient, each skipped, before the job stops."""
    hang_timeout: Duration = 1800
    """A step that takes longer ends the job with every rank's stacks in the run directory."""
    train_step: ImportPath | None = None
    """A class of your own that decides what a step does with a micro-batch: `my_package.steps:KeywordWeightedLoss`,
    found from the working directory or on PYTHONPATH. The model family's own by default."""
    train_step_arguments: dict[str, Plain] = Field(default_factory=dict)
    """Keyword arguments of its constructor."""
    fused_linear_cross_entropy: bool = False
    """Compute the output layer and the loss together, a part of the tokens at a time, so that all logits never exist:
    less memory for one more matrix product."""
    gradient_accumulation_fusion: Literal["auto"] | bool = "auto"
    """Let the matrix products that compute weight gradients add them to the gradients' buffers themselves; `auto` does
    so on a GPU, in 16 bits, without adapters, where torch can: 2.10 and later add to gradients in fp32."""
    cuda_graphs: bool | None = None
    """Run the passes over a micro-batch as one CUDA graph, which the host only starts; gradients are then reduced
    behind the last micro-batch. Left out: on Hopper GPUs, where nothing stands in the way, memory is left
    and the GPU may wait for the host, by the plan and by how fast the host is measured to be at the start."""
    recompute_granularity: Literal["selective", "full"] | None = None
    """Recompute activations in the backward pass: some modules of every layer, or whole layers."""
    recompute_modules: list[RecomputedModule] | None = None
    """selective: which modules of each layer; the core of the attention (`core_attn`) by default."""
    recompute_method: Literal["uniform", "block"] | None = None
    """full: recompute every layer in groups (`uniform`) or only the first layers of a stage (`block`)."""
    recompute_num_layers: Positive | None = None
    """full: layers per group (`uniform`) or per stage (`block`)."""
    distribute_saved_activations: bool = False
    """full: each tensor-parallel rank keeps its part of what is recomputed from."""
    cpu_offloading_num_layers: Positive | None = None
    """Keep the activations of so many layers in the host's memory until their backward pass (Transformer Engine)."""

    @property
    def recomputed_modules(self) -> tuple[RecomputedModule, ...]:
        """The modules that selective recomputation recomputes."""
        if self.recompute_granularity != "selective":
            return ()
        return tuple(self.recompute_modules) if self.recompute_modules is not None else ("core_attn",)
