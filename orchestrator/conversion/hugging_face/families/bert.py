"""BERT: Megatron-LM's, whose norms stand before attention and MLP, the first one, where they stand behind, and RoBERTa,
whose positions begin behind that of padding.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.conversion.hugging_face.config_keys import whole
from orchestrator.conversion.hugging_face.families.llama import FIXED
from orchestrator.conversion.weight_mapping import ENCODER, Derived, Family, Said
from orchestrator.models.blocks.weights import Rule
from orchestrator.spec.model import ModelSpec

_LAYER = "bert.encoder.layer.{n}."
_UNTIED = "untie_embeddings_and_output_weights"
_KINDS = ("weight", "bias")


def _both(ours: str, theirs: str) -> tuple[Rule, ...]:
    """A matrix or a norm, and its bias."""
    return tuple(Rule(f"{ours}{kind}", (f"{theirs}{kind}",)) for kind in _KINDS)


_TABLES = (
    Rule("embedding.word_embeddings.weight", ("bert.embeddings.word_embeddings.weight",), "padded_rows"),
    Rule("embedding.position_embeddings.weight", ("bert.embeddings.position_embeddings.weight",)),
    Rule("embedding.tokentype_embeddings.weight", ("bert.embeddings.token_type_embeddings.weight",)),
)
_ATTENTION = (
    *(
        Rule(
            f"{ENCODER}self_attention.linear_qkv.{kind}",
            tuple(f"{_LAYER}attention.self.{part}.{kind}" for part in ("query", "key", "value")),
            "interleaved_qkv",
        )
        for kind in _KINDS
    ),
    *_both(f"{ENCODER}self_attention.linear_proj.", f"{_LAYER}attention.output.dense."),
)
_MLP = (
    *_both(f"{ENCODER}mlp.linear_fc1.", f"{_LAYER}intermediate.dense."),
    *_both(f"{ENCODER}mlp.linear_fc2.", f"{_LAYER}output.dense."),
)
_OUTPUT_BIAS = ("cls.predictions.bias", "cls.predictions.decoder.bias")
_PREDICTS_TOKENS = (
    *_both("lm_head.dense.", "cls.predictions.transform.dense."),
    *_both("lm_head.layer_norm.", "cls.predictions.transform.LayerNorm."),
    Rule("output_layer.weight", ("cls.predictions.decoder.weight",), "padded_rows", only_with=_UNTIED),
    Rule("output_layer.bias", _OUTPUT_BIAS[:1], "padded_rows", unless=_UNTIED),
    Rule("output_layer.bias", _OUTPUT_BIAS, "padded_rows_twice", only_with=_UNTIED),
)
_HEADS = (
    *_both("pooler.dense.", "bert.pooler.dense."),
    *_PREDICTS_TOKENS,
    *_both("binary_head.", "cls.seq_relationship."),
)

MEGATRON_BERT = Family(
    name="Megatron-BERT",
    model_type="megatron-bert",
    architecture="MegatronBertForPreTraining",
    base="bert.",
    rules=(
        *_TABLES,
        *_both(f"{ENCODER}self_attention.linear_qkv.layer_norm_", f"{_LAYER}attention.ln."),
        *_ATTENTION,
        *_both(f"{ENCODER}mlp.linear_fc1.layer_norm_", f"{_LAYER}ln."),
        *_MLP,
        *_both("encoder.final_layernorm.", "bert.encoder.ln."),
        *_HEADS,
    ),
    sizes={
        "num_layers": "num_hidden_layers",
        "hidden_size": "hidden_size",
        "num_attention_heads": "num_attention_heads",
        "ffn_hidden_size": "intermediate_size",
        "norm_epsilon": "layer_norm_eps",
        "hidden_dropout": "hidden_dropout_prob",
        "attention_dropout": "attention_probs_dropout_prob",
        "init_method_std": "initializer_range",
        "num_tokentypes": "type_vocab_size",
    },
    fixed={
        **{field: value for field, value in FIXED.items() if field != "rotary_percent"},
        **{"architecture": "bert", "position_embedding_type": "learned_absolute", "normalization": "LayerNorm"},
        **{"add_bias_linear": True, "num_query_groups": None, "kv_channels": None, "bert_binary_head": True},
        **{"transformer_block_type": "pre_ln", "bert_head_bias": True},
    },
    constants={
        "is_decoder": False,
        "add_cross_attention": False,
        "position_embedding_type": "absolute",
    },
    defaults={
        **{"num_hidden_layers": 24, "hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096},
        **{"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "layer_norm_eps": 1e-12},
        **{
            "initializer_range": 0.02,
            "type_vocab_size": 2,
            "tie_word_embeddings": True,
            "max_position_embeddings": 512,
        },
    },
    # The dense layer of the head has the exact one here whatever the layers have.
    activations={"gelu": ("gelu",)},
    rotary=False,
    ignored=frozenset(
        {
            *("directionality", "pooler_fc_size", "pooler_num_attention_heads", "pooler_num_fc_layers"),
            *("pooler_size_per_head", "pooler_type"),
        }
    ),
    generates=False,
    buffers=("embeddings.position_ids",),
    heads=("cls.",),
    told_by="cls.seq_relationship.weight",
    copies={
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    },
)

BERT = replace(
    MEGATRON_BERT,
    name="BERT",
    model_type="bert",
    architecture="BertForPreTraining",
    rules=(
        *_TABLES,
        *_both("embedding.layer_norm.", "bert.embeddings.LayerNorm."),
        *_ATTENTION,
        *_both(f"{ENCODER}post_self_attn_layernorm.", f"{_LAYER}attention.output.LayerNorm."),
        *_MLP,
        *_both(f"{ENCODER}post_mlp_layernorm.", f"{_LAYER}output.LayerNorm."),
        *_HEADS,
    ),
    fixed={**MEGATRON_BERT.fixed, "transformer_block_type": "post_ln"},
    defaults={
        **MEGATRON_BERT.defaults,
        **{"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072},
    },
    renamed={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
)


def _masked(family: Family, architecture: str) -> Family:
    """A family without pooler and binary head."""
    return replace(
        family,
        name=f"{family.name} that predicts masked tokens alone",
        architecture=architecture,
        rules=tuple(rule for rule in family.rules if not rule.ours.startswith(("pooler.", "binary_head."))),
        fixed={**family.fixed, "bert_binary_head": False},
        told_by=None,
    )


MEGATRON_BERT_MASKED = _masked(MEGATRON_BERT, "MegatronBertForMaskedLM")
BERT_MASKED = _masked(BERT, "BertForMaskedLM")

_OFFSET, _PADDING = "position_embedding_offset", "pad_token_id"
_OF_ROBERTA = {
    "bert.": "roberta.",
    "cls.predictions.transform.dense.": "lm_head.dense.",
    "cls.predictions.transform.LayerNorm.": "lm_head.layer_norm.",
    "cls.predictions.": "lm_head.",
}
"""How names of a BERT begin -> how RoBERTa's do."""


