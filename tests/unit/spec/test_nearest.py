"""A value that a hint offers is one that is taken: it ends the refusal that offers it, and brings no other."""

from __future__ import annotations

import inspect
import re
from functools import cache, partial
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.depth import examples
from support.problems import problems_of
from support.shipped import SHIPPED

from orchestrator.errors import Problem
from orchestrator.fields.refusals import Refusal, divisors, divisors_of, multiples_of
from orchestrator.models.blocks import rules as of_several_blocks
from orchestrator.spec import rules
from orchestrator.spec.loading import load_job
from orchestrator.spec.rules.base import Rule
from orchestrator.spec.schema.shape import leaf_paths

SHORT = {
    "TP": "parallelism.tensor_model_parallel_size",
    "PP": "parallelism.pipeline_model_parallel_size",
    "VP": "parallelism.virtual_pipeline_model_parallel_size",
    "CP": "parallelism.context_parallel_size",
    "EP": "parallelism.expert_model_parallel_size",
    "ETP": "parallelism.expert_tensor_parallel_size",
}
# Of several fields of one name the one that is least nested.
PATHS = {path.rpartition(".")[2]: path for path in sorted(leaf_paths(), key=lambda path: -path.count("."))} | SHORT
OFFERED = re.compile(r"nearest (\w+): ([\d.]+)(?: or ([\d.]+))?([^;\n]*)")

FP8 = ["precision.fp8={recipe: delayed}", "runtime.layers=auto"]
FP4 = ["precision.fp4={recipe: nvfp4}", "runtime.layers=auto"]
MAMBA = ["model.architecture=mamba", "model.mamba_num_groups=4", "model.position_embedding_type=rope"]
UNEVEN = "parallelism.num_layers_in_first_pipeline_stage"
UPCYCLED = "checkpoint={pretrained: dense, upcycle: true}"
RAMP = "batch.rampup_batch_size"

