"""What is asked of a block, whose row in `registry.py` is made by one of these classes. The parts of its folder are
imported as they are asked for, the heavy one by the training alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from orchestrator.models.features import Feature

if TYPE_CHECKING:
    from orchestrator.models.blocks.base import (
        CoreKernels,
        CoreWork,
        ForwardBackward,
        LayerSetup,
        RankShape,
        RoutedTokens,
        Scan,
        Scores,
    )
    from orchestrator.models.blocks.flags import BlockFlags
    from orchestrator.models.blocks.protocols import (
        AttentionTime,
        FeedForwardMemory,
        KeepingLayers,
        LayersPart,
        LinearAttentionTime,
        MemoryPart,
        MixerLayers,
        MovingPart,
        ParametersPart,
        RoutedLayers,
        RoutedMemory,
        RoutedTime,
        RulesPart,
        SharingTime,
        StateSpaceParameters,
        WeightsPart,
    )


class Block:
    """A part of a network, as a folder says it. All of this is asked of every block; what a class does not say is as it
    stands here.
    """

    def __init__(
        self, name: str, *, declares: str = "", offers: tuple[Feature, ...] = (), adapter_targets: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        """Its folder."""
        self.declares = declares
        """The section in its fields.py whose fields `model` has, where there are some."""
        self.offers = offers
        """What a model may have by it, where families or attentions differ in that."""
        self.adapter_targets = adapter_targets
        """Names of its matrices that low-rank adapters may stand beside, of whichever it has in a model."""

    @property
    def flags(self) -> BlockFlags:
        """Megatron-LM's flags of it, by `megatron_flags.py`: a folder without one has none."""
        from orchestrator.models.blocks.flags import BlockFlags  # where nothing is migrated, nothing asks

        folder = f"orchestrator.models.blocks.{self.name}"
        has_some = importlib.util.find_spec(f"{folder}.megatron_flags") is not None
        return cast("BlockFlags", self.part("megatron_flags").FLAGS) if has_some else BlockFlags()

    @cached_property
    def rules(self) -> RulesPart:
        return cast("RulesPart", self.part("rules"))

    @cached_property
    def weights(self) -> WeightsPart:
        return cast("WeightsPart", self.part("weights"))

    @cached_property
    def layers(self) -> LayersPart:
        return cast("LayersPart", self.part("layers"))

    def settings(self, model: Any, setup: LayerSetup) -> dict[str, Any]:
        """Attributes of the layers' configuration: those that megatron-core's TransformerConfig has, and its own; none
        for a model that has no such block.
        """
        return self.layers.settings(model, setup)

    def at_inference(self, drafts: int) -> dict[str, Any]:
        """Fields of a model that generates, which a training has otherwise; so many tokens are drafted at a time."""
        return {}

    def losses(self, model: Any) -> dict[str, str]:
        """Losses that it adds to the loss: by the names under which they are reported, megatron-core's names."""
        return {}

    def prepare(self, chunks: Iterable[Any], model: Any) -> None:
        """Change its modules in built model chunks, where megatron-core builds them otherwise."""

    def part(self, name: str) -> Any:
        """A module of its folder."""
        return importlib.import_module(f"orchestrator.models.blocks.{self.name}.{name}")


