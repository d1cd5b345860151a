"""By what each cell of the matrix is held: the cells, and tests, that run what may go wrong in it.

What a layout splits meets what a family has of its own where it touches it. Each such pair is run, at whatever other
splits and in whatever other family; so is each layout whole, and each family whole at tensor, sequence and pipeline
parallelism and in bf16. Where a layout does not touch a part, the part says why, and the layout's own run is enough.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

from support.matrix import CELLS, IN_TESTS, LAYOUTS, Cell
from support.training import layout

TP, SP, PP = "tensor_model_parallel_size", "sequence_parallel=True", "pipeline_model_parallel_size"
VP, UNEVEN = "virtual_pipeline_model_parallel_size", "num_layers_in_first_pipeline_stage"
LETTERS = "pipeline_model_parallel_layout"
DP, EP, CP = "data_parallel_size", "expert_model_parallel_size", "context_parallel_size"
PLAIN, LATE_SUMS, LATE_WEIGHTS = (
    *("use_distributed_optimizer=False", "overlap_grad_reduce=False"),
    "overlap_param_gather=False",
)
FSDP, GROUPS = "fsdp=full", "fsdp"


class Part(NamedTuple):
    """Fields by which networks differ in one respect, and what a layout does that touches it."""

    reason: str
    """Why nothing else does, so that a layout that does nothing of it is held by its own run."""
    touched_by: tuple[str, ...]
    fields: tuple[str, ...]
    """Those of `model` by their names, with what is below them; one value alone after "="."""


PARTS = {
    "sizes": Part(
        "another number in the same code, whose divisors are checked before anything starts",
        (),
        (
            *("num_layers", "seq_length", "decoder_seq_length", "vocab_size", "ffn_hidden_size", "kv_channels"),
            *("num_query_groups", "norm_epsilon", "init_method_std", "rotary_base"),
        ),
    ),
    "tokens": Part(
        "each token is computed by itself, in a layer or at an end that a rank of these layouts has whole",
        (),
        (
            *("activation", "activation_func_clamp_value", "glu_linear_offset", "add_bias_linear", "add_output_bias"),
            *("normalization", "apply_layernorm_1p", "norm_bias", "transformer_block_type", "parallel_residual"),
            *("qk_layernorm", "qk_layernorm_scope", "qk_l2_norm", "embedding_norm", "embedding_multiplier"),
            *("residual_multiplier", "logit_scale", "final_logit_softcapping", "scale_embeddings"),
            *("scale_decoder_outputs", "untie_embeddings_and_output_weights", "bert_binary_head", "bert_head_bias"),
        ),
    ),
    "tokens of a sequence": Part(
        "tokens of one sequence meet in a layer, which has all of them unless ranks share a sequence",
        (CP,),
        (
            *("kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_scaling"),
            *("attention_logit_softcapping", "attention_output_gate", "softmax_scale", "softmax_type"),
            *("sliding_window", "attention_chunk_size", "attention_temperature_scale", "rotary_percent"),
            *("attention_temperature_interval", "position_embedding_type", "position_embedding_offset"),
            *("relative_attention_max_distance", "linear_attention_freq", "linear_num_key_heads"),
            *("linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
            *("mamba_state_dim", "mamba_head_dim", "mamba_num_groups", "mtp_num_layers"),
        ),
    ),
    "layers that differ": Part(
        "a layer is of the kind of its number in the network, by which a GPT's weights are compared at all stages",
        (VP,),
        (
            *("window_attn_skip_freq", "rotary_base_local", "no_rope_freq", "linear_attention_freq"),
            *("moe_layer_freq", "hybrid_override_pattern", "mtp_num_layers"),
        ),
    ),
    "networks": Part(
        "a network of its own builds its ends and finds its layers; its gradients lie in the buffers of any network",
        (VP, UNEVEN, LETTERS, DP, FSDP),
        ("architecture",),
    ),
    "encoders": Part("images are whole on a rank, and the encoder is on the first stage alone", (), ("vision",)),
    "images": Part(
        "the first stage puts images among the tokens; later ones get hidden states, and where images lie",
        (LETTERS,),
        ("mrope_section", "vision.images_per_sequence", "vision.pooled_tokens"),
    ),
    "means": Part(
        "losses are averaged over what a micro-batch has, of which replicas and parts of a sequence have different "
        "numbers; all else is summed whatever it is",
        (DP, CP),
        (
            *("mtp_loss_scaling_factor", "mtp_num_layers", "moe_aux_loss_coeff"),
            *("moe_router_load_balancing_type", "moe_router_enable_expert_bias", "vision.images_per_sequence"),
            *("vision.native_resolution", "task"),
        ),
    ),
    "experts": Part(
        "tokens are sent to experts, which lie on other ranks only where these are spread",
        (EP,),
        (
            *("num_experts", "moe_ffn_hidden_size", "moe_shared_expert_intermediate_size", "moe_shared_expert_gate"),
            *("moe_apply_probs_on_input", "moe_aux_loss_coeff", "moe_router_enable_expert_bias"),
            *("moe_router_group_score_topk", "moe_router_group_topk", "moe_router_load_balancing_type"),
            *("moe_router_num_groups", "moe_router_pre_softmax", "moe_router_score_function", "moe_router_topk"),
            *("moe_router_topk_scaling_factor", "activation_func_clamp_value", "glu_linear_offset"),
        ),
    ),
    "buffers": Part(
        "what has buffers, units or an optimizer of its own is summed, gathered and updated by other code",
        (DP, PLAIN, LATE_SUMS, LATE_WEIGHTS, FSDP),
        ("num_experts", "optimizer.name"),
    ),
    "adapters": Part(
        "they alone are trained: their gradients lie in the buffers of any weights, and each is split as its matrix, "
        "which is seen where a family is run whole",
        (DP, CP),
        ("lora",),
    ),
    "sums of an optimizer": Part(
        "it sees whole gradients, which parts of a sequence are summed to first", (CP,), ("optimizer.name",)
    ),
    "weights of no layer": Part("units are layers, and all else", (FSDP,), ("mtp_num_layers",)),
}
"""What a family has of its own: each field in which its job differs from a GPT's is in one part, or in several."""
WHOLE = (TP, SP, PP)
"""At these each family is run itself: they split every matrix, what is between them, and the stack of layers."""
LIKE_IN_BF16 = {VP: PP, UNEVEN: PP, LETTERS: PP, LATE_SUMS: DP, LATE_WEIGHTS: DP, GROUPS: FSDP}
"""What sends the same tensors in the same precision as something else does, between other layers or at another time."""
BASES = ("gpt", "experts")
"""Families of which one is run at each layout: the second, where it takes experts."""