CASES: list[tuple[str, str, list[str], str, str]] = [
    # (rule, shipped job, what is changed, the field of the refusal, fields that it offers)
    ("topology.world_size", "gpt-345m", ["TP=2", "launch.gpus_per_node=3"], "launch.gpus_per_node", "gpus_per_node"),
    ("topology.world_size", "gpt-345m", ["TP=2", "batch.micro_batch_size=3"], "launch.gpus_per_node", "gpus_per_node"),
    ("topology.world_size", "t5-220m", ["launch.gpus_per_node=null", "launch.nodes=3"], "launch.nodes", "nodes"),
    ("topology.interleaved_micro_batches", "mixtral-8x7b", ["VP=2", "GBS=272"],
     "batch.num_micro_batches", "global_batch_size"),
    ("topology.interleaved_micro_batches", "mixtral-8x7b", ["VP=2", "GBS=null"],
     "batch.num_micro_batches", "num_micro_batches"),
    ("topology.context_parallel", "llama3-8b", ["CP=2", "model.seq_length=8194"],
     "parallelism.context_parallel_size", "seq_length"),
    ("topology.context_parallel", "gpt-345m", ["CP=3", "GPUS=null"],
     "parallelism.context_parallel_size", "CP seq_length"),
    ("fully_sharded.sharding_groups", "llama3-8b", ["parallelism.fsdp=3"], "parallelism.fsdp", "fsdp"),
    ("grouped_query_attention.query_groups_by_tensor_parallel", "llama3-8b", ["TP=16", "KV=12"],
     "parallelism.tensor_model_parallel_size", "TP"),
    ("gated_delta_net.heads_of_linear_attention", "llama3-8b", ["model.linear_attention_freq=4",
     "model.linear_num_key_heads=12"], "model.linear_num_key_heads", "linear_num_key_heads linear_num_value_heads"),
    ("gated_delta_net.key_heads_by_tensor_parallel", "llama3-8b", ["model.linear_attention_freq=4",
     "model.linear_num_key_heads=6", "model.linear_num_value_heads=12", "TP=4"],
     "parallelism.tensor_model_parallel_size", "TP linear_num_key_heads"),
    ("gated_delta_net.key_heads_by_context_parallel", "llama3-8b", ["model.linear_attention_freq=4",
     "model.linear_num_key_heads=6", "model.linear_num_value_heads=12", "TP=1", "CP=4", "GPUS=null"],
     "parallelism.context_parallel_size", "CP linear_num_key_heads"),
    ("grouped_query_attention.output_gate", "llama3-8b", ["TP=16", "model.attention_output_gate=true"],
     "parallelism.tensor_model_parallel_size", "TP num_query_groups"),
    ("grouped_query_attention.heads_by_tensor_parallel", "gpt-345m", ["TP=3", "GPUS=null"],
     "parallelism.tensor_model_parallel_size", "TP"),
    ("mlp.ffn_by_tensor_parallel", "bert-345m", ["TP=3", "GPUS=null"],
     "parallelism.tensor_model_parallel_size", "TP ffn_hidden_size"),
    ("grouped_query_attention.heads_by_tensor_parallel", "mixtral-8x7b", ["TP=3"],
     "parallelism.tensor_model_parallel_size", "TP"),
    ("grouped_query_attention.heads_by_query_groups", "llama3-8b", ["KV=5"],
     "model.num_query_groups", "num_query_groups"),
    ("grouped_query_attention.hidden_by_heads", "gpt-345m", ["HEADS=12"],
     "model.num_attention_heads", "num_attention_heads hidden_size"),
    ("sequence.sequence_by_tensor_parallel", "llama3-8b", ["LENGTH=8190"], "model.seq_length", "seq_length"),
    ("sequence.sequence_by_tensor_parallel", "llama3-8b", ["TP=3", "SP", "GPUS=null"], "model.seq_length", "TP"),
    ("stages.layers_by_stages", "gpt-345m", ["PP=5", "GPUS=null"],
     "parallelism.pipeline_model_parallel_size", "PP num_layers"),
    ("stages.layers_by_stages", "mixtral-8x7b", ["VP=3"],
     "parallelism.virtual_pipeline_model_parallel_size", "VP num_layers"),
    ("stages.layers_by_stages", "bert-345m", ["PP=5", "GPUS=null"],
     "parallelism.pipeline_model_parallel_size", "PP num_layers"),
    ("stages.layers_between_stages", "mixtral-8x7b", [f"{UNEVEN}=6"],
     "parallelism.num_layers_in_first_pipeline_stage", "num_layers_in_first_pipeline_stage"),
    ("stages.layers_between_stages", "gpt-345m", ["PP=2", "GPUS=2", f"{UNEVEN}=9", "LAST=9"],
     "parallelism.num_layers_in_first_pipeline_stage", "num_layers"),
    ("stages.chunks_of_uneven_stages", "mixtral-8x7b", ["VP=2", f"{UNEVEN}=5"],
     "parallelism.num_layers_in_first_pipeline_stage", "VP"),
    ("grouped_query_attention.rotary", "llama3-8b", ["model.rotary_percent=0.26"],
     "model.rotary_percent", "rotary_percent"),
    ("grouped_query_attention.rotary", "llama3-8b", ["HEADS=48", "HIDDEN=4608", "PERCENT=0.035"],
     "model.rotary_percent", "rotary_percent"),
    ("latent_attention.rotated_part", "llama3-8b", ["LATENT=512", "KV=null", "ROTATED=63"],
     "model.qk_pos_emb_head_dim", "qk_pos_emb_head_dim"),
    ("experts.experts_by_expert_parallel", "mixtral-8x7b", ["model.num_experts=12"],
     "parallelism.expert_model_parallel_size", "EP"),
    ("experts.experts_by_expert_parallel", "moe-tiny-cpu", ["EP=3"], "parallelism.expert_model_parallel_size", "EP"),
    ("experts.expert_groups", "mixtral-8x7b", ["model.moe_router_num_groups=3", "model.moe_router_group_topk=2"],
     "model.moe_router_num_groups", "moe_router_num_groups"),
    ("experts.expert_ranks", "mixtral-8x7b", ["launch.nodes=2"], "parallelism.expert_model_parallel_size", "EP"),
    ("experts.expert_widths", "mixtral-8x7b", ["ETP=2", "TP=2", "SP", "MOE=999"],
     "model.moe_ffn_hidden_size", "moe_ffn_hidden_size"),
    ("experts.expert_widths", "mixtral-8x7b", ["TP=2", "ETP=1", "SP", "SHARED=999"],
     "model.moe_shared_expert_intermediate_size", "moe_shared_expert_intermediate_size"),
    ("experts.upcycled_widths", "mixtral-8x7b", [UPCYCLED, "MOE=1000"],
     "model.moe_ffn_hidden_size", "moe_ffn_hidden_size"),
    ("experts.upcycled_widths", "mixtral-8x7b", [UPCYCLED, "MOE=7168", "model.moe_router_topk=3"],
     "model.moe_router_topk", "moe_router_topk"),
    ("recomputation.recomputed_layers", "gpt-345m", ["RECOMPUTE=5"],
     "runtime.recompute_num_layers", "recompute_num_layers"),
    ("t5.lengths", "t5-220m", ["TP=4", "SP", "DECODER=126"], "model.decoder_seq_length", "decoder_seq_length"),
    ("t5.relative_positions", "t5-220m", ["RELATIVE", "BUCKETS=30"],
     "model.relative_attention_num_buckets", "relative_attention_num_buckets"),
    ("t5.halves_of_the_pipeline", "t5-220m", ["PP=8", "SPLIT=5"],
     "parallelism.pipeline_model_parallel_split_rank", "pipeline_model_parallel_split_rank"),
    ("t5.halves_of_the_pipeline", "t5-220m", ["PP=10", "GPUS=null"],
     "parallelism.pipeline_model_parallel_split_rank", "PP"),
    ("t5.halves_of_the_pipeline", "t5-220m", ["PP=4", "DECODERS=7"],
     "parallelism.pipeline_model_parallel_split_rank", "decoder_num_layers"),
    ("t5.recomputed_layers", "t5-220m", ["RECOMPUTE=5"], "runtime.recompute_num_layers", "recompute_num_layers"),
    ("state_space.state_space_shapes", "gpt-345m", [*MAMBA, "model.mamba_head_dim=60"],
     "model.mamba_head_dim", "mamba_head_dim"),
    ("state_space.state_space_shapes", "gpt-345m", [*MAMBA, "GROUPS=6"], "model.mamba_num_groups", "mamba_num_groups"),
    ("state_space.state_space_shapes", "gpt-345m", [*MAMBA, "TP=8", "GPUS=8"],
     "parallelism.tensor_model_parallel_size", "TP mamba_num_groups"),
    ("state_space.state_space_heads_by_context_parallel", "gpt-345m",
     [*MAMBA, "model.mamba_num_heads=6", "GROUPS=2", "CP=4", "GPUS=null"], "parallelism.context_parallel_size",
     "CP mamba_num_heads"),
    ("state_space.state_space_heads_by_context_parallel", "gpt-345m",
     [*MAMBA, "model.mamba_num_heads=24", "GROUPS=6", "CP=4", "GPUS=null"], "parallelism.context_parallel_size",
     "CP mamba_num_groups"),
    ("vision.patches", "llama3-8b", ["SEES", "model.vision.image_size=339"], "model.vision.patch_size", "image_size"),
    ("pooled_images.pooled_tokens", "llama3-8b", ["SEES", "model.vision.type=gemma3", "model.vision.pooled_tokens=256"],
     "model.vision.pooled_tokens", "pooled_tokens"),
    ("native_resolution.native_sizes", "llama3-8b", ["NATIVE", "model.vision.image_size=350"],
     "model.vision.image_size", "image_size"),
    ("native_resolution.native_sizes", "llama3-8b",
     ["NATIVE", "model.vision.native_resolution.attention_window_size=100"],
     "model.vision.native_resolution.attention_window_size", "attention_window_size"),
    ("vision.encoder_shapes", "llama3-8b", ["SEES", "model.vision.num_attention_heads=15"],
     "model.vision.num_attention_heads", "num_attention_heads hidden_size"),
    ("vision.encoder_shapes", "llama3-8b", ["SEES", "TP=3", "GPUS=null"],
     "parallelism.tensor_model_parallel_size", "TP"),
    ("schedule.global_batch", "mixtral-8x7b", ["GBS=100"], "batch.global_batch_size", "global_batch_size"),
    ("schedule.global_batch", "gpt-1.7b", ["batch.micro_batch_size=5"], "batch.global_batch_size", "micro_batch_size"),
    ("schedule.rampup_sizes", "llama3-8b", [f"{RAMP}.increment=60"], "batch.rampup_batch_size.increment", "increment"),
    ("schedule.rampup_passes", "llama3-8b", [f"{RAMP}.increment=7"], "batch.rampup_batch_size.increment", "increment"),
    ("schedule.rampup_passes", "llama3-8b", ["MICRO=3"], "batch.rampup_batch_size.increment", "micro_batch_size"),
    ("quantization.fp8_matrix_sizes", "gpt-1.7b", [*FP8, "HIDDEN=2056", "HEADS=8"], "model.hidden_size", "hidden_size"),
    ("quantization.fp8_matrix_sizes", "gpt-1.7b", [*FP8, "FFN=9200", "TP=2", "GPUS=2"],
     "model.ffn_hidden_size", "ffn_hidden_size TP"),
    ("quantization.fp8_matrix_sizes", "gpt-1.7b",
     ["precision.fp8={recipe: blockwise}", "TP=2", "SP", "GPUS=2", "HIDDEN=2080"],
     "model.hidden_size", "hidden_size"),
    ("quantization.fp4_matrix_sizes", "gpt-1.7b", [*FP4, "FFN=9248", "TP=2", "GPUS=2"],
     "model.ffn_hidden_size", "ffn_hidden_size TP"),
    ("quantization.fp8_tokens", "gpt-1.7b", [*FP8, "LENGTH=1001"], "model.seq_length", "seq_length micro_batch_size"),
    ("quantization.fp4_tokens", "gpt-1.7b", [*FP4, "LENGTH=1002"], "model.seq_length", "seq_length micro_batch_size"),
    ("operation.exported_checkpoints", "gpt-345m", ["checkpoint={save_interval: 100, export: {interval: 250}}"],
     "checkpoint.export.interval", "interval save_interval"),
]  # fmt: skip
WRITTEN = {
    **SHORT,
    "GBS": "batch.global_batch_size",
    "MICRO": "batch.micro_batch_size",
    "GPUS": "launch.gpus_per_node",
    "KV": "model.num_query_groups",
    "LATENT": "model.kv_lora_rank",
    "ROTATED": "model.qk_pos_emb_head_dim",
    "HEADS": "model.num_attention_heads",
    "HIDDEN": "model.hidden_size",
    "LENGTH": "model.seq_length",
    "FFN": "model.ffn_hidden_size",
    "MOE": "model.moe_ffn_hidden_size",
    "SHARED": "model.moe_shared_expert_intermediate_size",
    "PERCENT": "model.rotary_percent",
    "LAST": "parallelism.num_layers_in_last_pipeline_stage",
    "SPLIT": "parallelism.pipeline_model_parallel_split_rank",
    "DECODER": "model.decoder_seq_length",
    "DECODERS": "model.decoder_num_layers",
    "GROUPS": "model.mamba_num_groups",
    "BUCKETS": "model.relative_attention_num_buckets",
    "RECOMPUTE": "runtime={recompute_granularity: full, recompute_method: uniform}\nruntime.recompute_num_layers",
    "RELATIVE": "model.position_embedding_type=relative",
    "SP": "parallelism.sequence_parallel=true",
    "SEES": "model.vision={}\ndata={random_tokens: true}",
    "NATIVE": "model.vision={type: qwen2.5, native_resolution: {full_attention_layers: [7]}}\n"
    "model.mrope_section=[16,24,24]\ndata={random_tokens: true}",
}


