"""`--set` supplies what a migration leaves open."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from orchestrator.errors import SpecError
from orchestrator.migration.from_megatron import migrate_script
from orchestrator.migration.overrides import override
from orchestrator.migration.report import Migration
from orchestrator.migration.yaml_writer import job_text
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

SIZES = "--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 64"
TRAINING = "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-3"
FILES = "--data-path data --vocab-file v --merge-file m"


def with_values(words: str, *assignments: str) -> Migration:
    migration = migrate_script(f"torchrun --nproc-per-node 1 pretrain_gpt.py {words}", "train.sh")
    for each in assignments:
        override(migration, each)
    return migration


def whole(migration: Migration) -> JobSpec:
    assert migration.missing == {}
    return load_text(job_text(migration)).job


@pytest.mark.parametrize(
    ("words", "assignments"),
    [
        (f"{SIZES} {TRAINING}", ("data.blend=x", "data.tokenizer.path=v", "data.tokenizer.merges=m")),
        (f"{SIZES} {TRAINING}", ("data.blend=x", "data.tokenizer.type=byte_level")),
        (f"{SIZES} {TRAINING}", ("data.blend=x", "data.tokenizer={type: byte_level}")),
        (f"{SIZES} {TRAINING} --data-path $D", ("data.random_tokens=true", "model.vocab_size=300")),
        (f"{SIZES} {TRAINING} {FILES} --tokenizer-type TikTokenizer", ("data.tokenizer.type=byte_level",)),
        (f"{SIZES} {TRAINING} {FILES} --position-embedding-type mrope", ("model.position_embedding_type=rope",)),
        (f"{SIZES} {TRAINING} {FILES} --train-iters $N", ("schedule.train_iters=10",)),
        (f"{SIZES} {TRAINING} {FILES} --train-iters $N", ("schedule.train_tokens=1M",)),
        (f"{SIZES} {TRAINING} {FILES} --lr-warmup-iters $N", ("schedule.lr_warmup_fraction=0.1",)),
        (f"{SIZES} {TRAINING} {FILES} --global-batch-size $N", ("batch.num_micro_batches=2",)),
        (f"{SIZES} {TRAINING} {FILES} --rampup-batch-size $N", ("batch.rampup_batch_size=null",)),
        (f"{SIZES} {TRAINING} {FILES} --num-layers $N", ("model.preset=gpt2",)),
        (f"{SIZES} {TRAINING} {FILES} --fp8-format hybrid --fp8-recipe custom --bf16", ("precision.fp8=null",)),
    ],
)
def test_nothing_is_missing_then(words: str, assignments: tuple[str, ...]) -> None:
    assert with_values(words).missing or "tokenizer" in str(assignments)
    migration = with_values(words, *assignments)
    assert whole(migration).name == "train"
    assert not migration.of("not_known"), "what is supplied is not at the top of the job any more"


def test_one_file_of_a_tokenizer_is_not_the_other() -> None:
    migration = with_values(f"{SIZES} {TRAINING}", "data.blend=x", "data.tokenizer.path=v")
    assert list(migration.missing) == ["data.tokenizer.merges"]


def test_a_key_in_a_mapping_that_was_migrated() -> None:
    words = f"{SIZES} {TRAINING} {FILES} --position-embedding-type rope --use-rope-scaling --rampup-batch-size 4 4 100"
    length = ("schedule.train_iters=null", "schedule.train_samples=1000")
    job = whole(with_values(words, "model.rope_scaling.factor=4", "batch.rampup_batch_size.samples=60", *length))
    assert job.model.rope_scaling is not None
    assert (job.model.rope_scaling.factor, job.model.rope_scaling.high_freq_factor) == (4.0, 4.0)
    assert job.batch.rampup_batch_size is not None
    assert (job.batch.rampup_batch_size.samples, job.batch.rampup_batch_size.increment) == (60, 4)


def test_a_key_in_a_mapping_that_has_to_be_written() -> None:
    words = f"{SIZES} {TRAINING} {FILES} --position-embedding-type rope --use-rope-scaling --rope-scaling-factor none"
    scaling = ("type=llama3", "factor=4", "original_max_position_embeddings=8192")
    job = whole(with_values(words, *(f"model.rope_scaling.{each}" for each in scaling)))
    assert job.model.rope_scaling is not None
    assert job.model.rope_scaling.factor == 4.0


def test_a_preset_goes_over_what_no_flag_says() -> None:
    """And what flags say goes over the preset."""
    job = whole(with_values(f"{TRAINING} {FILES} --num-layers 4", "model.preset=llama3.2-1b"))
    assert (job.model.num_layers, job.model.hidden_size) == (4, 2048)
    assert (job.model.position_embedding_type, job.model.activation) == ("rope", "swiglu")


@pytest.mark.parametrize(
    ("words", "assignment", "path", "value"),
    [
        (f"{SIZES} {TRAINING} {FILES}", "lr=0.1", "optimizer.lr", 0.1),
        (f"{SIZES} {TRAINING} {FILES}", "normalization=RMSNorm", "model.normalization", "RMSNorm"),
        (f"{SIZES} {TRAINING} {FILES}", " train_iters = 5", "schedule.train_iters", 5),
        (f"{SIZES} {TRAINING} {FILES} --lr $LR", "lr=0.1", "optimizer.lr", 0.1),
        (f"{SIZES} {TRAINING} {FILES} --position-embedding-type mrope", "position_embedding_type=none", None, None),
        (f"{SIZES} {TRAINING} {FILES} --train-iters $N", "train_tokens=1M", "schedule.train_tokens", 1_000_000),
        (f"{SIZES} {TRAINING} {FILES} --num-layers $N", "preset=gpt2", "model.preset", "gpt2"),
        (f"{SIZES} {TRAINING} {FILES} --tensor-model-parallel-size $TP", "tp=1", None, None),
    ],
)
def test_short_names_are_those_of_every_set(words: str, assignment: str, path: str | None, value: object) -> None:
    migration = with_values(words, assignment)
    job = whole(migration).model_dump(mode="json")
    if path is not None:
        section, _, name = path.partition(".")
        assert job[section][name] == value
        assert path in migration.values


def test_a_short_name_in_a_mapping_that_was_migrated() -> None:
    words = f"{SIZES} {TRAINING} {FILES} --position-embedding-type rope --use-rope-scaling"
    job = whole(with_values(words, "factor=4"))
    assert job.model.rope_scaling is not None
    assert (job.model.rope_scaling.factor, job.model.rope_scaling.high_freq_factor) == (4.0, 4.0)


@pytest.mark.parametrize(
    ("assignment", "key"),
    [
        ("optimizer.lrr=2", "optimizer.lrr"),
        ("schedule.train_iter=5", "schedule.train_iter"),
        ("model.bogus=1", "model.bogus"),
        ("bogus=1", "bogus"),
        ("model.rope_scaling.factr=2", "model.rope_scaling.factr"),
        ("model={num_layer: 2}", "model.num_layer"),
    ],
)
def test_a_key_that_is_no_field_is_refused(assignment: str, key: str) -> None:
    """As `validate --set` does."""
    with pytest.raises(SpecError) as refused:
        with_values(f"{SIZES} {TRAINING} {FILES}", assignment)
    [problem] = refused.value.problems
    assert problem.paths[0] == key
    with pytest.raises(SpecError) as elsewhere:
        load_text(job_text(with_values(f"{SIZES} {TRAINING} {FILES}")), overrides=(assignment,))
    assert (problem.message, problem.hint) in [(each.message, each.hint) for each in elsewhere.value.problems]


def test_a_mapping_goes_over_what_it_names_alone() -> None:
    words = f"{SIZES} {TRAINING} {FILES} --adam-beta1 0.8 --position-embedding-type rope --use-rope-scaling"
    job = whole(with_values(words, "optimizer={lr: 0.1}", "model={num_layers: 2, rope_scaling: {factor: 4}}"))
    assert (job.optimizer.lr, job.optimizer.adam_beta1) == (0.1, 0.8)
    assert (job.model.num_layers, job.model.hidden_size) == (2, 128)
    assert job.model.rope_scaling is not None
    assert (job.model.rope_scaling.factor, job.model.rope_scaling.high_freq_factor) == (4.0, 4.0)


def test_a_task(script_text: Callable[[str], str]) -> None:
    migration = migrate_script(script_text("race.sh"), "race.sh")
    assert "schedule.train_samples" in migration.missing
    override(migration, "schedule.train_iters=100")
    assert whole(migration).schedule.train_iters == 100
