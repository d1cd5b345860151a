"""What is asked of a model before the network is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.refused import refused
from support.training import tiny_job
from tokenizers import Tokenizer, models, pre_tokenizers

from orchestrator.inference.model import Model
from orchestrator.inference.serving.chat_template_choice import chat_of
from orchestrator.spec.job import JobSpec


class Network:
    """A job, and the size of its vocabulary."""

    def __init__(self, job: JobSpec) -> None:
        self.job, self.vocab_size = job, 256


def model_with(folder: Path, **config: str) -> Model:
    """One with a tokenizer of bytes, which has no token that ends a text."""
    alphabet = {character: number for number, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE(alphabet, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    data = {"random_tokens": True, "tokenizer": {"type": "huggingface", "path": str(folder / "tokenizer.json")}}
    return model_of({"vocab_size": 300}, data)


def model_of(model: dict[str, Any], data: dict[str, Any]) -> Model:
    network: Any = Network(tiny_job("asked", model=model, data=data))
    commit: Any = None
    return Model(network, commit)


def test_a_tokenizer_without_an_end_ends_no_text(tmp_path: Path) -> None:
    assert model_with(tmp_path).ends == ()


def test_half_a_surrogate_pair_is_no_prompt(tmp_path: Path) -> None:
    model = model_with(tmp_path)
    with refused("not_unicode", "prompt 1"):
        model.requests(["x", "\ud800"])
    assert [request.tokens for request in model.requests([[5]])] == [[5]]


def test_token_ids_are_whole_numbers(tmp_path: Path) -> None:
    model = model_with(tmp_path)
    assert [request.tokens for request in model.requests([np.array([5, 7]), (8,)])] == [[5, 7], [8]]
    wrong: list[Any] = [[1.5], [True], ["5"], [None], [[5]], 5, None, [b"5"]]
    for prompt in wrong:
        with refused("not_token_ids", "prompt 0"):
            model.requests([prompt])
    for prompt in ([-1], [256], [10**400]):
        with refused("token_outside_vocabulary", "prompt 0", "256 tokens"):
            model.requests([prompt])


@pytest.mark.parametrize("length", [32, 33, 500])
def test_a_prompt_that_leaves_no_room_is_to_be_shortened(length: int) -> None:
    """Asking for fewer new tokens would not help."""
    learned = {"position_embedding_type": "learned_absolute", "seq_length": 32, "vocab_size": 300}
    model = model_of(learned, {"random_tokens": True})
    with refused("sequence_too_long", f"{length} tokens", "32 positions", "31 tokens"):
        model.requests([[5] * length], {"max_new_tokens": 1})
    assert [len(each.tokens) for each in model.requests([[5] * 31], {"max_new_tokens": 1})] == [31]
    with refused("sequence_too_long", "30 prompt tokens", "32 positions", "2 new tokens"):
        model.requests([[5] * 30], {"max_new_tokens": 3})
    with refused("sequence_too_long", "list 0", "33 tokens", "32 tokens"):
        model.logits([[5] * 33])


@pytest.mark.parametrize("length", [16, 17, 64])
def test_texts_stay_on_one_side_of_longrope_s_switch(length: int) -> None:
    """On that of the samples: what is kept of a text is rotated by the frequencies of one."""
    factors = {"short_factor": [1] * 4, "long_factor": [2] * 4, "original_max_position_embeddings": 16}
    scaling = {"type": "longrope", "factor": 4, **factors}
    model = model_of({"rope_scaling": scaling, "seq_length": length, "vocab_size": 300}, {"random_tokens": True})
    if length == 16:
        assert len(model.requests([[5] * 10], {"max_new_tokens": 6})) == 1
        with refused("sequence_too_long", "10 prompt tokens + 7 new ones", "at most 16"):
            model.requests([[5] * 10], {"max_new_tokens": 7})
        return
    assert len(model.requests([[5] * 17], {"max_new_tokens": 100})) == 1
    with refused("sequence_too_short", "16 tokens", "17 or more"):
        model.requests([[5] * 16], {"max_new_tokens": 1})


def test_a_text_has_a_greatest_length_and_a_batch_a_least(tmp_path: Path) -> None:
    model = model_with(tmp_path)
    assert model.longest is None
    with refused("sequence_too_long", "2147483647", "2147483648", "4194304"):
        model.requests([[5]], {"max_new_tokens": 2**31 - 1})
    for size in (0, -1):
        with refused("batch_size_not_positive", f"batch_size {size}"):
            model.generate([[5]], batch_size=size)


def test_a_template_that_cannot_be_used_is_warned_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """This one is of no use to a training: nothing ends the assistant's turns."""
    model = model_with(tmp_path, chat_template="{% for message in messages %}{{ message['content'] }}{% endfor %}")
    assert chat_of(model) is None
    said = capsys.readouterr().err
    assert said.startswith("warning: no conversations, /v1/completions only: chat template of ")
    assert said.count("\n") == 1