def overrides_of(written: list[str]) -> list[str]:
    """`TP=2` in full."""
    parts = (each.partition("=") for each in written)
    return [line for name, *value in parts for line in (WRITTEN.get(name, name) + "".join(value)).splitlines()]


def kind(problem: Problem) -> tuple[frozenset[str], str | None]:
    """A problem whatever its numbers are, and wherever it is placed."""
    return frozenset(problem.paths), problem.code


def offers_of(problem: Problem) -> list[tuple[str, str, str]]:
    """(name, value, what follows) of each value that a hint offers."""
    found = OFFERED.findall(problem.hint or "")
    return [(name, value.rstrip("."), rest) for name, *values, rest in found for value in values if value]


@pytest.mark.parametrize(("rule", "job", "written", "field", "names"), CASES)
def test_offered_values_are_taken(rule: str, job: str, written: list[str], field: str, names: str) -> None:
    overrides = overrides_of(written)
    before = problems_of(lambda: load_job([SHIPPED[job]], overrides))
    code = rule.partition(".")[2]
    asked = [problem for problem in before if (problem.code, problem.paths[0]) == (code, field)]
    assert asked, before
    for problem in asked:
        offers = offers_of(problem)
        assert set(names.split()) <= {name for name, _, _ in offers}, problem.hint
        for name, value, rest in offers:
            changes = [*overrides, f"{path_of(name, problem)}={value}"]
            after = problems_of(partial(load_job, [SHIPPED[job]], changes))
            check_taken(problem, before, after, rest)


