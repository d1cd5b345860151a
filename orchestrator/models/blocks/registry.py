"""The one list of blocks. Each is a folder beside this file, with modules of the same names in every folder."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, cast

from orchestrator import plugins
from orchestrator.errors import UserError
from orchestrator.fields.base import Section
from orchestrator.fields.refusals import Unavailable
from orchestrator.models.blocks.block import (
    Block,
    FeedForwardBlock,
    LinearAttentionBlock,
    PredictionBlock,
    RoutedBlock,
    StateSpaceBlock,
    TokenMixer,
)
from orchestrator.models.features import OF_JOBS, Feature
from orchestrator.models.registry import BERT, FAMILIES, GPT, MAMBA

if TYPE_CHECKING:
    from orchestrator.models.blocks.base import LayerSetup, Scores
    from orchestrator.models.blocks.experts.fields import ExpertsSpec
    from orchestrator.models.blocks.flags import BlockFlags
    from orchestrator.models.blocks.gated_delta_net.fields import GatedDeltaNetSpec
    from orchestrator.models.blocks.grouped_query_attention.fields import GroupedQueryAttentionSpec
    from orchestrator.models.blocks.latent_attention.fields import LatentAttentionSpec
    from orchestrator.models.blocks.mlp.fields import MlpSpec
    from orchestrator.models.blocks.multi_token_prediction.fields import MultiTokenPredictionSpec
    from orchestrator.models.blocks.protocols import AttentionParameters
    from orchestrator.models.blocks.residual_stream.fields import ResidualStreamSpec
    from orchestrator.models.blocks.state_space.fields import StateSpaceSpec
    from orchestrator.models.features import RuledOut
    from orchestrator.models.registry import ModelFamily


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
        offers: tuple[Feature, ...] = (),
        adapter_targets: tuple[str, ...] = (),
    ) -> None:
        super().__init__(name, declares=declares, offers=offers, adapter_targets=adapter_targets)
        self.is_used = is_used
        """Whether a model's layers have it, by the model's fields."""
        self.field = field
        """That of these by which a person asks for it."""
        self.families = families
        """Which have it; None for all."""
        self.features = features
        """Those that were tried with it; None for all."""

    def goes_with(self, family: ModelFamily) -> bool:
        """Whether models of a family may have it."""
        return self.families is None or family in self.families

    def supports(self, feature: str) -> bool:
        """Whether models with it may have a feature that their family has."""
        return self.features is None or feature in self.features

    @cached_property
    def parameters(self) -> AttentionParameters:
        return cast("AttentionParameters", self.part("parameters"))

    def scores(self, model: Any) -> Scores:
        return self.parameters.scores(model)

    def settings(self, model: Any, setup: LayerSetup) -> dict[str, Any]:
        """Those of grouped-query attention, whose fields every model has, but for what it says otherwise."""
        return {**GROUPED_QUERY.layers.settings(model, setup), **self.layers.settings(model, setup)}


_EARLIER_NAMES = {"parameters": "matrices"}
"""What a block's module was called before."""


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
            adapter_targets=GROUPED_QUERY.adapter_targets,
        )
        self._package = package.__name__

    @property
    def flags(self) -> BlockFlags:
        return GROUPED_QUERY.flags

    def part(self, name: str) -> Any:
        module = f"{self._package}.{name}"
        if importlib.util.find_spec(module) is not None:
            return importlib.import_module(module)
        earlier = _EARLIER_NAMES.get(name)
        if earlier is not None and importlib.util.find_spec(f"{self._package}.{earlier}") is not None:
            raise UserError(
                f"{self._package}.{earlier} is called {name}.py in this version: rename it",
                code="renamed_plugin_module",
            )
        return GROUPED_QUERY.part(name)


class MissingBlockError(UserError, Unavailable):
    """The block of another package cannot be had: rules that ask it are skipped, as one says what is wrong."""


