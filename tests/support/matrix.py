"""One table of families, layouts and precisions: every cell trains as one process does, or is refused with a reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from orchestrator.spec.job import JobSpec
from support.training import layout, tiny_job

STEPS = 2
_MODEL: dict[str, Any] = {"num_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "seq_length": 32}
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
    "latent": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "qk_layernorm": True, "q_lora_rank": 12},
        **{"kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 6, "add_bias_linear": False},
        "rope_scaling": {
            **{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            **{"mscale": 1.0, "mscale_all_dim": 0.5},
        },
    },
    "deepseek": {
        **{
            **_MODEL,
            "activation": "swiglu",
            "normalization": "RMSNorm",
            "qk_layernorm": True,
            "add_bias_linear": False,
        },
        **{"kv_lora_rank": 16, "qk_head_dim": 8, "qk_pos_emb_head_dim": 4, "v_head_dim": 6, "num_experts": 4},
        **{"moe_ffn_hidden_size": 24, "moe_shared_expert_intermediate_size": 40, "moe_aux_loss_coeff": 0.05},
        **{"moe_router_pre_softmax": True, "mtp_num_layers": 1, "untie_embeddings_and_output_weights": True},
    },
    "mtp": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
        **{"mtp_num_layers": 2, "mtp_loss_scaling_factor": 0.5},
    },
    "delta": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2, "qk_layernorm": True},
        **{"apply_layernorm_1p": True, "add_bias_linear": False, "rotary_percent": 0.5, "attention_output_gate": True},
        **{"linear_attention_freq": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4},
        **{"linear_key_head_dim": 8, "linear_value_head_dim": 12, "num_experts": 4, "moe_ffn_hidden_size": 24},
        **{"moe_shared_expert_intermediate_size": 40, "moe_shared_expert_gate": True, "moe_aux_loss_coeff": 0.05},
        "mtp_num_layers": 1,
    },
    "vision": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
        "vision": {
            **{"image_size": 8, "patch_size": 4, "num_layers": 2, "hidden_size": 16, "num_attention_heads": 2},
            "images_per_sequence": 2,
        },
    },
    "native": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
        "mrope_section": [2, 1, 1],
        "vision": {
            **{"type": "qwen2.5", "image_size": 24, "patch_size": 4, "num_layers": 2, "hidden_size": 16},
            **{"num_attention_heads": 2, "images_per_sequence": 2},
            "native_resolution": {"smallest_image_size": 8, "attention_window_size": 16, "full_attention_layers": [1]},
        },
    },
    "experts": {
        **{**_MODEL, "add_bias_linear": False, "num_experts": 4, "moe_ffn_hidden_size": 48, "moe_aux_loss_coeff": 0.05},
        "moe_shared_expert_intermediate_size": 40,
    },
    "routing": {
        **{**_MODEL, "add_bias_linear": False, "num_experts": 8, "moe_ffn_hidden_size": 48, "ffn_hidden_size": 64},
        **{"moe_shared_expert_intermediate_size": 40, "moe_shared_expert_gate": True, "activation": "swiglu"},
        **{"moe_router_score_function": "sigmoid", "moe_router_topk_scaling_factor": 2.5, "moe_router_num_groups": 4},
        **{"moe_router_group_topk": 2, "moe_router_group_score_topk": 2, "moe_router_enable_expert_bias": True},
        **{"moe_router_load_balancing_type": "seq_aux_loss", "moe_aux_loss_coeff": 0.01},
    },
    "gpt-oss": {
        **{**_MODEL, "activation": "quick_geglu", "normalization": "RMSNorm", "num_query_groups": 2, "num_experts": 4},
        **{"moe_ffn_hidden_size": 48, "moe_aux_loss_coeff": 0.05, "sliding_window": 8, "window_attn_skip_freq": 2},
        **{"softmax_type": "learnable", "activation_func_clamp_value": 0.2, "glu_linear_offset": 1.0},
        **{"untie_embeddings_and_output_weights": True, "init_method_std": 0.1},
        "rope_scaling": {
            **{"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "truncate": False},
        },
    },
    "olmo2": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
        **{"add_bias_linear": False, "transformer_block_type": "reordered_ln"},
        **{"qk_layernorm": True, "qk_layernorm_scope": "projection"},
    },
    "gemma3": {
        **{**_MODEL, "activation": "geglu", "normalization": "RMSNorm", "num_query_groups": 2, "qk_layernorm": True},
        **{"add_bias_linear": False, "transformer_block_type": "sandwich_ln", "apply_layernorm_1p": True},
        **{"scale_embeddings": True, "softmax_scale": 0.25, "sliding_window": 8, "window_attn_skip_freq": 2},
        **{"rotary_base_local": 100, "rope_scaling": {"type": "linear", "factor": 8.0}},
    },
    "gemma3-images": {
        **{**_MODEL, "activation": "geglu", "normalization": "RMSNorm", "num_query_groups": 2, "qk_layernorm": True},
        **{"add_bias_linear": False, "transformer_block_type": "sandwich_ln", "apply_layernorm_1p": True},
        **{"scale_embeddings": True, "sliding_window": 6, "window_attn_skip_freq": 2, "rotary_base_local": 100},
        "vision": {
            **{"type": "gemma3", "image_size": 16, "patch_size": 4, "pooled_tokens": 4, "num_layers": 2},
            **{"hidden_size": 16, "num_attention_heads": 2, "activation": "gelu_tanh", "images_per_sequence": 2},
        },
    },
    "gemma2": {
        **{
            **_MODEL,
            "activation": "geglu",
            "normalization": "RMSNorm",
            "num_query_groups": 2,
            "scale_embeddings": True,
        },
        **{"add_bias_linear": False, "apply_layernorm_1p": True, "sliding_window": 12, "window_attn_skip_freq": 2},
        **{"attention_logit_softcapping": 0.5, "final_logit_softcapping": 2.0, "init_method_std": 0.1},
    },
    "granite": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2, "softmax_scale": 0.1},
        **{"embedding_multiplier": 3.0, "residual_multiplier": 0.3, "logit_scale": 0.5, "add_bias_linear": False},
    },
    "neox": {**_MODEL, "parallel_residual": "two_norms", "rotary_percent": 0.25, "norm_bias": False},
    "cohere": {
        **{**_MODEL, "parallel_residual": "one_norm", "num_query_groups": 1, "add_bias_linear": False},
        "apply_layernorm_1p": True,
    },
    "llama4": {
        **{**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2, "qk_l2_norm": True},
        **{"add_bias_linear": False, "no_rope_freq": 2, "attention_temperature_scale": 0.7},
        **{"attention_temperature_interval": 3, "attention_chunk_size": 12, "num_experts": 4, "moe_layer_freq": 2},
        **{"moe_ffn_hidden_size": 48, "moe_shared_expert_intermediate_size": 48, "moe_router_topk": 1},
        **{"moe_router_score_function": "sigmoid", "moe_apply_probs_on_input": True, "moe_aux_loss_coeff": 0.05},
    },
    "bert": {**_MODEL, "architecture": "bert", "position_embedding_type": "learned_absolute", "vocab_size": 320},
    "post-ln": {
        **{**_MODEL, "architecture": "bert", "position_embedding_type": "learned_absolute", "vocab_size": 320},
        **{"transformer_block_type": "post_ln", "norm_epsilon": 1e-12, "position_embedding_offset": 2},
    },
    "modernbert": {
        **{**_MODEL, "architecture": "bert", "vocab_size": 320, "bert_binary_head": False, "bert_head_bias": False},
        **{"activation": "geglu_exact", "norm_bias": False, "add_bias_linear": False, "embedding_norm": True},
        **{"sliding_window": 5, "window_attn_skip_freq": 2, "rotary_base": 1000, "rotary_base_local": 100},
        **{"init_method_std": 0.1},
    },
    "muon": {**_MODEL, "activation": "swiglu", "normalization": "RMSNorm", "num_query_groups": 2},
    "race": {**_MODEL, "architecture": "bert", "position_embedding_type": "learned_absolute", "vocab_size": 320},
    "hybrid": {
        **{**_MODEL, "architecture": "mamba", "num_layers": 4, "hybrid_override_pattern": "M*-M", "seq_length": 16},
        **{"mamba_state_dim": 8, "mamba_head_dim": 8, "mamba_num_groups": 2, "normalization": "RMSNorm"},
        **{"activation": "squared_relu", "add_bias_linear": False},
    },
    "t5": {
        **{**_MODEL, "architecture": "t5", "decoder_seq_length": 16, "vocab_size": 320},
        **{"position_embedding_type": "relative", "relative_attention_max_distance": 32, "activation": "relu"},
        **{"kv_channels": 16, "softmax_scale": 1.0, "scale_decoder_outputs": True, "add_output_bias": True},
    },
}
for _name in ("latent", "delta"):
    _plain = {field: value for field, value in FAMILIES[_name].items() if field != "mtp_num_layers"}
    FAMILIES[f"{_name}-adapters"] = {**_plain, "lora": {"rank": 3, "alpha": 6.0}}
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain-optimizer": layout(use_distributed_optimizer=False),
    "tp2": layout(tp=2),
    "tp2-sp": layout(tp=2, sequence_parallel=True),
    "pp2": layout(pp=2),
    "pp2-interleaved": layout(pp=2, vp=2),
    "pp2-uneven": layout(pp=2, num_layers_in_first_pipeline_stage=1),
    "pp2-embedding-alone": layout(pp=2, pipeline_model_parallel_layout="E|ttttL"),
    "dp2": layout(dp=2),
    "dp2-plain-optimizer": layout(dp=2, use_distributed_optimizer=False),
    "dp2-no-overlap": layout(dp=2, overlap_grad_reduce=False, overlap_param_gather=False),
    "dp2-fsdp": layout(dp=2, fsdp="full"),
    "dp4-fsdp2": layout(dp=4, fsdp=2),
    "ep2": layout(dp=2, expert_model_parallel_size=2),
    "cp2": layout(context_parallel_size=2),
    "tp2-pp2-sp": layout(tp=2, pp=2, sequence_parallel=True),
    "tp2-pp2-interleaved-sp": layout(tp=2, pp=2, vp=2, sequence_parallel=True),
}
NUM_LAYERS = {"pp2-interleaved": 4, "pp2-uneven": 4, "pp2-embedding-alone": 4, "tp2-pp2-interleaved-sp": 4}
"""Of layouts whose stages need more than one layer each; 2 elsewhere."""
TOLERANCE = {"fp32": 1e-5, "bf16": 5e-3}
"""Largest relative difference of a loss from one process in fp32; gradient norms may differ by ten times as much."""
SAME_IN_ANY_MICRO_BATCHES = ("gpt", "latent", "mtp", "muon", "olmo2", "gemma3", "granite", "neox")
"""Families that average over tokens, of which each micro-batch has as many."""
_REFUSALS: tuple[tuple[tuple[str, ...], Callable[[dict[str, Any]], bool], str], ...] = (
    (("ep2",), lambda model: "num_experts" not in model, "num_experts"),
    (("tp2",), lambda model: "num_experts" in model, "sequence_parallel"),
    (("cp2",), lambda model: "vision" in model, "images"),
    (("cp2",), lambda model: "architecture" in model, "cuts"),
    (("cp2",), lambda model: "attention_chunk_size" in model, "chunks"),
    (("pp2-embedding-alone",), lambda model: "mtp_num_layers" in model, "letter"),
    (("pp2-interleaved", "tp2-pp2-interleaved-sp"), lambda model: model.get("architecture") == "t5", "virtual"),
    (("pp2-uneven", "pp2-embedding-alone"), lambda model: model.get("architecture") == "t5", "stage"),
    (("dp2-fsdp", "dp4-fsdp2"), lambda model: model.get("architecture") == "t5", "decoder"),
    (("dp2-fsdp", "dp4-fsdp2"), lambda model: "vision" in model, "images"),
    (("dp2-fsdp", "dp4-fsdp2"), lambda model: "lora" in model, "not trained"),
    (("pp2-embedding-alone",), lambda model: "lora" in model, "nothing to train"),
)
REFUSED = {
    (family, name): word
    for names, has, word in _REFUSALS
    for name in names
    for family, model in FAMILIES.items()
    if has(model)
}
"""Cells that no job may have, by family and layout, and a word of the reason that a person is given."""
ONLY = {
    "latent": ("tp2", "cp2", "tp2-pp2-sp"),
    "deepseek": ("ep2", "tp2-pp2-sp"),
    "mtp": ("dp2", "cp2", "tp2-pp2-interleaved-sp"),
    "delta": ("ep2", "cp2", "tp2-pp2-interleaved-sp"),
    "latent-adapters": ("tp2", "cp2", "tp2-pp2-sp"),
    "delta-adapters": ("ep2", "cp2", "tp2-pp2-interleaved-sp"),
    "vision": ("tp2", "dp2", "tp2-pp2-interleaved-sp"),
    "routing": ("dp2", "ep2", "cp2", "tp2-pp2-interleaved-sp"),
    "gpt-oss": ("ep2", "cp2", "tp2-pp2-sp"),
    "olmo2": ("tp2", "tp2-pp2-sp"),
    "gemma2": ("cp2", "tp2-pp2-sp"),
    "gemma3": ("cp2", "tp2-pp2-interleaved-sp"),
    "gemma3-images": ("pp2-embedding-alone", "tp2-pp2-interleaved-sp"),
    "native": ("pp2-embedding-alone", "dp2", "tp2-pp2-sp"),
    "granite": ("tp2-pp2-sp",),
    "neox": ("tp2", "tp2-pp2-sp"),
    "cohere": ("tp2-pp2-sp",),
    "llama4": ("tp2-sp", "pp2-interleaved", "ep2"),
    "post-ln": ("tp2-pp2-sp",),
    "modernbert": ("tp2-sp", "pp2-interleaved", "pp2-embedding-alone"),
    "muon": (*("plain-optimizer", "dp2", "dp2-plain-optimizer", "dp2-no-overlap", "cp2", "tp2-pp2-interleaved-sp"),),
    "race": ("dp2", "tp2-pp2-interleaved-sp"),
    "hybrid": (),
}
"""The families of the table in docs/how-to/parallelism.md have all layouts, so that each is proved by itself. Of others
those run that hold what a family has of its own: `matrix_cover.py` says what must be held, and by what each cell that
is not here is.
"""
BF16_LAYOUTS = ("tp2-sp", "pp2", "dp2")
"""bf16 computes what fp32 computes, in fewer digits: these show that gradients are reduced and weights kept in fp32."""
MORE_IN_BF16 = {"gpt": ("plain-optimizer", "cp2"), "experts": ("ep2",)}
"""What else has weights in fp32, or sums in another precision."""
OF_OTHERS_IN_BF16 = ("tp2-sp",)
"""Which weights of a family are kept so is seen at any layout, and here sums over tensor-parallel ranks as well."""
IN_TESTS = {
    "tests/distributed/test_mamba.py::test_layouts_agree": {
        name: ("hybrid", name, "fp32")
        for name in ("tp2-sp", "pp2-interleaved", "pp2-uneven", "pp2-embedding-alone", "dp2-fsdp")
    },
    "tests/distributed/test_mamba.py::test_bf16": {"": ("hybrid", "tp2-sp", "bf16")},
    "tests/distributed/test_fully_sharded.py::test_losses_and_norms_are_those_of_whole_weights": {
        "evaluated": ("gpt", "dp2-fsdp", "fp32"),
        "bf16": ("gpt", "dp2-fsdp", "bf16"),
        "groups of replicas": ("gpt", "dp4-fsdp2", "fp32"),
        "bert": ("bert", "dp2-fsdp", "fp32"),
        "muon": ("muon", "dp2-fsdp", "fp32"),
        "further tokens": ("mtp", "dp2-fsdp", "fp32"),
    },
}
"""Cells that other tests run, by the test and its parameter: of networks that need kernels' stand-ins, and those where
replicas that share out weights are compared with ones that have them whole.
"""
SHARED_OUT = {"gpt": ("dp2-fsdp", "dp4-fsdp2"), "bert": ("dp2-fsdp", "dp4-fsdp2")}
"""Layouts of the families that have all, which `IN_TESTS` holds."""


class Training(NamedTuple):
    """What a job of the matrix is made of; `layout` is None for one process, which others are compared with."""

    family: str
    layout: str | None
    dtype: str
    num_layers: int
    micro_batch_size: int

    def job(self, sentences: str) -> JobSpec:
        """The job, of this data set of sentences (`matrix_job`)."""
        degrees = {} if self.layout is None else LAYOUTS[self.layout]
        return matrix_job(self.family, self.dtype, sentences, degrees, self.num_layers, self.micro_batch_size)


@dataclass(frozen=True)
class Cell:
    """One family at one layout in one precision."""

    family: str
    layout: str
    dtype: str

    @property
    def num_layers(self) -> int:
        """One process has as many for the comparison."""
        return max(NUM_LAYERS.get(self.layout, 2), int(FAMILIES[self.family]["num_layers"]))

    @property
    def micro_batch_size(self) -> int:
        """So that each replica has two micro-batches. One process has the same for the comparison where masked tokens
        or the balance of experts are averaged in each.
        """
        return 4 // int(LAYOUTS[self.layout].get("data_parallel_size") or 1)

    @property
    def training(self) -> Training:
        """At its layout."""
        return Training(self.family, self.layout, self.dtype, self.num_layers, self.micro_batch_size)

    @property
    def reference(self) -> Training:
        """In one process and in fp32."""
        micro_batch_size = 4 if self.family in SAME_IN_ANY_MICRO_BATCHES else self.micro_batch_size
        return self.training._replace(layout=None, dtype="fp32", micro_batch_size=micro_batch_size)

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.family}-{self.layout}-{self.dtype}"


def _layouts(family: str, dtype: str) -> tuple[str, ...]:
    if dtype == "bf16":
        others = OF_OTHERS_IN_BF16 if ONLY.get(family) else ()
        return others if family in ONLY else (*BF16_LAYOUTS, *MORE_IN_BF16.get(family, ()))
    elsewhere = SHARED_OUT.get(family, ())
    every = (name for name in LAYOUTS if (family, name) not in REFUSED and name not in elsewhere)
    return ONLY.get(family, tuple(every))


CELLS = tuple(
    Cell(family, name, dtype) for family in FAMILIES for dtype in TOLERANCE for name in _layouts(family, dtype)
)
"""Those that tests/distributed/test_matrix.py runs."""


def matrix_job(
    family: str,
    dtype: str,
    sentences: str,
    parallelism: dict[str, Any],
    num_layers: int = 2,
    micro_batch_size: int = 4,
) -> JobSpec:
    """A tiny job of a family. `sentences` is the data set of the families that cannot train on random tokens; with
    "-race" behind it, the folder of RACE's files.
    """
    data: dict[str, Any] = {"random_tokens": True}
    more: dict[str, Any] = {}
    if family in ("bert", "post-ln", "modernbert", "t5"):
        data = {"blend": [{"path": sentences}], "random_tokens": False, "split": "90,10,0"}
    if family == "race":
        data = {"random_tokens": False}
        more["task"] = {"name": "race", "train": f"{sentences}-race", "validation": f"{sentences}-race"}
    if family == "t5":
        data["tokenizer"] = {"vocab_extra_ids": 20}
    if family == "gpt-oss":  # its experts have biases, so that they are not split
        parallelism = {**parallelism, "expert_tensor_parallel_size": 1}
    # Adam divides a gradient by its size: with an epsilon well above what rounding leaves, that moves no weight.
    more["optimizer"] = {"adam_eps": 1e-6, **({"name": "muon"} if family == "muon" else {})}
    return tiny_job(
        f"{family}-{dtype}",
        model={**FAMILIES[family], "num_layers": num_layers},
        batch={"micro_batch_size": micro_batch_size},
        data=data,
        parallelism=parallelism,
        precision={"dtype": dtype},
        schedule={"train_iters": STEPS, "lr_warmup_iters": 0},
        evaluation={"eval_interval": STEPS, "eval_iters": 1},
        **more,
    )