def check_taken(answered: Problem, before: list[Problem], after: list[Problem], rest: str) -> None:
    """The value ended the problem and brought no other, but of the fields that were named with it."""
    kinds = {kind(problem) for problem in after}
    assert kind(answered) not in kinds
    needed = {PATHS[name] for name in re.findall(r"\w+", rest.partition(", with another ")[2]) if name != "and"}
    new = kinds - {kind(problem) for problem in before}
    assert all(paths & needed for paths, _ in new)


def path_of(name: str, problem: Problem) -> str:
    """Where a name stands: among the fields of the problem, or else in the schema."""
    return next((path for path in problem.paths if path.endswith(f".{name}")), PATHS[name])


def test_every_rule_that_offers_is_here() -> None:
    offering = {f"{room_of(rule)}.{rule.__name__}" for rule in rules.RULES if may_offer(rule)}
    assert offering == {rule for rule, *_ in CASES}


def room_of(rule: Rule) -> str:
    """The file of a rule, or the folder of its block."""
    return rule.__module__.removesuffix(".rules").rpartition(".")[2]


def may_offer(rule: Rule) -> bool:
    """Whether the rule, or a function of its file or of all blocks that it calls, makes refusals with offers."""
    functions: list[Any] = [rule, *(vars(inspect.getmodule(rule)).get(name) for name in rule.__code__.co_names)]
    files = {rule.__module__, of_several_blocks.__name__}
    own = [each for each in functions if inspect.isfunction(each) and each.__module__ in files]
    return any("Refusal(" in inspect.getsource(each) for each in own)