def _named(field: str, value: Any) -> str:
    """A field with its value where this is one of several kinds, and not a number or a list of them."""
    return f"{field}={value}" if isinstance(value, bool | str) and field != LETTERS else field


@cache
def does(name: str) -> frozenset[str]:
    """What a layout does, of what one process does not."""
    alone = layout()
    return frozenset(
        _named(field, value)
        for field, value in LAYOUTS[name].items()
        if value not in (None, False, alone.get(field)) or field.startswith(("overlap", "use"))
    )


def _flat(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


@cache
def _settings(family: str) -> dict[str, Any]:
    job = Cell(family, "plain-optimizer", "fp32").training._replace(layout=None).job("sentences").model_dump()
    sections = {section: job[section] or {} for section in ("optimizer", "task")}
    return dict(_flat({**job["model"], **sections}))


@cache
def has(family: str) -> frozenset[str]:
    """In what a family's job differs from a GPT's."""
    its, usual = _settings(family), _settings("gpt")
    return frozenset(_named(field, its[field]) for field in its if its[field] != usual.get(field))


@cache
def parts_of(trait: str) -> list[str]:
    """The parts that a field is in."""
    return [name for name, part in PARTS.items() if any(_is_in(trait, field) for field in part.fields)]


def _is_in(trait: str, field: str) -> bool:
    return trait == field or trait.startswith((f"{field}.", f"{field}="))


class Run(NamedTuple):
    """A cell that is run, and the test."""

    cell: Cell
    test: str


RUNS = (
    *(Run(cell, f"tests/distributed/test_matrix.py::test_cell[{cell.name}]") for cell in CELLS),
    *(
        Run(Cell(*cell), f"{test}[{name}]" if name else test)
        for test, cells in IN_TESTS.items()
        for name, cell in cells.items()
    ),
)


def _test(runs: Collection[Run], dtype: str, action: str, family: str = "", trait: str = "") -> str | None:
    """One that runs an action in a precision: of this family, or of any that has a trait."""
    for cell, test in runs:
        fits = (cell.dtype, family or cell.family) == (dtype, cell.family) and action in does(cell.layout)
        if fits and (not trait or trait in has(cell.family)):
            return test
    return None


def holders(cell: Cell, runs: Collection[Run] = RUNS) -> dict[str, str | None]:
    """What may go wrong in a cell, and the test of these that would show it; None where there is none."""
    done = does(cell.layout)
    whole = (run.test for run in runs if run.cell in [Cell(base, cell.layout, "fp32") for base in BASES])
    found = {f"{cell.layout} whole": next(whole, None)}
    for action in done.intersection(WHOLE):
        found[f"{cell.family} whole at {action}"] = _test(runs, "fp32", action, cell.family)
    for trait in has(cell.family):
        for part in parts_of(trait):
            for action in done.intersection(PARTS[part].touched_by):
                found[f"{trait} ({part}) at {action}"] = _test(runs, "fp32", action, trait=trait)
    if cell.dtype == "bf16":
        found[f"{cell.family} whole in bf16"] = _test(runs, "bf16", TP, cell.family)
        for action in done:
            found[f"{action} in bf16"] = _test(runs, "bf16", LIKE_IN_BF16.get(action, action))
    return found
