"""Which keys of a config.json change the network, whatever its family: the others are read by name, or refused."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import Any

from orchestrator.conversion.weight_mapping import FP8, Family, SameAs
from orchestrator.errors import UserError

QUANTIZATION = "quantization_config"
_BLOCK = "weight_block_size"
_OF_FP8 = {"fmt": "e4m3", "activation_scheme": "dynamic"}
"""Keys of `quantization_config` -> the only value with which matrices in FP8 are read; one that is missing counts as
this.
"""
_SHOWN = 6
_METADATA = frozenset(
    {
        *("_name_or_path", "name_or_path", "_commit_hash", "model_type", "architectures", "transformers_version"),
        *("transformers.js_config", "tokenizer_class", "prefix", "finetuning_task", "task_specific_params"),
        *("problem_type", "id2label", "label2id", "num_labels", "_num_labels", "unsloth_version", "unsloth_fixed"),
        *("is_llama_config", "max_sequence_length", "auto_map"),
    }
)
_TOKENS = frozenset(
    {
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "cls_token_id", "mask_token_id"),
        *("unk_token_id", "decoder_start_token_id", "image_token_id", "image_token_index", "ignore_index"),
    }
)
_COMPUTING = frozenset(
    {
        *("dtype", "torch_dtype", "use_cache", "use_bfloat16", "torchscript", "gradient_checkpointing"),
        *("chunk_size_feed_forward", "pretraining_tp", "tf_legacy_loss", "xla_device", "output_past"),
        *("reorder_and_upcast_attn", "attn_implementation", "_attn_implementation", "_attn_implementation_internal"),
        *("_attn_implementation_autoset", "experts_implementation", "_experts_implementation"),
        *("_experts_implementation_internal", "_flash_attn_2_enabled", "return_dict", "use_return_dict"),
        *("output_attentions", "_output_attentions", "output_hidden_states", "output_router_logits"),
        *("tie_last_hidden_states", "_post_init_done"),
    }
)
"""How it is computed, in which format, and what is handed back beside the logits."""
_TRAINING = frozenset(["initializer_range", "initializer_factor", "classifier_dropout"])
"""With which weights it began, and the heads of other tasks."""
_GENERATION = frozenset(
    {
        *("assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight"),
        *("assistant_lookbehind", "bad_words_ids", "begin_suppress_tokens", "cache_config", "cache_implementation"),
        *("compile_config", "constraints", "continuous_batching_config", "disable_compile", "diversity_penalty"),
        *("do_sample", "dola_layers", "early_stopping", "encoder_no_repeat_ngram_size", "encoder_repetition_penalty"),
        *("epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "force_words_ids"),
        *("forced_bos_token_id", "forced_eos_token_id", "_from_model_config", "guidance_scale", "is_assistant"),
        *("length_penalty", "low_memory", "max_cache_len", "max_length", "max_matching_ngram_size", "max_new_tokens"),
        *("max_time", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_assistant_tokens"),
        *("num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_return_sequences", "output_logits"),
        *("output_scores", "penalty_alpha", "prefill_chunk_size", "prompt_lookup_num_tokens"),
        *("remove_invalid_values", "renormalize_logits", "repetition_penalty", "return_dict_in_generate"),
        *("sequence_bias", "speculation_type", "stop_strings", "suppress_tokens", "target_lookbehind", "temperature"),
        *("token_healing", "top_h", "top_k", "top_p", "typical_p", "use_mtp", "watermarking_config"),
    }
)
WITHOUT_EFFECT = _METADATA | _TOKENS | _COMPUTING | _TRAINING | _GENERATION
"""Keys that change nothing of what any network computes, with any value."""
NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys((QUANTIZATION, "sliding_window", "cross_attention_hidden_size", "clip_qkv"), (None,)),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping"), (None,)),
    **dict.fromkeys(("is_encoder_decoder", "is_decoder", "add_cross_attention", "tie_encoder_decoder"), (False,)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "use_sliding_window", "use_mrope", "rope_interleaved"), (False,)),
    **dict.fromkeys(("pruned_heads", "per_layer_config"), (None, {}, [])),
    **dict.fromkeys(("full_attn_mod", "interpolate_factor"), (1,)),  # Phi-4 mini's, which transformers does not read
    "lm_head_bias": (False,),
    "partial_rotary_factor": (1.0, None),
    "dropout": (0.0,),
}
"""Keys of several families -> the values with which they change nothing where their family does not read them."""


def check_keys(config: Mapping[str, Any], known: Set[str], name: str, place: str = "") -> None:
    """Raises UserError with each key of a config.json, or of the part that `place` names, that is not `known` and not
    said here to change nothing: with it the network may be another one. `name`: of the family, for people.
    """
    unread = [key for key in config if key not in known and key not in WITHOUT_EFFECT]
    for key in unread:
        if key in NEUTRAL and not any(_equal(config[key], value) for value in NEUTRAL[key]):
            raise no_network(f"{key}{place}", config[key])
    unknown = [f"{key}{place}" for key in unread if key not in NEUTRAL]
    if unknown:
        more = f" and {len(unknown) - _SHOWN} more" if len(unknown) > _SHOWN else ""
        raise UserError(
            f"config.json: not known for {name}: {', '.join(unknown[:_SHOWN])}{more}; with keys that are not "
            "understood, it may be another network. Remove keys without effect from config.json, and import it "
            "again",
            code="unknown_config_keys",
        )


def check_quantization(config: Mapping[str, Any], known: Set[str], place: str = "") -> None:
    """Raises UserError where weights are quantized otherwise than by a `known` method, and as this is read."""
    said = config.get(QUANTIZATION)
    method = said.get("quant_method") if isinstance(said, dict) else None
    if said is not None and not (isinstance(method, str) and method in known):
        raise UserError(
            f"config.json: {QUANTIZATION}{place} is set; quantized weights cannot be imported",
            code="quantized_weights",
        )
    if FP8 in known:
        fp8_block(config, place)


def fp8_block(config: Mapping[str, Any], place: str = "") -> tuple[int, int] | None:
    """Rows and columns that matrices in FP8 have a scale for; None where they are not in FP8. Raises UserError where
    these are other ones than of E4M3 with a scale of each block.
    """
    said = config.get(QUANTIZATION)
    if not isinstance(said, dict) or said.get("quant_method") != FP8:
        return None
    place = f" of {QUANTIZATION}{place}"
    for key, wanted in _OF_FP8.items():
        if said.get(key, wanted) != wanted:
            raise no_network(f"{key}{place}", said[key])
    block = said.get(_BLOCK)
    if not isinstance(block, list) or len(block) != 2:
        raise no_network(f"{_BLOCK}{place}", block)
    rows, columns = (whole(each, f"{_BLOCK}{place}") for each in block)
    return rows, columns


def _equal(value: Any, neutral: Any) -> bool:
    """As JSON has it, where 0 and false are not one, and 1 and 1.0 are."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)


def no_network(key: str, value: Any) -> UserError:
    """The refusal of a value that is understood."""
    return UserError(
        f"config.json: {key} is {short(value)}, which this version does not support", code="unsupported_config_value"
    )


def whole(value: Any, key: str, least: int = 1) -> int:
    """The value of a key that is a whole number. Raises UserError for anything else, and for less."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise no_network(key, value)
    return value


def short(value: Any) -> str:
    """A value as JSON, cut where it is long."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """What stands under a key; nothing where it is missing. Raises UserError when it is no object."""
    value = config.get(key)
    if value is not None and not isinstance(value, dict):
        raise UserError(f"config.json: {key} is {value!r} and not an object", code="config_value_not_an_object")
    return value or {}


def value_of(config: Mapping[str, Any], key: str, family: Family) -> Any:
    """What config.json says, or what transformers takes where it says nothing."""
    for name in names_of(key, family):
        if name in config:
            return config[name]
    default = family.defaults.get(key)
    return value_of(config, default.key, family) if isinstance(default, SameAs) else default


def names_of(key: str, family: Family) -> Iterator[str]:
    """A key, and others that stand for it."""
    yield key
    yield from (other for other, of in {**family.repeated, **family.aliases}.items() if of == key)
