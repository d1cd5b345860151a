"""What Megatron-LM averages a loss over, and the bias of its T5's output layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.to_megatron import to_megatron
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

Flags = Callable[..., Any]
FLAG = "--calculate-per-token-loss"
SIZES = "--num-layers 2 --hidden-size 64 --num-attention-heads 4 --max-position-embeddings 64"
REST = "--micro-batch-size 2 --train-iters 10 --lr 1e-3 --data-path mine --vocab-file vocab.txt"
T5 = f"{SIZES} {REST} --encoder-seq-length 64 --decoder-seq-length 32 --vocab-extra-ids 100"
BERT = f"{SIZES} {REST} --seq-length 64"


def job_of(program: str, words: str) -> JobSpec:
    return load_text(job_text(migrate_words(["torchrun", program, *words.split()], "test"))).job


@pytest.mark.parametrize(
    ("program", "words", "said", "effective"),
    [
        ("pretrain_t5.py", T5, False, False),
        ("pretrain_t5.py", f"{T5} {FLAG}", None, True),
        ("pretrain_bert.py", BERT, None, False),
    ],
)
def test_sentences(program: str, words: str, said: bool | None, effective: bool) -> None:
    job = job_of(program, words)
    assert (job.batch.calculate_per_token_loss, job.has_per_token_loss) == (said, effective)
    assert job_of(program, " ".join(to_megatron(job).words)).has_per_token_loss == effective


@pytest.mark.parametrize(
    ("words", "said", "effective"),
    [
        ("", None, False),
        (FLAG, None, False),
        ("--eod-mask-loss", False, False),
        (f"--eod-mask-loss {FLAG}", None, True),
    ],
)
def test_decoder(flags: Flags, words: str, said: bool | None, effective: bool) -> None:
    found = flags(*words.split())
    assert (found.job.batch.calculate_per_token_loss, found.job.has_per_token_loss) == (said, effective)
    if words == FLAG:
        assert found.outcome(FLAG) == "no_effect"


def test_bert_takes_no_notice_of_the_flag() -> None:
    """Its loss function gives no number of tokens, by which megatron-core would divide the gradients."""
    migration = migrate_words(["torchrun", "pretrain_bert.py", *BERT.split(), FLAG], "test")
    assert [account.flag for account in migration.of("not_supported")] == [FLAG]


@pytest.mark.parametrize(("words", "has_bias"), [(T5, True), (f"{T5} --untie-embeddings-and-output-weights", False)])
def test_output_bias(words: str, has_bias: bool) -> None:
    job = job_of("pretrain_t5.py", words)
    assert job.model.add_output_bias is has_bias
    assert not [each for each in to_megatron(job).unsaid if each.path == "model.add_output_bias"]


def test_a_tied_t5_without_the_bias_is_none_of_megatron_lms() -> None:
    job = job_of("pretrain_t5.py", T5)
    without = job.model_copy(update={"model": job.model.model_copy(update={"add_output_bias": False})})
    assert [each.path for each in to_megatron(without).unsaid] == ["model.add_output_bias"]
