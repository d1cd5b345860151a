"""What weights are called in files of ranks, by Megatron-LM's older models and by megatron-core's, and how
tensor-parallel ranks share them.
"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.conversion.weight_mapping import DECODER, ENCODER

RANK_FOLDERS = "mp_rank_*"
"""One for each rank; `mp_rank_TP`, or `mp_rank_TP_PP` with a pipeline."""
TABLE, OUTPUT = "embedding.word_embeddings.weight", "output_layer.weight"
COPY = "word_embeddings_for_head.weight"
"""The last stage's copy of the embedding, in older models."""

_QKV, _FC1 = "self_attention.linear_qkv.", "mlp.linear_fc1."
_MODULES = {
    **dict.fromkeys(
        ("input_layernorm.", "input_norm.", "self_attention.layernorm_qkv.layer_norm_"), f"{_QKV}layer_norm_"
    ),
    **dict.fromkeys(
        ("attention.query_key_value.", "self_attention.query_key_value.", "self_attention.layernorm_qkv."), _QKV
    ),
    **dict.fromkeys(
        ("attention.dense.", "self_attention.dense.", "self_attention.proj."), "self_attention.linear_proj."
    ),
    **dict.fromkeys(
        ("post_attention_layernorm.", "post_attention_norm.", "pre_mlp_layernorm.", "layernorm_mlp.layer_norm_"),
        f"{_FC1}layer_norm_",
    ),
    **dict.fromkeys(("mlp.dense_h_to_4h.", "layernorm_mlp.fc1_"), _FC1),
    **dict.fromkeys(("mlp.dense_4h_to_h.", "layernorm_mlp.fc2_"), "mlp.linear_fc2."),
    **{name: name for name in (f"{_QKV}layer_norm_", _QKV, "self_attention.linear_proj.")},
    **{name: name for name in ("self_attention.q_layernorm.", "self_attention.k_layernorm.")},
    **{name: name for name in (f"{_FC1}layer_norm_", _FC1, "mlp.linear_fc2.")},
}
"""Of a layer. Older models, with layers of their own or of Transformer Engine; megatron-core's with plain norms, or
with norms that are part of a matrix.
"""
_TOP = {
    "embedding.word_embeddings.": "embedding.word_embeddings.",
    "embedding.position_embeddings.": "embedding.position_embeddings.",
    "embedding.tokentype_embeddings.": "embedding.tokentype_embeddings.",
    "output_layer.": "output_layer.",
    "word_embeddings_for_head.": "output_layer.",
    "pooler.dense.": "pooler.dense.",
    "lm_head.dense.": "lm_head.dense.",
    **dict.fromkeys(("lm_head.layernorm.", "lm_head.norm.", "lm_head.layer_norm."), "lm_head.layer_norm."),
    "lm_head.": "output_layer.",
    "binary_head.": "binary_head.",
}
_STACK = re.compile(
    r"(?:transformer|encoder|decoder)\.(?:layers\.(?P<layer>\d+)\.|(?P<last>final_(?:layer)?norm\.))(?P<rest>.+)"
)
_OLDER = "language_model."
_NO_WEIGHT = ("_extra_state", ".inv_freq")
_BY_ROWS = (
    TABLE,
    "output_layer.weight",
    "output_layer.bias",
    f"{_QKV}weight",
    f"{_QKV}bias",
    f"{_FC1}weight",
    f"{_FC1}bias",
)
_BY_COLUMNS = ("self_attention.linear_proj.weight", "mlp.linear_fc2.weight")


WHOLE = "whole"
"""Of an optimizer's state: each weight has its own, for any layout and for either kind of optimizer."""


def is_of_ranks(folder: Path) -> bool:
    """Whether a folder is a checkpoint in the older format."""
    return any(path.is_dir() for path in folder.glob(RANK_FOLDERS))


def is_weight(name: str) -> bool:
    """Whether a name in a file is that of a weight, and not of what a layer keeps beside it."""
    return not name.endswith(_NO_WEIGHT)


def is_older(name: str) -> bool:
    """Whether a weight is of one of Megatron-LM's own models, before megatron-core's."""
    return name.startswith(_OLDER)


def is_encoder(names: list[str]) -> bool:
    """Whether weights of these names are a BERT's."""
    return any(name.startswith("lm_head.dense.") for name in names)


def key_of(name: str, encoder: bool) -> tuple[str, int | None] | None:
    """Our key of a weight, and the number of its layer within its stage; None where no network here has it."""
    plain = name.removeprefix(_OLDER)
    stack = ENCODER if encoder else DECODER
    if found := _STACK.fullmatch(plain):
        if found["last"]:
            kind = found["rest"]
            return (f"{stack.removesuffix('layers.')}final_layernorm.{kind}", None) if _is_kind(kind) else None
        key = _renamed(found["rest"], _MODULES)
        return None if key is None else (f"{stack}{key}", int(found["layer"]))
    key = _renamed(plain, _TOP)
    return None if key is None else (key, None)


def _renamed(name: str, table: dict[str, str]) -> str | None:
    for theirs, ours in table.items():
        if name.startswith(theirs) and _is_kind(name.removeprefix(theirs)):
            return f"{ours}{name.removeprefix(theirs)}"
    return None


def _is_kind(text: str) -> bool:
    return text in ("weight", "bias")


def shared_axis(key: str) -> int | None:
    """The dimension that tensor-parallel ranks share a weight by, without that of layers; None: each has all of it."""
    if key.endswith(_BY_COLUMNS):
        return 1
    return 0 if key.endswith(_BY_ROWS) else None
