"""What Megatron-LM's trainers make of flags that read as if they said something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from unit.migration.conftest import SMALLEST, Migrated

from orchestrator.fields.formatting import as_yaml
from orchestrator.migration.from_megatron import migrate_words
from orchestrator.migration.overrides import override
from orchestrator.migration.report import Migration
from orchestrator.migration.to_megatron import to_megatron

Flags = Callable[..., Any]
ROPE = "--position-embedding-type rope"
BERT = "--tokenizer-type BertWordPieceLowerCase --vocab-file v --global-batch-size 8"
MAMBA_SPEC = "--spec megatron.core.models.mamba.mamba_layer_specs mamba_stack_spec"
HYBRID_SPEC = "--spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec"


def of(program: str, words: str, **instead: str | None) -> Migrated:
    given = {**SMALLEST, **{f"--{name.replace('_', '-')}": value for name, value in instead.items()}}
    needed = [word for name, value in given.items() if value is not None for word in (name, value)]
    return Migrated(migrate_words(["torchrun", "--nproc-per-node", "1", program, *needed, *words.split()], "test"))


@pytest.mark.parametrize(
    ("program", "words", "flag", "offer"),
    [
        ("gpt", f"{ROPE} --use-rope-scaling --rope-scaling-factor 32", "--rope-scaling-factor 32", "factor=8.0"),
        ("gpt", f"{ROPE} --rotary-seq-len-interpolation-factor 4", "--rotary-seq-len-inter", "rope_scaling=null"),
        ("mamba", f"{ROPE} --rotary-seq-len-interpolation-factor 4", "--rotary-seq-len-inter", "rope_scaling=null"),
        ("bert", ROPE, ROPE, "model.position_embedding_type=learned_absolute"),
        ("t5", f"{ROPE} --rotary-base 500", "--rotary-base 500", "model.rotary_base=10000"),
        ("t5", "--decoder-num-layers 2", "--decoder-num-layers 2", "model.decoder_num_layers=null"),
    ],
)
def test_flags_that_a_trainer_takes_no_notice_of(program: str, words: str, flag: str, offer: str) -> None:
    """The job has what they say; what the script really trained is offered."""
    migrated = of(f"pretrain_{program}.py", words)
    [note] = [each for each in migrated.migration.notes if each.startswith(flag)]
    assert note in migrated.text, "at the top of the job"
    assignment = note.partition("trains, ")[2].removesuffix(" (--set)")
    assert assignment.endswith(offer)
    override(migrated.migration, assignment)
    path, _, value = assignment.partition("=")
    assert as_yaml(value_at(migrated.migration, path)) == value


def value_at(migration: Migration, path: str) -> Any:
    """Of a field, or of a key in a mapping."""
    section, _, name = path.rpartition(".")
    mapping = migration.values.get(section)
    return mapping[name] if isinstance(mapping, dict) else migration.values.get(path)


@pytest.mark.parametrize(
    "words",
    [
        ROPE,
        f"{ROPE} --use-rope-scaling",
        f"{ROPE} --use-rope-scaling --rope-scaling-factor 8",
        f"{ROPE} --rotary-seq-len-interpolation-factor 1",
    ],
)
def test_what_the_trainer_has_anyway_is_no_news(words: str) -> None:
    migrated = of("pretrain_gpt.py", words)
    assert not [note for note in migrated.migration.notes if "takes no notice" in note]
    listed = {each.path for each in to_megatron(migrated.job).unsaid}
    assert not {path for path in listed if path.startswith("model.rope_scaling")}


@pytest.mark.parametrize(
    ("words", "path"),
    [
        (f"{ROPE} --use-rope-scaling --rope-scaling-factor 32", "model.rope_scaling.factor"),
        (f"{ROPE} --rotary-seq-len-interpolation-factor 4", "model.rope_scaling"),
    ],
)
def test_a_rendered_script_says_what_it_would_train(words: str, path: str) -> None:
    command = to_megatron(of("pretrain_gpt.py", words).job)
    [unsaid] = [each for each in command.unsaid if each.path == path]
    assert "takes no notice of it" in unsaid.reason


@pytest.mark.parametrize("program", ["bert", "t5"])
def test_scaling_where_no_trainer_has_any(program: str) -> None:
    migrated = of(f"pretrain_{program}.py", f"{ROPE} --use-rope-scaling --rotary-seq-len-interpolation-factor 2 {BERT}")
    assert migrated.outcome("--use-rope-scaling") == "no_effect"
    assert migrated.outcome("--rotary-seq-len-interpolation-factor") == "no_effect"
    assert "model.rope_scaling" not in migrated.migration.values


@pytest.mark.parametrize("flag", ["--hybrid-layer-pattern", "--hybrid-override-pattern"])
@pytest.mark.parametrize("spec", [MAMBA_SPEC, HYBRID_SPEC])
def test_layers_of_a_hybrid_are_counted_by_its_pattern(flag: str, spec: str) -> None:
    """Megatron-LM's newer releases do so whatever --num-layers says, or with nothing of it."""
    for layers in ("4", None, "$N"):
        migrated = of("pretrain_mamba.py", f"{flag} M-M*-M {spec}", num_layers=layers)
        assert migrated.outcome("--spec") == "no_effect"
        assert migrated.migration.values["model.num_layers"] == 6
        assert migrated.migration.missing == {}
        if layers is not None:
            assert migrated.outcome("--num-layers") == "no_effect"


