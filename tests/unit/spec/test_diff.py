"""What a changed spec means for a run that goes on."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.kernel_selection.changes import diff_jobs
from orchestrator.spec.schema.diff import on_resume
from orchestrator.spec.schema.shape import leaf_paths


def kinds(old: Any, new: Any) -> dict[str, str]:
    return {change.path: change.kind for change in diff_jobs(old, new)}


def test_every_field_is_declared_with_what_a_change_means() -> None:
    for path in leaf_paths():
        on_resume(path)


def test_equal_jobs(small: Any) -> None:
    assert diff_jobs(small.job(), small.job()) == []


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("name=other", {"name": "forbidden"}),
        ("optimizer.lr=2e-3", {"optimizer.lr": "trajectory"}),
        ("schedule.train_iters=200", {"schedule.train_iters": "trajectory"}),
        ("data.blend=[other]", {"data.blend": "trajectory"}),
        ("data.blend=[{path: corpus, text: raw}]", {"data.blend": "safe"}),
        ("data.blend=[./sub/../corpus]", {"data.blend": "safe"}),
        ("data.blend=[{path: corpus, text: raw, weight: 2}]", {"data.blend": "trajectory"}),
        ("data.prepare=never", {"data.prepare": "safe"}),
        ("data.seed=1", {"data.seed": "trajectory"}),
        ("data.validation=[other]", {"data.validation": "trajectory"}),  # `split` holds nothing out for it any more
        ("data.split='969,1,30'", {"data.split": "safe"}),
        ("data.split='90,10,0'", {"data.split": "trajectory"}),
        (
            "data.tokenizer={type: sentencepiece, path: m}",
            {"data.tokenizer.type": "forbidden", "data.tokenizer.path": "forbidden"},
        ),
        ("model.activation=gelu_tanh", {"model.activation": "trajectory"}),
        ("model.activation=squared_relu", {"model.activation": "forbidden"}),
        ("model.sliding_window=64", {"model.sliding_window": "trajectory"}),
        ("model.apply_layernorm_1p=true", {"model.apply_layernorm_1p": "forbidden"}),
        ("precision.dtype=fp32", {"precision.dtype": "trajectory"}),
        ("batch.global_batch_size=16", {"batch.global_batch_size": "trajectory"}),
        ("batch.micro_batch_size=4", {"batch.micro_batch_size": "safe"}),
        ("batch.num_micro_batches=4", {"batch.num_micro_batches": "safe"}),
        (
            "batch.rampup_batch_size=[2, 2, 100]",
            dict.fromkeys(
                [
                    "batch.rampup_batch_size.start_global_batch_size",
                    "batch.rampup_batch_size.increment",
                    "batch.rampup_batch_size.samples",
                ],
                "trajectory",
            ),
        ),
        ("model.num_layers=8", {"model.num_layers": "forbidden"}),
        ("model.vocab_size=1000", {"model.vocab_size": "forbidden"}),
        ("model.ffn_hidden_size=512", {"model.ffn_hidden_size": "safe"}),
        ("model.ffn_hidden_size=256", {"model.ffn_hidden_size": "forbidden"}),
        ("model.seq_length=64", {"model.seq_length": "trajectory"}),
        ("model.hidden_dropout=0.1", {"model.hidden_dropout": "trajectory"}),
        ("parallelism.tensor_model_parallel_size=2", {"parallelism.tensor_model_parallel_size": "safe"}),
        ("parallelism.data_parallel_size=2", {"parallelism.data_parallel_size": "safe"}),
        ("runtime.seed=2", {"runtime.seed": "safe"}),
        ("launch.env.A=b", {"launch.env": "safe"}),
        ("checkpoint.save_interval=5", {"checkpoint.save_interval": "safe"}),
        ("tracking.tags.a=b", {"tracking.tags": "safe"}),
    ],
)
def test_one_change(small: Any, override: str, expected: dict[str, str]) -> None:
    assert kinds(small.job(), small.job(override)) == expected


def test_validation_sources_are_safe_where_the_split_holds_nothing_out(small: Any) -> None:
    assert kinds(small.job("data.split='1,0,0'"), small.job("data.split='1,0,0'", "data.validation=[other]")) == {
        "data.validation": "safe"
    }


def test_the_micro_batch_counts_where_experts_are_balanced_within_it(small: Any) -> None:
    experts = ("model.num_experts=4", "model.add_bias_linear=false")
    by_loss = (*experts, "model.moe_aux_loss_coeff=0.01")
    by_sequence = (*by_loss, "model.moe_router_load_balancing_type=seq_aux_loss")
    dropped = (*experts, "model.moe_expert_capacity_factor=1.5")
    for given, kind in ((experts, "safe"), (by_loss, "trajectory"), (by_sequence, "safe"), (dropped, "trajectory")):
        [change] = diff_jobs(small.job(*given), small.job(*given, "batch.micro_batch_size=4"))
        assert change.kind == kind, given
    context = "parallelism.context_parallel_size=2"
    for given, kind in ((by_loss, "safe"), (dropped, "trajectory")):
        [change] = [each for each in diff_jobs(small.job(*given), small.job(*given, context)) if "context" in each.path]
        assert change.kind == kind, given


def test_replicas_count_where_experts_are_balanced_over_all_of_them(small: Any) -> None:
    """However they change: DP may follow from the processes and the other degrees."""
    experts = ("model.num_experts=4", "model.add_bias_linear=false", "model.moe_aux_loss_coeff=0.01")
    together = (*experts, "model.moe_router_load_balancing_type=global_aux_loss")
    replicas = "parallelism.data_parallel_size"
    for given, kind in ((experts, "safe"), (together, "trajectory")):
        assert kinds(small.job(*given), small.job(*given, f"{replicas}=2")) == {replicas: kind}
        found = kinds(small.job(*given), small.job(*given, "launch.gpus_per_node=2"))
        assert found == {"launch.gpus_per_node": "safe", **({replicas: kind} if kind != "safe" else {})}
    wide = ("launch.gpus_per_node=2", "parallelism.tensor_model_parallel_size=2", "parallelism.sequence_parallel=true")
    assert kinds(small.job(*together), small.job(*together, *wide)).get(replicas) is None
    assert kinds(small.job(*together), small.job(*together, "model.moe_aux_loss_coeff=0.02", f"{replicas}=1")) == {
        "model.moe_aux_loss_coeff": "trajectory",
        replicas: "safe",
    }


def test_more_replicas_of_as_many_micro_batches_are_another_batch(small: Any) -> None:
    written = ("batch.global_batch_size=null", "batch.num_micro_batches=4")
    changes = diff_jobs(small.job(*written), small.job(*written, "parallelism.data_parallel_size=2"))
    assert {change.path: (change.kind, change.old, change.new) for change in changes} == {
        "parallelism.data_parallel_size": ("safe", None, 2),
        "batch.global_batch_size": ("trajectory", 8, 16),
    }


def test_the_distributed_optimizer_in_fp32(small: Any) -> None:
    off = "parallelism.use_distributed_optimizer=false"
    assert kinds(small.job(), small.job(off)) == {"parallelism.use_distributed_optimizer": "safe"}
    fp32 = "precision.dtype=fp32"
    assert kinds(small.job(fp32), small.job(fp32, off)) == {"parallelism.use_distributed_optimizer": "forbidden"}


def test_learned_positions_have_a_length(small: Any) -> None:
    learned = "model.position_embedding_type=learned_absolute"
    assert kinds(small.job(learned), small.job(learned, "model.seq_length=64")) == {"model.seq_length": "forbidden"}
    assert kinds(small.job(learned), small.job(learned, "model.max_position_embeddings=128")) == {
        "model.max_position_embeddings": "safe"
    }


def test_the_seed_counts_where_there_is_dropout(small: Any) -> None:
    dropout = "model.hidden_dropout=0.1"
    assert kinds(small.job(dropout), small.job(dropout, "runtime.seed=2")) == {"runtime.seed": "trajectory"}


def test_changes_hold_plain_values(small: Any) -> None:
    (change,) = diff_jobs(small.job(), small.job("data.blend=[0.5, a, 0.5, b]"))
    assert change.old == [{"path": "corpus"}]
    assert change.new == [{"path": "a", "weight": 0.5}, {"path": "b", "weight": 0.5}]
    assert change.reason