GROUPED_QUERY: Final = AttentionBlock(
    "grouped_query_attention",
    is_used=lambda model: True,
    declares="GroupedQueryAttentionSpec",
    offers=(
        Feature(
            "attention_sinks",
            "model.softmax_type",
            lambda job: bool(job.model.has_sinks),
            rules_out={"flash_attention": "it has no sinks"},
        ),
        Feature("output_gate", "model.attention_output_gate", lambda job: bool(job.model.attention_output_gate)),
        Feature(
            "attention_chunks",
            "model.attention_chunk_size",
            lambda job: bool(job.model.has_chunks),
            rules_out={"flash_attention": "it was not tried with sequences of several chunks"},
        ),
        Feature(
            "positions_by_layer",
            "model.no_rope_freq",
            lambda job: bool(job.model.rotates_by_layer),
            families=(GPT, BERT),
        ),
    ),
    adapter_targets=("linear_qkv", "linear_proj"),
)
LATENT: Final = AttentionBlock(
    "latent_attention",
    is_used=lambda model: bool(model.has_latent_attention),
    field="kv_lora_rank",
    families=(GPT,),
    features=frozenset(
        ("adapters", "context_parallelism", "conversations", "experts", "joined_loss", "multi_token_prediction")
    ),
    declares="LatentAttentionSpec",
    adapter_targets=(
        *("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj"),
        *("linear_kv_down_proj", "linear_kv_up_proj", "linear_proj"),
    ),
)
ATTENTIONS: Final = (LATENT, GROUPED_QUERY)
"""The first that a model has is its attention."""
GATED_DELTA_NET: Final = LinearAttentionBlock(
    "gated_delta_net",
    declares="GatedDeltaNetSpec",
    offers=(
        Feature(
            "linear_attention",
            "model.linear_attention_freq",
            lambda job: bool(job.model.has_linear_attention),
            rules_out={
                "cuda_graphs": "it was not measured for linear attention",
                "tensor_overlap": "it was not measured with linear attention",
            },
        ),
    ),
    adapter_targets=("in_proj", "out_proj"),
)
"""In place of a model's attention in some layers."""
MLP: Final = FeedForwardBlock("mlp", declares="MlpSpec", adapter_targets=("linear_fc1", "linear_fc2"))
EXPERTS: Final = RoutedBlock(
    "experts",
    declares="ExpertsSpec",
    offers=(
        Feature(
            "experts",
            "model.num_experts",
            lambda job: bool(job.model.has_experts),
            families=(GPT, MAMBA),
            rules_out={
                "cuda_graphs": "the number of tokens per expert changes in each pass",
                "generation_graphs": "the host asks the GPU which experts are chosen",
                "images": "experts with images are not in this version",
                "tensor_overlap": "it was not measured for layers with experts",
            },
        ),
    ),
    adapter_targets=MLP.adapter_targets,
)
STATE_SPACE: Final = StateSpaceBlock(
    "state_space",
    declares="StateSpaceSpec",
    offers=(
        Feature(
            "state_space",
            "model.architecture",
            lambda job: bool(job.model.family.is_hybrid),
            families=(MAMBA,),
            concerns_attention=False,
            rules_out={
                "cuda_graphs": "it was not measured for state space layers",
                "generation_graphs": "it was not tried for state space layers",
            },
        ),
    ),
    adapter_targets=("in_proj", "out_proj"),
)
MULTI_TOKEN_PREDICTION: Final = PredictionBlock(
    "multi_token_prediction",
    declares="MultiTokenPredictionSpec",
    offers=(
        Feature(
            "multi_token_prediction",
            "model.mtp_num_layers",
            lambda job: bool(job.model.predicts_further),
            rules_out={
                "cuda_graphs": "it was not measured for multi-token prediction",
                "tensor_overlap": "megatron-core gives a matrix of its layers no buffer",
            },
        ),
    ),
)
RESIDUAL_STREAM: Final = Block(
    "residual_stream",
    declares="ResidualStreamSpec",
    offers=(
        Feature("multipliers", concerns_attention=False),
        Feature("embedding_norm", families=(BERT,), concerns_attention=False),
        Feature("norms_without_bias", "model.norm_bias", lambda job: not job.model.norm_bias, families=(GPT, BERT)),
        Feature("output_norms", "model.transformer_block_type", lambda job: bool(job.model.normalizes_outputs)),
        Feature("parallel_residual", "model.parallel_residual", lambda job: job.model.parallel_residual is not None),
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
FEATURES: Final[Mapping[str, Feature]] = {
    each.name: each for offers in (*(block.offers for block in BLOCKS), OF_JOBS) for each in offers
}
"""What blocks offer, and what no block brings, by name."""


def ruled_out(job: Any, what: RuledOut) -> Iterator[tuple[str, str]]:
    """Fields by which a job has features that rule something out, each with the reason."""
    for feature in FEATURES.values():
        if what in feature.rules_out and feature.is_used(job):
            yield feature.path, feature.rules_out[what]


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


def could_have_adapters_first(document: Mapping[str, Any]) -> bool:
    """Whether the model of a stored spec has only blocks that took low-rank adapters from the beginning."""
    model = document.get("model", {})
    return not (model.get("architecture") == "mamba" or model.get("linear_attention_freq") or model.get("kv_lora_rank"))
