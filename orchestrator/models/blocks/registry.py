"""The one list of blocks. Each is a folder beside this file, whose parts are modules of the same names in every folder;
they are imported as they are asked for, the heavy one by the training alone.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from orchestrator import plugins
from orchestrator.errors import UserError
from orchestrator.fields.base import Section
from orchestrator.fields.refusals import Unavailable
from orchestrator.models.blocks.features import Asked, BlockFeature
from orchestrator.models.registry import FAMILIES, GPT

if TYPE_CHECKING:
    from orchestrator.models.blocks.base import (
        CoreWork,
        ForwardBackward,
        LayerSetup,
        RankShape,
        RoutedTokens,
        Scan,
        Scores,
    )
    from orchestrator.models.blocks.experts.fields import ExpertsSpec
    from orchestrator.models.blocks.flags import BlockFlags
    from orchestrator.models.blocks.gated_delta_net.fields import GatedDeltaNetSpec
    from orchestrator.models.blocks.grouped_query_attention.fields import GroupedQueryAttentionSpec
    from orchestrator.models.blocks.latent_attention.fields import LatentAttentionSpec
    from orchestrator.models.blocks.mlp.fields import MlpSpec
    from orchestrator.models.blocks.multi_token_prediction.fields import MultiTokenPredictionSpec
    from orchestrator.models.blocks.protocols import (
        AttentionMatrices,
        AttentionTime,
        AttentionWeights,
        FeedForwardMemory,
        KeepingLayers,
        LayersPart,
        MatricesPart,
        MemoryPart,
        MixerLayers,
        MovingPart,
        RoutedMemory,
        RoutedTime,
        RulesPart,
        StateSpaceMatrices,
        WeightsPart,
    )
    from orchestrator.models.blocks.residual_stream.fields import ResidualStreamSpec
    from orchestrator.models.blocks.state_space.fields import StateSpaceSpec
    from orchestrator.models.registry import ModelFamily


class Block:
    """A branch of the residual stream, behind a norm. All of this is asked of every block; what a class does not say is
    as it stands here.
    """

    prefix = ""
    """What names of its weights begin with in a layer's; nothing for what is no branch in a layer's list."""
    recomputed_as: Literal["mlp", "moe"] | None = None
    """Its name in `runtime.recompute_modules`; None where it is not recomputed as a whole."""
    norm_is_module = False
    """Whether the norm before it is a module of its own in Transformer Engine's layers too."""
    has_activation = False
    """Whether the model's activation is between its matrices."""
    counts_mlp = False
    """Whether the plan counts with it what an MLP takes beside its matrices: for each attention once, in a hybrid too,
    where either is a layer by itself."""
    outweighs_attention = False
    """Whether its backward pass is taken to need more memory than that of any attention in its layer."""
    recomputes_itself = False
    """Whether its backward pass computes again what is between its matrices, in memory that it takes for that."""

    def __init__(self, name: str, *, declares: str = "", offers: tuple[BlockFeature, ...] = ()) -> None:
        self.name = name
        """Its folder."""
        self.declares = declares
        """The section in its fields.py whose fields `model` has, where there are some."""
        self.offers = offers
        """What a model may have by it, where families or attentions differ in that."""

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
    def matrices(self) -> MatricesPart:
        return cast("MatricesPart", self.part("matrices"))

    @cached_property
    def memory(self) -> MemoryPart:
        return cast("MemoryPart", self.part("memory"))

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

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        """Let a built layer keep what later tokens need of it; the module that is to be handed the cache, or None."""
        return None

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward:
        """Elements that kernels read and write beside its matrices, its scores and its activation."""
        return self._no_work()

    def exchanged(self, model: Any) -> int:
        """Elements of each token that ranks which share a sequence bring each other."""
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

    def linear_inputs(self, model: Any, shape: RankShape) -> int:
        """Of what its memory saves, bytes that are inputs of linear layers: counted for what is no attention."""
        return 0

    def buffers(self, model: Any, shape: RankShape) -> int:
        """Bytes that are there all the time, once for all layers with it."""
        return 0

    def _no_work(self) -> ForwardBackward:
        from orchestrator.models.blocks.base import NOTHING  # where a job is only checked, nothing asks

        return NOTHING

    def part(self, name: str) -> Any:
        """A module of its folder."""
        return importlib.import_module(f"orchestrator.models.blocks.{self.name}.{name}")


class FeedForwardBlock(Block):
    """What computes on each token by itself."""

    prefix = "mlp."
    recomputed_as: Literal["mlp", "moe"] | None = "mlp"
    has_activation = True

    @cached_property
    def memory(self) -> FeedForwardMemory:
        return cast("FeedForwardMemory", self.part("memory"))

    def linear_inputs(self, model: Any, shape: RankShape) -> int:
        return self.memory.inputs(model, shape)


