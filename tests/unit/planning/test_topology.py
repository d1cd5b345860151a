"""Rank coordinates and layers of stages, against megatron-core."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from support.pace import at_the_promised_pace

from orchestrator.planning.layout.topology import topology

LAYOUTS = [
    {},
    {"data_parallel_size": 4},
    {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "data_parallel_size": 3},
    {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 2,
        "context_parallel_size": 3,
        "data_parallel_size": 2,
    },
    {"pipeline_model_parallel_size": 4, "context_parallel_size": 2, "data_parallel_size": 2},
]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_groups_are_megatrons(make_job: Any, layout: dict[str, int]) -> None:
    from megatron.core.parallel_state import RankGenerator

    layout_of = topology(make_job(parallelism=layout, batch={"global_batch_size": 24}))
    generator = RankGenerator(
        tp=layout_of.tensor_model_parallel_size,
        ep=1,
        dp=layout_of.data_parallel_size,
        pp=layout_of.pipeline_model_parallel_size,
        cp=layout_of.context_parallel_size,
        order="tp-cp-ep-dp-pp",
    )
    for axis in ("tp", "cp", "dp", "pp"):
        groups: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for rank in layout_of.ranks:
            others = tuple(getattr(rank, other) for other in ("tp", "cp", "dp", "pp") if other != axis)
            groups[others].append(rank.rank)
            # The coordinate is the place within the group.
            assert groups[others].index(rank.rank) == getattr(rank, axis)
        assert sorted(groups.values()) == sorted(generator.get_ranks(axis))


@pytest.mark.parametrize("experts", [1, 2, 4])
def test_expert_groups_are_megatrons(make_job: Any, experts: int) -> None:
    from megatron.core.parallel_state import RankGenerator

    tp, pp, dp = 2, 2, 8
    layout_of = topology(
        make_job(
            parallelism={
                "tensor_model_parallel_size": tp,
                "pipeline_model_parallel_size": pp,
                "expert_model_parallel_size": experts,
                "data_parallel_size": dp,
            },
            batch={"global_batch_size": 16},
        )
    )
    generator = RankGenerator(tp=tp, ep=experts, dp=dp // experts, pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    for group in generator.get_ranks("ep"):
        assert [layout_of.ranks[rank].ep for rank in group] == list(range(experts))


@pytest.mark.filterwarnings("ignore:full scope is deprecated:UserWarning")
@pytest.mark.parametrize(("layers", "pp", "vp"), [(8, 1, None), (8, 4, None), (24, 4, 3), (8, 2, 4), (12, 2, 2)])
def test_layers_of_stages_are_megatrons(make_job: Any, layers: int, pp: int, vp: int | None) -> None:
    import torch
    from megatron.core.transformer.transformer_block import get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

    layout_of = topology(
        make_job(
            model={"num_layers": layers},
            parallelism={"pipeline_model_parallel_size": pp, "virtual_pipeline_model_parallel_size": vp},
        )
    )
    config = TransformerConfig(
        num_layers=layers,
        hidden_size=64,
        num_attention_heads=4,
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vp,
        pipeline_dtype=torch.float32,
    )
    for stage, chunks in enumerate(layout_of.stages):
        for chunk, layer_range in enumerate(chunks):
            vp_stage = chunk if vp else None
            count = get_num_layers_to_build(config, vp_stage=vp_stage, pp_rank=stage)
            first = get_transformer_layer_offset(config, vp_stage=vp_stage, pp_rank=stage)
            assert (layer_range.first, layer_range.last) == (first, first + count - 1)


def test_nodes(make_job: Any) -> None:
    layout = {"tensor_model_parallel_size": 2, "data_parallel_size": 4}
    narrow = topology(make_job(parallelism=layout, launch={"nodes": 4, "gpus_per_node": 2}))
    assert [(rank.node, rank.local_rank) for rank in narrow.ranks[:3]] == [(0, 0), (0, 1), (1, 0)]
    assert not narrow.tensor_parallel_crosses_nodes
    assert topology(make_job(parallelism=layout, launch={"nodes": 8})).tensor_parallel_crosses_nodes


def test_the_largest_published_layout_is_quick(make_job: Any) -> None:
    job = make_job(
        model={"num_layers": 112},
        parallelism={
            "tensor_model_parallel_size": 8,
            "pipeline_model_parallel_size": 16,
            "data_parallel_size": 48,
        },
        batch={"global_batch_size": 3072, "micro_batch_size": 1},
        launch={"nodes": 768},
    )
    assert at_the_promised_pace(lambda: topology(job), enough=0.5, attempts=3) < 0.5
    layout_of = topology(job)
    assert layout_of.world_size == len(layout_of.ranks) == 6144
    assert layout_of.ranks[-1][1:] == (7, 0, 0, 47, 15, 767, 7)