@cache
def shipped(name: str) -> Any:
    return load_job([SHIPPED[name]]).job


def changed(section: Any, changes: dict[str, Any]) -> Any:
    for path, value in changes.items():
        name, _, rest = path.partition(".")
        inner = changed(getattr(section, name), {rest: value}) if rest else value
        section = section.model_copy(update={name: inner})
    return section


CHANGES: dict[str, list[Any]] = {
    **{path: [2, 3, 4, 5] for path in SHORT.values()},
    "parallelism.sequence_parallel": [True],
    "parallelism.num_layers_in_first_pipeline_stage": [1, 5],
    "model.num_layers": [12, 23, 25],
    "model.hidden_size": [1000, 1536],
    "model.num_attention_heads": [6, 20],
    "model.num_query_groups": [3, 4],
    "model.ffn_hidden_size": [1001, 4096],
    "model.seq_length": [1000, 1001, 1024],
    "batch.micro_batch_size": [2, 3, 5],
    "batch.global_batch_size": [30, 96, 100],
    "launch.nodes": [2, 3],
    "launch.gpus_per_node": [1, 4, 6, 8],
}


@settings(max_examples=examples(100), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(sorted(SHIPPED)),
    st.lists(st.sampled_from(sorted(CHANGES)), min_size=1, max_size=3, unique=True).flatmap(
        lambda paths: st.fixed_dictionaries({path: st.sampled_from(CHANGES[path]) for path in paths})
    ),
)
def test_offered_values_are_taken_in_any_job(name: str, changes: dict[str, Any]) -> None:
    job = changed(shipped(name), changes)
    before = rules.check(job)
    for problem in before:
        for named, value, rest in offers_of(problem):
            number = float(value) if "." in value else int(value)
            after = rules.check(changed(job, {path_of(named, problem): number}))
            check_taken(problem, before, after, rest)


