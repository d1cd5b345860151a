"""What is legal is what the rules of the spec say, no more and no less."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orchestrator.fields.refusals import divisors
from orchestrator.tuning.layout import NO_RECOMPUTE, with_layout
from orchestrator.tuning.space import Space

Spaces = Callable[..., Space]


def test_divisors() -> None:
    for number in range(1, 200):
        assert divisors(number) == [value for value in range(1, number + 1) if number % value == 0]


def test_degrees_are_those_that_divide_the_world_and_the_model(space: Spaces) -> None:
    inside, across, refused = space(gpus=6, model={"num_layers": 9}, batch={"global_batch_size": 12}).degrees()
    assert {(each.tp, each.pp) for each in inside} == {(1, 1), (1, 3), (2, 1), (2, 3)}
    assert not across
    assert any(layout.tp == 3 and problem.code == "heads_by_tensor_parallel" for layout, problem in refused)


def test_a_batch_that_the_replicas_do_not_share_rules_degrees_out(space: Spaces) -> None:
    inside, _, refused = space(gpus=4, batch={"global_batch_size": 2}).degrees()
    assert all(each.model_parallel_size >= 2 for each in inside)
    assert refused[0][1].code == "global_batch"


def test_groups_that_span_machines_are_apart(space: Spaces) -> None:
    inside, across, _ = space(gpus=8, nodes=2).degrees()
    assert {each.tp for each in inside} == {1, 2, 4}
    assert {each.tp for each in across} == {8}


def test_context_parallelism_is_searched(space: Spaces) -> None:
    assert {each.cp for each in space().degrees()[0]} == {1, 2, 4}


def test_expert_parallelism_is_searched_where_there_are_experts(space: Spaces) -> None:
    """Experts need sequence parallelism with TP > 1, and here six of them divide by 1, 2 and 3 alone."""
    model = {"num_experts": 6, "add_bias_linear": False}
    found = space(gpus=4, model=model).degrees()[0]
    assert {each.ep for each in found} == {1, 2}
    assert {each.ep for each in found if each.tp == 2 and each.pp == 2} == {1}, "one replica has no experts to spread"
    assert all(each.sequence_parallel for each in found if each.tp > 1)
    assert {each.ep for each in space(gpus=4).degrees()[0]} == {1}


def test_sequence_parallelism_is_on_where_the_sequence_divides(space: Spaces) -> None:
    assert all(each.sequence_parallel == (each.tp > 1) for each in space().degrees()[0])
    odd = space(model={"seq_length": 1022}).degrees()[0]
    assert {each.tp: each.sequence_parallel for each in odd if each.pp == 1} == {1: False, 2: True, 4: False}


def test_what_is_kept_has_one_value(space: Spaces) -> None:
    parallelism = {"tensor_model_parallel_size": 2}
    kept = space(kept=frozenset({"tp", "micro_batch_size", "sequence_parallel", "recompute"}), parallelism=parallelism)
    inside = kept.degrees()[0]
    assert {each.tp for each in inside} == {2}
    assert {each.sequence_parallel for each in inside} == {False}
    assert kept.micro_batches(inside[0]) == [1]
    assert kept.recomputes(inside[0], 1) == [NO_RECOMPUTE]


def test_recomputation_grows_step_by_step(space: Spaces) -> None:
    one = space()
    [degrees] = [each for each in one.degrees()[0] if each.model_parallel_size == 1]
    told = [each.describe() for each in one.recomputes(degrees, 1)]
    some = [f"full, block {count}" for count in range(1, 8)]
    assert told == ["none", *some, "full, uniform 1", "full, uniform 2"]
    assert [each.describe() for each in one.recomputes(degrees, 8)] == ["none", "full, uniform 1"]
    for recompute in one.recomputes(degrees, 1):
        layout = degrees._replace(recompute=recompute)
        assert one.problem(layout) is None, with_layout(one.job, layout)


def test_what_is_recomputed_is_legal_on_stages_of_any_length(space: Spaces) -> None:
    """Chunks of 5 and 1 layers: in pairs they cannot be, and four can. A T5's encoder has fewer layers than it, and an
    odd number of them.
    """
    uneven = {"pipeline_model_parallel_size": 2, "num_layers_in_last_pipeline_stage": 1}
    kept = frozenset({"pp", "vp", "split"})
    t5: dict[str, Any] = {"architecture": "t5", "encoder_num_layers": 4, "num_layers": 8, "decoder_seq_length": 256}
    t5 |= {"position_embedding_type": "learned_absolute"}
    for one, most in (
        (space(gpus=2, kept=kept, parallelism=uneven, model={"num_layers": 6}), 4),
        (space(gpus=1, model=t5), 3),
        (space(gpus=1, model={**t5, "encoder_num_layers": 5}), 4),
    ):
        [degrees] = [each for each in one.degrees()[0] if each.pp == one.own.pp and each.tp == each.cp == 1]
        found = one.recomputes(degrees, 1)
        assert max(each.num_layers or 0 for each in found) == most
        assert [one.problem(degrees._replace(recompute=each)) for each in found] == [None] * len(found)


def test_what_may_not_be_recomputed_is_not(space: Spaces) -> None:
    """As what drops elements, of a job that demands CUDA graphs."""
    graphs = space(runtime={"cuda_graphs": True}, model={"hidden_dropout": 0.1})
    assert graphs.recomputes(graphs.own, 1) == [NO_RECOMPUTE]
    assert {each.model_parallel_size for each in graphs.degrees()[0]} == {1}


def test_other_stages_are_split_evenly(space: Spaces) -> None:
    """The job's own uneven split, and what it recomputes, are no obstacle to other layouts."""
    uneven = {"pipeline_model_parallel_size": 2, "num_layers_in_first_pipeline_stage": 3}
    modules = {"recompute_granularity": "selective", "recompute_modules": ["layernorm"]}
    one = space(parallelism=uneven, runtime=modules)
    assert one.problem(one.own) is None
    assert with_layout(one.job, one.own) == one.job
    plain = space()
    assert one.degrees()[0] == plain.degrees()[0]


def test_what_overlaps_by_itself_is_not_demanded_of_other_layouts(space: Spaces) -> None:
    for said, found in ((True, None), (None, None), (False, False)):
        parallelism = {"tensor_model_parallel_size": 2, "sequence_parallel": True, "tp_comm_overlap": said}
        one = space(gpus=4, model={"seq_length": 1022}, parallelism=parallelism)
        layouts = {each.tp: each for each in one.degrees()[0] if each.pp == each.cp == 1}
        assert layouts.keys() == {1, 2, 4}, "four ranks cannot share out a sequence, so nothing overlaps there"
        assert {each.tp_comm_overlap for each in [one.own, *layouts.values()]} == {found}
    kept = space(
        gpus=4, parallelism={"tp_comm_overlap": True}, kept=frozenset({"tp_comm_overlap", "sequence_parallel"})
    )
    assert {each.tp for each in kept.degrees()[0]} == {1}, "what is kept rules the others out"