@pytest.mark.parametrize(
    ("program", "is_hybrid"), [("pretrain_hybrid.py", True), ("train.py", True), ("pretrain_gpt.py", False)]
)
def test_a_pattern_tells_a_hybrid_where_the_program_does_not(program: str, is_hybrid: bool) -> None:
    migrated = of(program, "--hybrid-layer-pattern M-M*")
    assert (migrated.migration.values.get("model.architecture") == "mamba") is is_hybrid


@pytest.mark.parametrize(
    ("program", "words", "architecture"),
    [
        ("pretrain_gpt.py", "--model-provider mamba --hybrid-layer-pattern MM-", "mamba"),
        ("train.py", "--model_provider=hybrid", "mamba"),
        ("pretrain_mamba.py", "--model-provider gpt", None),
        ("train.py", "--model-provider llava_vlm", "refused"),
        ("pretrain_gpt.py", "--hybrid-override-pattern MM-", None),
    ],
)
def test_the_model_that_a_flag_names(program: str, words: str, architecture: str | None) -> None:
    """Forks and the programs beside pretraining choose it so; without, the program builds its own whatever a pattern
    says.
    """
    migration = of(program, words).migration
    assert (migration.refused is not None) is (architecture == "refused")
    if architecture != "refused":
        assert migration.values.get("model.architecture") == architecture


def test_a_pattern_beside_a_gpt() -> None:
    """core_v0.16.1's GPT has as many layers as --num-layers says; releases with the newer name count the pattern."""
    old = of("pretrain_gpt.py", "--hybrid-override-pattern MM-")
    assert old.outcome("--hybrid-override-pattern") == "no_effect"
    assert old.job.model.num_layers == 4
    new = of("pretrain_gpt.py", "--hybrid-layer-pattern MM-")
    assert (new.outcome("--hybrid-layer-pattern"), new.outcome("--num-layers")) == ("carried", "no_effect")
    assert new.job.model.num_layers == 3
    for migrated in (old, new):
        [note] = [each for each in migrated.migration.notes if "for a hybrid" in each]
        assert "model.architecture=mamba" in note
        assert "model.hybrid_override_pattern=MM-" in note


def test_flags_alone_with_a_pattern_are_a_hybrids() -> None:
    migration = migrate_words(["--num-layers", "3", "--hybrid-override-pattern", "MM-"], "the line")
    assert migration.values["model.architecture"] == "mamba"
    assert migration.sources["model.architecture"].comment == "a Mamba, by its pattern of layers"