class Branch(Block):
    """A branch of the residual stream, behind a norm. All of this is asked of every branch."""

    prefix = ""
    """What names of its weights begin with in a layer's; nothing for what is no branch in a layer's list."""
    recomputed_as: Literal["mlp", "moe"] | None = None
    """Its name in `runtime.recompute_modules`; None where it is not recomputed as a whole."""
    norm_is_recomputed = True
    """Whether `layernorm` in `runtime.recompute_modules` means the norm before it."""
    norm_is_module = False
    """Whether the norm before it is a module of its own in Transformer Engine's layers too."""
    has_activation = False
    """Whether the model's activation is between its matrices."""
    counts_mlp = False
    """Whether the plan counts with it what an MLP takes beside its matrices: for each attention once, in a hybrid too,
    where either is a layer by itself."""
    outweighs_attention = False
    """Whether its backward pass is taken to need more memory than that of any attention in its layer."""
    communicators = 0
    """Of groups of ranks that sum up its gradients, and their norm, apart from all others, whatever their size."""
    recomputes_itself = False
    """Whether its backward pass computes again what is between its matrices, in memory that it takes for that."""

    @cached_property
    def parameters(self) -> ParametersPart:
        return cast("ParametersPart", self.part("parameters"))

    @property
    def formula(self) -> str:
        """What of its FLOPs the formula of a decoder does not say, by `FORMULA` in parameters.py."""
        return str(getattr(self.parameters, "FORMULA", ""))

    @cached_property
    def memory(self) -> MemoryPart:
        return cast("MemoryPart", self.part("memory"))

    def layers_behind(self, model: Any) -> int:
        """Layers that it adds behind the last one, each of which embeds a further token and predicts the one after."""
        return 0

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        """Let a built layer keep what later tokens need of it; the module that is to be handed the cache, or None."""
        return None

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward:
        """Elements that kernels read and write beside its matrices, its scores and its activation."""
        return self._no_work()

    def exchanged(self, model: Any) -> int:
        """Elements of each token that ranks which share a sequence bring each other, all to all of them."""
        return 0

    def redistributed(self, model: Any, tp: int, cp: int) -> int:
        """Elements of each token that `cp` ranks which share a sequence send one another, each to one: to have all
        tokens of fewer heads between the matrices.
        """
        return 0

    def gathered(self, model: Any, tp: int) -> int:
        """Elements of each token that tensor-parallel ranks gather between its matrices."""
        return 0

    def more_launches(self, model: Any) -> ForwardBackward:
        """Kernels that the host starts beside those of grouped-query attention, counted in `planning.time.kernels`."""
        return self._no_work()

    def scores(self, model: Any) -> Scores | None:
        """None where tokens do not attend to each other."""
        return None

    def scan(self, model: Any) -> Scan | None:
        """None where no state passes from token to token."""
        return None

    def routed(self, model: Any, shape: RankShape) -> RoutedTokens | None:
        """None where there are no experts to bring tokens to."""
        return None

    def linear_inputs(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int:
        """Of what its memory saves, bytes that are inputs of linear layers: counted for what is no attention."""
        return 0

    def copied_inputs(self, model: Any, shape: RankShape) -> int:
        """Bytes of inputs of its linear layers that something else keeps too: counted for what is no attention."""
        return 0

    def buffers(self, model: Any, shape: RankShape) -> int:
        """Bytes that are there all the time, once for all layers with it."""
        return 0

    def _no_work(self) -> ForwardBackward:
        from orchestrator.models.blocks.base import NOTHING  # where a job is only checked, nothing asks

        return NOTHING


class FeedForwardBlock(Branch):
    """What computes on each token by itself."""

    prefix = "mlp."
    recomputed_as: Literal["mlp", "moe"] | None = "mlp"
    has_activation = True

    @cached_property
    def memory(self) -> FeedForwardMemory:
        return cast("FeedForwardMemory", self.part("memory"))

    def linear_inputs(self, model: Any, shape: RankShape, kernels: CoreKernels) -> int:
        return self.memory.inputs(model, shape, kernels)


class RoutedBlock(FeedForwardBlock):
    """One that has experts, of which each token passes some."""

    recomputed_as = "moe"
    norm_is_module = True
    outweighs_attention = True
    communicators = 2

    @cached_property
    def memory(self) -> RoutedMemory:
        return cast("RoutedMemory", self.part("memory"))

    @cached_property
    def time(self) -> RoutedTime:
        return cast("RoutedTime", self.part("time"))

    @cached_property
    def layers(self) -> RoutedLayers:
        return cast("RoutedLayers", self.part("layers"))

    def at_inference(self, drafts: int) -> dict[str, Any]:
        return {"moe_expert_capacity_factor": None}

    def losses(self, model: Any) -> dict[str, str]:
        return self.layers.losses(model)

    def prepare(self, chunks: Iterable[Any], model: Any) -> None:
        self.layers.prepare(chunks, model)

    def routed(self, model: Any, shape: RankShape) -> RoutedTokens:
        return self.time.routed(model, shape)

    def copied_inputs(self, model: Any, shape: RankShape) -> int:
        return self.memory.copied_inputs(model, shape)

    def buffers(self, model: Any, shape: RankShape) -> int:
        return self.memory.buffers(model, shape)


class StateSpaceBlock(Branch):
    """What passes a state from token to token."""

    prefix = "mixer."
    norm_is_recomputed = False

    @cached_property
    def parameters(self) -> StateSpaceParameters:
        return cast("StateSpaceParameters", self.part("parameters"))

    @cached_property
    def time(self) -> SharingTime:
        return cast("SharingTime", self.part("time"))

    def redistributed(self, model: Any, tp: int, cp: int) -> int:
        return self.time.redistributed(model, tp, cp)

    @cached_property
    def layers(self) -> KeepingLayers:
        return cast("KeepingLayers", self.part("layers"))

    def scan(self, model: Any) -> Scan:
        return self.parameters.scan(model)

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        return self.layers.keep(layer, with_cache)


class PredictionBlock(Branch):
    """What joins a hidden state and the embedding of a further token, before a layer that predicts the next one."""

    norm_is_recomputed = False

    def layers_behind(self, model: Any) -> int:
        return int(model.mtp_num_layers)

    def at_inference(self, drafts: int) -> dict[str, Any]:
        return {"mtp_num_layers": drafts}

    @cached_property
    def time(self) -> MovingPart:
        return cast("MovingPart", self.part("time"))

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward:
        return self.time.moved(model, work)

    def gathered(self, model: Any, tp: int) -> int:
        return self.time.gathered(model, tp)


class TokenMixer(Branch):
    """What is in the place of self-attention in a transformer's layer."""

    title = "attention"
    """For people."""
    prefix = "self_attention."
    counts_mlp = True

    @cached_property
    def time(self) -> AttentionTime:
        return cast("AttentionTime", self.part("time"))

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward:
        return self.time.moved(model, work)

    def exchanged(self, model: Any) -> int:
        return self.time.exchanged(model)

    def gathered(self, model: Any, tp: int) -> int:
        return self.time.gathered(model, tp)

    def more_launches(self, model: Any) -> ForwardBackward:
        return self.time.more_launches(model)

    @cached_property
    def layers(self) -> MixerLayers:
        return cast("MixerLayers", self.part("layers"))

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        return self.layers.keep(layer, with_cache)


class LinearAttentionBlock(TokenMixer):
    """An attention whose tokens share a state instead of attending to each other, in some layers of a model."""

    title = "linear attention"
    recomputes_itself = True

    @cached_property
    def time(self) -> LinearAttentionTime:
        return cast("LinearAttentionTime", self.part("time"))

    def redistributed(self, model: Any, tp: int, cp: int) -> int:
        return self.time.redistributed(model, tp, cp)

    @cached_property
    def parameters(self) -> StateSpaceParameters:
        return cast("StateSpaceParameters", self.part("parameters"))

    def scan(self, model: Any) -> Scan:
        return self.parameters.scan(model)
