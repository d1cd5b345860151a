"""How the training program behaves."""

from typing import Annotated, Literal

from pydantic import Field

from orchestrator.fields import resume
from orchestrator.fields.base import Section
from orchestrator.fields.metadata import AlsoCalled, HashedIfChanged, MegatronFlag
from orchestrator.fields.values import Duration, ImportPath, Plain, Positive, Seed, empty_dict

Layers = Literal["torch", "transformer_engine"]
"""The implementations of a transformer layer."""
RecomputedModule = Literal["core_attn", "layernorm", "mlp", "moe"]
"""What of a layer can be recomputed alone: the attention without its linears, the norms, a dense MLP, the experts with
their router and the exchange of tokens."""

_FULL = ("runtime.recompute_granularity", "full")


class RuntimeSpec(Section):
    """How the training program behaves."""

    device: Annotated[Literal["auto", "cuda", "cpu"], resume.NOT_BITWISE, AlsoCalled(use_cpu="cpu")] = "auto"
    """`auto` uses CUDA if it is available."""
    layers: Annotated[
        Literal["auto", "torch", "transformer_engine"],
        resume.safe("both implementations read the same checkpoints; losses agree, not bitwise"),
        AlsoCalled("transformer_impl"),
    ] = "auto"
    """Layer implementation; `auto` uses Transformer Engine on a GPU where it is installed, or torch's layers if the
    plan for that GPU, and for the host as measured at start, predicts that host overhead would make a step a tenth
    slower. A run keeps its first choice while its layout is the same."""
    attention_backend: Annotated[
        Literal["auto", "fused", "flash"],
        resume.safe("the same attention in other kernels; losses agree, not bitwise"),
        HashedIfChanged(),
        AlsoCalled(use_flash_attn="auto", flash_attention="auto"),
    ] = "auto"
    """The core of a GPT's attention: the layers' own (`fused`: cuDNN's in Transformer Engine's, torch's choice in
    torch's) or FlashAttention 4 (`flash`); `auto` uses FlashAttention 4 wherever possible, on Hopper GPUs with
    `flash-attn-4` installed."""
    seed: Annotated[Seed, resume.seed] = 1234
    """Seed of initial weights and dropout."""
    deterministic: Annotated[
        bool,
        resume.NOT_BITWISE,
        AlsoCalled("use_deterministic_algorithms deterministic_mode"),
        MegatronFlag("deterministic-mode"),
    ] = False
    """Use deterministic GPU kernels (slower); the CPU is always deterministic."""
    threads_per_rank: Annotated[Positive | None, resume.NOT_BITWISE] = None
    """CPU threads per process (OMP_NUM_THREADS); 1 on the CPU with several ranks by default."""
    max_bad_steps: Annotated[Positive, resume.GIVING_UP] = 10
    """Consecutive steps with a NaN or infinite loss or gradient, each skipped, before the job stops."""
    hang_timeout: Annotated[Duration, resume.GIVING_UP, AlsoCalled("distributed_timeout_minutes")] = 1800
    """A step that takes longer ends the job with every rank's stacks in the run directory."""
    train_step: Annotated[ImportPath | None, resume.LOSS] = None
    """Your own class that defines what a step does with a micro-batch: `my_package.steps:KeywordWeightedLoss`, imported
    from the working directory or PYTHONPATH. The model family's own by default."""
    train_step_arguments: Annotated[dict[str, Plain], resume.LOSS] = Field(default_factory=empty_dict)
    """Keyword arguments of its constructor."""
    fused_linear_cross_entropy: Annotated[
        bool, resume.safe("the same loss in other kernels; losses agree, not bitwise")
    ] = False
    """Compute the output layer and the loss together, for part of the tokens at a time, so that the full logits never
    exist: less memory for one more matrix product."""
    gradient_accumulation_fusion: Annotated[
        Literal["auto"] | bool,
        resume.unless_experts_change_format(resume.safe("the same gradients, rounded less; losses agree, not bitwise")),
    ] = "auto"
    """Let the matrix products that compute weight gradients add them directly to the gradient buffers; `auto` does so
    on a GPU, in 16 bits, without adapters, if torch supports it: 2.10 and later can add to fp32 gradients."""
    cuda_graphs: Annotated[
        bool | None, resume.safe("the same kernels; losses agree, not bitwise with several replicas"), HashedIfChanged()
    ] = None
    """Run the passes over a micro-batch as one CUDA graph, which the host only launches; gradients are then reduced
    after the last micro-batch. By default on Hopper GPUs, if the job supports it, memory suffices and the GPU may wait
    for the host, according to the plan and the host's speed as measured at start."""
    recompute_granularity: Annotated[
        Literal["selective", "full"] | None,
        resume.RECOMPUTED,
        AlsoCalled(
            "activation_checkpointing gradient_checkpointing",
            recompute_activations="selective",
            megatron_lm_recompute_activations="selective",
            checkpoint_activations="full",
        ),
        MegatronFlag(),
    ] = None
    """Recompute activations in the backward pass: some modules of every layer, or whole layers."""
    recompute_modules: Annotated[list[RecomputedModule] | None, resume.RECOMPUTED] = None
    """selective: which modules of each layer; the core of the attention (`core_attn`) by default."""
    recompute_method: Annotated[
        Literal["uniform", "block"] | None,
        resume.RECOMPUTED,
        AlsoCalled("activations_checkpoint_method"),
        MegatronFlag(only=_FULL, old_names=("activations-checkpoint-method",)),
    ] = None
    """full: recompute every layer in groups (`uniform`) or only the first layers of a stage (`block`)."""
    recompute_num_layers: Annotated[
        Positive | None,
        resume.RECOMPUTED,
        AlsoCalled("activations_checkpoint_num_layers checkpoint_num_layers"),
        MegatronFlag(only=_FULL, old_names=("activations-checkpoint-num-layers", "checkpoint-num-layers")),
    ] = None
    """full: layers per group (`uniform`) or per stage (`block`)."""
    distribute_saved_activations: Annotated[
        bool, resume.RECOMPUTED, AlsoCalled("distribute_checkpointed_activations"), MegatronFlag(only=_FULL)
    ] = False
    """full: each tensor-parallel rank keeps only its part of the saved inputs."""
    cpu_offloading_num_layers: Annotated[
        Positive | None, resume.safe("only where activations wait for the backward pass changes")
    ] = None
    """Keep the activations of this many layers in host memory until their backward pass (Transformer Engine)."""

    @property
    def recomputed_modules(self) -> tuple[RecomputedModule, ...]:
        """The modules that selective recomputation recomputes."""
        if self.recompute_granularity != "selective":
            return ()
        return tuple(self.recompute_modules) if self.recompute_modules is not None else ("core_attn",)