def _roberta(name: str) -> str:
    begin = next(begin for begin in _OF_ROBERTA if name.startswith(begin))
    return f"{_OF_ROBERTA[begin]}{name.removeprefix(begin)}"


def _offset(said: Said, fields: dict[str, Any]) -> dict[str, Any]:
    return {_OFFSET: whole(said(_PADDING), _PADDING, least=0) + 1}


def _padding(model: ModelSpec) -> dict[str, Any] | None:
    return {_PADDING: model.position_embedding_offset - 1} if model.position_embedding_offset else None


ROBERTA = replace(
    BERT_MASKED,
    name="RoBERTa",
    model_type="roberta",
    architecture="RobertaForMaskedLM",
    base="roberta.",
    rules=tuple(replace(rule, theirs=tuple(map(_roberta, rule.theirs))) for rule in BERT_MASKED.rules),
    fixed={field: value for field, value in BERT_MASKED.fixed.items() if field != _OFFSET},
    defaults={**BERT_MASKED.defaults, _PADDING: 1},
    derived=(Derived((_OFFSET,), (_PADDING,), _offset, _padding),),
    renamed={},
    heads=("lm_head.",),
    # Published files have a pooler that their masked language model does not.
    left_out=("roberta.pooler.",),
    copies={_roberta(copy): _roberta(of) for copy, of in BERT_MASKED.copies.items()},
)