def test_patterns_that_say_more_than_layers() -> None:
    migrated = of("pretrain_mamba.py", "--hybrid-layer-pattern M-M*|M-M*")
    assert migrated.migration.values["model.hybrid_override_pattern"] == "M-M*M-M*"
    assert [note for note in migrated.migration.notes if "distributed evenly" in note]
    migrated = of("pretrain_mamba.py", "--hybrid-layer-pattern M-M*/MM")
    assert migrated.outcome("--hybrid-layer-pattern") == "not_supported"
    assert "model.hybrid_override_pattern" in migrated.migration.missing


def test_local_layers() -> None:
    """BERT's trainer reads --spec, T5's --transformer-impl."""
    bert = of("pretrain_bert.py", f"--spec local {BERT}")
    assert bert.job.runtime.layers == "torch"
    words = to_megatron(bert.job).words
    assert words[words.index("--spec") + 1] == "local"
    assert of("pretrain_t5.py", "--spec local").outcome("--spec") == "no_effect"
    assert of("pretrain_gpt.py", "--spec local").outcome("--spec") == "changes_training"


def test_begin_and_end_of_t5_by_the_legacy_tokenizer() -> None:
    words = "--legacy-tokenizer --tokenizer-type BertWordPieceCase --vocab-file v"
    migrated = of("pretrain_t5.py", words)
    assert migrated.outcome("--legacy-tokenizer") == "no_effect"
    assert [note for note in migrated.migration.notes if "[BOS]" in note]
    assert not [note for note in of("pretrain_bert.py", words).migration.notes if "[BOS]" in note]


def test_under_deepspeed_the_loss_scale_is_its_own() -> None:
    scales = "--loss-scale 128 --initial-loss-scale 65536 --loss-scale-window odd --hysteresis 3"
    migrated = of("pretrain_gpt.py", f"--deepspeed --deepspeed_config ds.json --fp16 {scales}")
    for flag in scales.split()[::2]:
        assert migrated.outcome(flag) == "no_effect"
    precision = migrated.job.precision
    assert (precision.loss_scale, precision.hysteresis) == (None, 2)
    assert precision.initial_loss_scale == 2.0**16, "DeepSpeed's default, and not Megatron-LM's"
    notes = " ".join(migrated.migration.notes)
    assert "initial_scale_power" in notes
    assert "gradient_clipping" in notes
    alone = of("pretrain_gpt.py", f"--fp16 {scales.replace('odd', '500')}").job.precision
    assert (alone.loss_scale, alone.loss_scale_window, alone.hysteresis) == (128.0, 500, 3)


@pytest.mark.parametrize(
    ("words", "outcome", "said"),
    [
        ("--sliding-window 64", "no_counterpart", "model.sliding_window"),
        ("--pp-partition-method uniform", "no_counterpart", "pipeline_model_parallel_layout"),
        ("--model-provider gpt", "no_effect", "model.architecture"),
        ("--glu-activation geglu", "no_counterpart", "model.activation"),
        ("--tensor-parallel-degree 2", "no_counterpart", "parallelism.tensor_model_parallel_size"),
        ("--async-strategy nvrx", "no_effect", "checkpoint.async_save"),
        ("--legacy-tokenizer", "no_effect", "tokenizer"),
        ("--enable-ft-package", "no_effect", "runtime.hang_timeout"),
        ("--check-for-nan-in-loss-and-grad", "no_effect", "runtime.max_bad_steps"),
        ("--log-params-norm", "no_effect", "not measured"),
    ],
)
def test_what_ours_does_in_place_of_a_flag(flags: Flags, words: str, outcome: str, said: str) -> None:
    migrated = flags(*words.split())
    assert migrated.outcome(words.split()[0]) == outcome
    assert said in migrated.reason(words.split()[0])


@pytest.mark.parametrize("words", ["--split 100,0,0", "--eval-iters 0", "--eval-iters 0 --eval-interval 10"])
def test_without_evaluation_an_interval_is_written_all_the_same(flags: Flags, words: str) -> None:
    """core_v0.16.1 divides by it."""
    command = to_megatron(flags(*words.split()).job)
    written = dict(zip(command.words, command.words[1:], strict=False))
    assert written["--eval-iters"] == "0"
    assert int(written["--eval-interval"]) > 0