class RoutedBlock(FeedForwardBlock):
    """One that has experts, of which each token passes some."""

    recomputed_as = "moe"
    norm_is_module = True
    outweighs_attention = True

    @cached_property
    def memory(self) -> RoutedMemory:
        return cast("RoutedMemory", self.part("memory"))

    @cached_property
    def time(self) -> RoutedTime:
        return cast("RoutedTime", self.part("time"))

    def routed(self, model: Any, shape: RankShape) -> RoutedTokens:
        return self.time.routed(model, shape)

    def buffers(self, model: Any, shape: RankShape) -> int:
        return self.memory.buffers(model, shape)


class StateSpaceBlock(Block):
    """What passes a state from token to token."""

    prefix = "mixer."

    @cached_property
    def matrices(self) -> StateSpaceMatrices:
        return cast("StateSpaceMatrices", self.part("matrices"))

    @cached_property
    def layers(self) -> KeepingLayers:
        return cast("KeepingLayers", self.part("layers"))

    def scan(self, model: Any) -> Scan:
        return self.matrices.scan(model)

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        return self.layers.keep(layer, with_cache)


class PredictionBlock(Block):
    """What joins a hidden state and the embedding of a further token, before a layer that predicts the next one."""

    @cached_property
    def time(self) -> MovingPart:
        return cast("MovingPart", self.part("time"))

    def moved(self, model: Any, work: CoreWork) -> ForwardBackward:
        return self.time.moved(model, work)

    def gathered(self, model: Any, tp: int) -> int:
        return self.time.gathered(model, tp)


class TokenMixer(Block):
    """What is in the place of self-attention in a transformer's layer."""

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
    def weights(self) -> AttentionWeights:
        return cast("AttentionWeights", self.part("weights"))

    @cached_property
    def layers(self) -> MixerLayers:
        return cast("MixerLayers", self.part("layers"))

    def keep(self, layer: Any, with_cache: Callable[[Any], Any]) -> Any:
        return self.layers.keep(layer, with_cache)


class LinearAttentionBlock(TokenMixer):
    """An attention whose tokens share a state instead of attending to each other, in some layers of a model."""

    recomputes_itself = True

    @cached_property
    def matrices(self) -> StateSpaceMatrices:
        return cast("StateSpaceMatrices", self.part("matrices"))

    def scan(self, model: Any) -> Scan:
        return self.matrices.scan(model)


class AttentionBlock(TokenMixer):
    """A way for tokens to attend to each other."""

    def __init__(
        self,
        name: str,
        *,
        is_used: Callable[[Any], bool],
        field: str = "num_attention_heads",
        families: tuple[ModelFamily, ...] | None = None,
        features: frozenset[str] | None = None,
        declares: str = "",
        offers: tuple[BlockFeature, ...] = (),
    ) -> None:
        super().__init__(name, declares=declares, offers=offers)
        self.is_used = is_used
        """Whether a model's layers have it, by the model's fields."""
        self.field = field
        """That of these by which a person asks for it."""
        self.families = families
        """Which have it; None for all."""
        self.features = features
        """Those of its family, and of blocks, that were tried with it; None for all."""

    def goes_with(self, family: ModelFamily) -> bool:
        """Whether models of a family may have it."""
        return self.families is None or family in self.families

    def supports(self, feature: str) -> bool:
        """Whether models with it may be combined with a feature that their family supports, or that a block offers."""
        return self.features is None or feature in self.features

    @cached_property
    def matrices(self) -> AttentionMatrices:
        return cast("AttentionMatrices", self.part("matrices"))

    def scores(self, model: Any) -> Scores:
        return self.matrices.scores(model)

    def settings(self, model: Any, setup: LayerSetup) -> dict[str, Any]:
        """Those of grouped-query attention, whose fields every model has, but for what it says otherwise."""
        return {**GROUPED_QUERY.layers.settings(model, setup), **self.layers.settings(model, setup)}


class AttentionOfPackage(AttentionBlock):
    """An attention of another package, whose entry point leads to that package: modules of it have the names that those
    of a block have, and what it has no module for is as in grouped-query attention. Its rules are its `Options`.
    """

    def __init__(self, name: str, package: ModuleType) -> None:
        families = tuple(FAMILIES[each] for each in getattr(package, "FAMILIES", ("gpt",)))
        features = frozenset(getattr(package, "FEATURES", ()))
        super().__init__(
            name,
            is_used=lambda model: bool(model.attention_plugin == name),
            field="attention_plugin",
            families=families,
            features=features,
        )
        self._package = package.__name__

    def part(self, name: str) -> Any:
        module = f"{self._package}.{name}"
        if importlib.util.find_spec(module) is None:
            return GROUPED_QUERY.part(name)
        return importlib.import_module(module)


