"""BERT and T5 in Megatron-LM's checkpoints: keys and arguments, as megatron-core's BertModel and T5Model have them."""

from __future__ import annotations

from typing import Any

import pytest
from support.refused import refused
from support.training import tiny_job

from orchestrator.conversion.megatron.arguments import differences, require_representable, to_arguments, to_model
from orchestrator.conversion.megatron.bert_and_t5 import family_of
from orchestrator.conversion.megatron.checkpoint_keys import find_sources, names_there, unread, wanted_tensors
from orchestrator.models.registry import BERT
from orchestrator.spec.job import JobSpec

_T5 = {"architecture": "t5", "position_embedding_type": "learned_absolute", "decoder_seq_length": 32}
MODELS: dict[str, dict[str, Any]] = {
    "bert": {"architecture": "bert", "position_embedding_type": "learned_absolute"},
    "bert-untied": {
        **{"architecture": "bert", "position_embedding_type": "learned_absolute"},
        **{"bert_binary_head": False, "untie_embeddings_and_output_weights": True},
    },
    "t5": {**_T5, "add_output_bias": True},
    "t5-untied": {**_T5, "untie_embeddings_and_output_weights": True},
    "t5-relative": {**_T5, "position_embedding_type": "relative", "add_output_bias": True, "normalization": "RMSNorm"},
}
TWICE = {
    "t5": {
        "output_layer.bias": "lm_head.output_layer.bias",
        "embedding.position_embeddings.weight": "position_embeddings.weight",
    },
    "t5-untied": {
        "output_layer.weight": "lm_head.output_layer.weight",
        "embedding.position_embeddings.weight": "position_embeddings.weight",
    },
    "t5-relative": {"output_layer.bias": "lm_head.output_layer.bias"},
}
"""What T5Model has under two keys. Of the optimizer's state of positions the second is stored, of others the first."""
RENAMED = {
    f"{half}_relative_attention_bias.weight": f"{half}_relative_pos_emb.relative_attention_bias.weight"
    for half in ("encoder", "decoder")
}
ROWS = 256


def job_of(name: str, **more: Any) -> JobSpec:
    return tiny_job("job", model={**MODELS[name], "vocab_size": ROWS, **more})


def stored_there(name: str, wanted: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """As Megatron-LM stores a checkpoint: the weights twice where its network holds them twice, their states once."""
    found = {}
    for key, shape in wanted.items():
        begin, _, rest = key.partition(".state.")
        state, weight = (f"{begin}.state.{rest.partition('.')[0]}.", rest.partition(".")[2]) if rest else ("", key)
        weight = RENAMED.get(weight, weight)
        copy = TWICE.get(name, {}).get(weight)
        if state and copy == "position_embeddings.weight":
            found[state + copy] = shape
            continue
        found[state + weight] = shape
        if copy and not state:
            found[copy] = shape
    return found


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_found_there(name: str) -> None:
    job = job_of(name)
    wanted = wanted_tensors(job, ROWS, with_optimizer=True)
    stored = stored_there(name, wanted)
    sources, missing = find_sources(wanted, stored)
    assert missing == []
    assert sources.keys() == wanted.keys()
    assert unread(sources, stored) == []
    assert family_of(key.partition(".")[0] for key in stored if "optimizer" not in key) is job.model.family


@pytest.mark.parametrize("name", MODELS)
def test_every_tensor_is_written_that_is_looked_for_there(name: str) -> None:
    job = job_of(name)
    wanted = wanted_tensors(job, ROWS, with_optimizer=True)
    assert stored_there(name, wanted).keys() <= names_there(wanted, job.model, local=True).keys()


@pytest.mark.parametrize("name", MODELS)
def test_arguments_there_and_back(name: str) -> None:
    job = job_of(name)
    require_representable(job)
    arguments = to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=ROWS)
    assert differences(job, arguments, job.model.family) == []
    described = to_model(arguments, job.model.family)
    assert {key: described[key] for key in MODELS[name]} == MODELS[name]
    assert differences(job, arguments) != []


def test_layers_of_a_bert() -> None:
    job = job_of("bert")
    arguments = to_arguments(job, iteration=1, consumed_samples=8, padded_vocab=ROWS)
    assert differences(job, {**arguments, "spec": ["local"]}, BERT) == []
    with refused("network_not_importable"):
        to_model({**arguments, "spec": ["my.layers", "spec"]}, BERT)


def test_a_key_of_another_network_is_not_passed_over() -> None:
    job = job_of("bert")
    wanted = wanted_tensors(job, ROWS, with_optimizer=False)
    sources, _ = find_sources(wanted, {**wanted, "lm_head.dense.more": (1,)})
    assert unread(sources, {**wanted, "lm_head.dense.more": (1,)}) == ["lm_head.dense.more"]
    assert family_of(["embedding", "encoder", "adapter"]) is None


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("t5", {"decoder_num_layers": 2}),
        ("t5", {"add_output_bias": False}),
        ("t5-relative", {"scale_decoder_outputs": True}),
        ("bert", {"transformer_block_type": "post_ln"}),
    ],
)
def test_networks_that_megatron_lm_has_not(name: str, more: dict[str, Any]) -> None:
    with refused("network_not_in_megatron"):
        require_representable(job_of(name, **more))