def test_refusals_differ_in_their_numbers_as_in_their_words() -> None:
    """By its numbers a refusal is known again in another job."""
    names, sizes = ("gpt-345m", "mixtral-8x7b", "t5-220m"), (3, 5)
    jobs = [shipped(name) for name in names]
    for path in SHORT.values():
        jobs += [changed(job, {path: size}) for job in jobs for size in sizes]
    refused = {each for job in jobs for each in rules.refusals(job) if isinstance(each, Refusal)}
    told = {(each.paths, each.code, each.numbers, each.message) for each in refused}
    by_numbers, by_words = {each[:3] for each in told}, {(*each[:2], each[3]) for each in told}
    assert len(told) == len(by_numbers) == len(by_words) > 100


def test_values_that_need_others_too() -> None:
    """A number of GPUs that fits the layout does not fit the batch: what has to change with it is named."""
    (problem,) = problems_of(lambda: load_job([SHIPPED["gpt-345m"]], overrides_of(["TP=2", "MICRO=5"])))
    assert (problem.hint or "").startswith(
        "nearest gpus_per_node: 2, as in --set launch.gpus_per_node=2, with another global_batch_size\n"
    )


def test_a_hint_is_the_same_beside_a_field_that_is_not_known() -> None:
    known, partly = (
        problems_of(partial(load_job, [SHIPPED["gpt-345m"]], overrides_of(["PP=5", *more])))
        for more in ([], ["optimizer.lr=much"])
    )
    assert {problem.hint for problem in known} < {problem.hint for problem in partly}


def test_hints_are_not_looked_for_where_only_legality_is_asked_about() -> None:
    """A search for layouts asks for thousands of jobs."""
    found = [
        each for each in rules.refusals(changed(shipped("gpt-345m"), {SHORT["PP"]: 5})) if isinstance(each, Refusal)
    ]
    assert found
    assert {problem.hint for problem in found} == {None}


def test_values_to_try_begin_with_the_nearest() -> None:
    offer = divisors_of(24, "x", 5)
    assert (list(offer.below), list(offer.above)) == ([4, 3, 2, 1], [6, 8, 12, 24])
    offer = multiples_of(64, "x", 200)
    assert (offer.below[:3], offer.above[:2]) == (range(192, 0, -64), range(256, 384, 64))
    offer = multiples_of(4, "x", 9, less=2)
    assert (list(offer.below), list(offer.above[:2])) == ([6, 2], [10, 14])
    assert list(multiples_of(64, "x", 64).above[:1]) == [128]
    assert list(multiples_of(64, "x", 64).below) == []


@given(st.integers(min_value=-5, max_value=10**6))
def test_divisors(number: int) -> None:
    found = divisors(number)
    assert found == sorted(set(found))
    assert all(number % each == 0 for each in found)
    assert (1 in found) == (number in found) == (number > 0)