class MissingBlockError(UserError, Unavailable):
    """The block of another package cannot be had: rules that ask it are skipped, as one says what is wrong."""


GROUPED_QUERY: Final = AttentionBlock(
    "grouped_query_attention",
    is_used=lambda model: True,
    declares="GroupedQueryAttentionSpec",
    offers=(
        BlockFeature("attention_sinks", Asked("softmax_type", lambda model: bool(model.has_sinks))),
        BlockFeature("output_gate", Asked("attention_output_gate", lambda model: bool(model.attention_output_gate))),
        BlockFeature("positions_by_layer", Asked("no_rope_freq", lambda model: bool(model.rotates_by_layer))),
    ),
)
LATENT: Final = AttentionBlock(
    "latent_attention",
    is_used=lambda model: bool(model.has_latent_attention),
    field="kv_lora_rank",
    families=(GPT,),
    features=frozenset(("context_parallelism", "conversations", "experts", "joined_loss", "multi_token_prediction")),
    declares="LatentAttentionSpec",
)
ATTENTIONS: Final = (LATENT, GROUPED_QUERY)
"""The first that a model has is its attention."""
GATED_DELTA_NET: Final = LinearAttentionBlock(
    "gated_delta_net", declares="GatedDeltaNetSpec", offers=(BlockFeature("linear_attention"),)
)
"""In place of a model's attention in some layers."""
MLP: Final = FeedForwardBlock("mlp", declares="MlpSpec")
EXPERTS: Final = RoutedBlock(
    "experts",
    declares="ExpertsSpec",
    offers=(BlockFeature("experts", Asked("num_experts", lambda model: bool(model.has_experts))),),
)
STATE_SPACE: Final = StateSpaceBlock("state_space", declares="StateSpaceSpec")
MULTI_TOKEN_PREDICTION: Final = PredictionBlock(
    "multi_token_prediction",
    declares="MultiTokenPredictionSpec",
    offers=(
        BlockFeature("multi_token_prediction", Asked("mtp_num_layers", lambda model: bool(model.predicts_further))),
    ),
)
RESIDUAL_STREAM: Final = Block(
    "residual_stream",
    declares="ResidualStreamSpec",
    offers=(
        BlockFeature("multipliers"),
        BlockFeature("output_norms", Asked("transformer_block_type", lambda model: bool(model.normalizes_outputs))),
        BlockFeature("parallel_residual", Asked("parallel_residual", lambda m: m.parallel_residual is not None)),
    ),
)
"""No branch, and in no layer's list: what is around each of them."""
BLOCKS: Final[tuple[Block, ...]] = (
    *ATTENTIONS,
    GATED_DELTA_NET,
    MLP,
    EXPERTS,
    STATE_SPACE,
    MULTI_TOKEN_PREDICTION,
    RESIDUAL_STREAM,
)
FEATURES: Final[Mapping[str, BlockFeature]] = {each.name: each for block in BLOCKS for each in block.offers}
"""What blocks offer, by name."""


def block_flags() -> tuple[BlockFlags, ...]:
    """Megatron-LM's flags of each block, in the order of their names."""
    return tuple(block.flags for block in sorted(BLOCKS, key=lambda block: block.name))


class _BlockFields:
    """Stands for the sections that blocks declare, among the bases of a class."""

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type[Any], ...]:
        return (*(getattr(block.part("fields"), block.declares) for block in BLOCKS if block.declares), Section)


if TYPE_CHECKING:

    class BlockFields(
        LatentAttentionSpec,
        GroupedQueryAttentionSpec,
        GatedDeltaNetSpec,
        MlpSpec,
        ExpertsSpec,
        StateSpaceSpec,
        MultiTokenPredictionSpec,
        ResidualStreamSpec,
    ):
        """The base of `model`."""
else:
    BlockFields: Final = _BlockFields()


def mixer_named(name: str) -> TokenMixer:
    """The block in a folder, or of the package that has an entry point of that name. Raises MissingBlockError."""
    return next((block for block in (*ATTENTIONS, GATED_DELTA_NET) if block.name == name), None) or _of_package(name)


def attention_of(model: Any) -> AttentionBlock:
    """What a model's tokens attend with. Raises MissingBlockError where another package's is not there."""
    if model.attention_plugin is not None:
        return _of_package(model.attention_plugin)
    return next(block for block in ATTENTIONS if block.is_used(model))


@cache
def _of_package(name: str) -> AttentionBlock:
    try:
        return AttentionOfPackage(name, plugins.load(plugins.BLOCKS, name))
    except UserError as error:
        raise MissingBlockError(str(error), code=error.code) from error
