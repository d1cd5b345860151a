"""Groups of ranks and the nodes they lie on, against megatron-core and against counting."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.pace import at_the_promised_pace

from orchestrator.planning.layout.groups import group_kinds
from orchestrator.planning.layout.topology import crossing, topology

SIZES = [
    # tp, cp, ep, dp, pp, etp
    (1, 1, 1, 1, 1, 1),
    (2, 1, 1, 3, 2, 2),
    (2, 2, 1, 2, 3, 2),
    (2, 1, 4, 8, 2, 2),
    (4, 2, 2, 3, 1, 4),
    (1, 1, 2, 4, 4, 1),
    (4, 1, 4, 2, 2, 1),
    (4, 2, 3, 3, 1, 2),
    (2, 1, 1, 2, 1, 1),
]


@pytest.mark.parametrize(("tp", "cp", "ep", "dp", "pp", "etp"), SIZES)
def test_groups_are_megatrons(tp: int, cp: int, ep: int, dp: int, pp: int, etp: int) -> None:
    from megatron.core.parallel_state import RankGenerator, default_embedding_ranks

    order = "tp-cp-ep-dp-pp"
    dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order=order)
    experts = RankGenerator(tp=etp, ep=ep, dp=tp * dp * cp // (etp * ep), pp=pp, cp=1, order=order)
    kinds = group_kinds(tp=tp, cp=cp, ep=ep, dp=dp, pp=pp, etp=etp, processes_per_node=8)
    expected = {
        "tp": dense.get_ranks("tp"),
        "cp": dense.get_ranks("cp"),
        "ep": experts.get_ranks("ep"),
        "dp": dense.get_ranks("dp"),
        "pp": dense.get_ranks("pp"),
        "dp_cp": dense.get_ranks("dp-cp") if cp > 1 else None,
        "expert_tp": experts.get_ranks("tp") if etp != tp else None,
        "expert_dp": experts.get_ranks("dp") if etp * ep != tp else None,
        "embedding": [default_embedding_ranks(group) for group in dense.get_ranks("pp")] if pp > 1 else None,
    }
    found = {name: [list(group) for group in kind] for name, kind in kinds.items()}
    assert {name: sorted(groups) for name, groups in found.items()} == {
        name: sorted(groups) for name, groups in expected.items() if groups is not None
    }
    assert {name: kind.count for name, kind in kinds.items()} == {name: len(groups) for name, groups in found.items()}


@given(
    st.tuples(*[st.integers(1, 5)] * 4),
    st.integers(1, 9),
    st.sampled_from(["tp", "cp", "dp", "pp", "dp_cp", "embedding"]),
)
def test_nodes_of_groups_are_those_of_their_ranks(sizes: tuple[int, ...], per_node: int, name: str) -> None:
    tp, cp, dp, pp = sizes
    kinds = group_kinds(tp=tp, cp=cp, ep=1, dp=dp, pp=pp, processes_per_node=per_node)
    if name not in kinds:
        return
    nodes = [len({rank // per_node for rank in group}) for group in kinds[name]]
    found = kinds[name].crossing()
    assert (found.groups, found.crossing) == (len(nodes), sum(number > 1 for number in nodes))
    assert (found.fewest_nodes, found.most_nodes) == (min(nodes), max(nodes))


def largest(make_job: Any) -> Any:
    """The 462B row of Megatron-LM's table: 6,144 GPUs."""
    return make_job(
        model={"num_layers": 112},
        parallelism={"tensor_model_parallel_size": 8, "pipeline_model_parallel_size": 16, "data_parallel_size": 48},
        batch={"global_batch_size": 3072, "micro_batch_size": 1},
        launch={"nodes": 768},
    )


def test_what_crosses_nodes_at_6144_gpus(make_job: Any) -> None:
    layout = topology(largest(make_job))
    assert at_the_promised_pace(lambda: crossing(layout), enough=0.25, attempts=3) < 0.25
    lines = {name: str(each) for name, each in crossing(layout).items()}
    assert lines == {
        "tp": "768 groups, none crosses nodes",
        "dp": "128 of 128 groups cross nodes, 48 nodes each",
        "pp": "384 of 384 groups cross nodes, 16 nodes each",
        "embedding": "384 of 384 groups cross nodes, 2 nodes each",
    }


def test_groups_as_plain_data(make_job: Any) -> None:
    layout = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "data_parallel_size": 3}
    made = topology(make_job(parallelism=layout, batch={"global_batch_size": 12}, launch={"nodes": 4}))
    groups = json.loads(json.dumps(made.to_dict()))["groups"]
    assert list(groups) == ["tp", "cp", "ep", "dp", "pp", "embedding"]
    assert {key: groups["tp"][key] for key in ("size", "groups", "crossing_nodes", "nodes_per_group")} == {
        "size": 2,
        "groups": 6,
        "crossing_nodes": 2,
        "nodes_per_group": [1, 2],
    }
    assert str(crossing(made)["tp"]) == "2 of 6 groups cross nodes, 1 to 2 nodes each"
    assert str(crossing(topology(make_job(parallelism={"tensor_model_parallel_size": 2})))["tp"]) == (
        "1 group, it stays on its node"
    )
