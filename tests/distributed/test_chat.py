"""Fine-tuning on conversations: packed or not, and under every layout, the same losses; full, and with adapters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.chats import MEASURED, conversations
from support.faults import UNSAVED, WEIGHTS_ALONE, Ranks
from support.mamba_stub import INSTALL
from support.trained_together import ResumedTogether, TrainedTogether, selected
from support.training import events, layout, losses, make_run, tiny_job, values

from orchestrator.run_directory.rundir import RunDir

MODEL = {"hidden_size": 64, "seq_length": 96, "vocab_size": 272, "position_embedding_type": "rope"}
STEPS = 4
FOUR = {"num_layers": 4}
DELTA = {
    **{"linear_attention_freq": 2, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8},
    **{"linear_value_head_dim": 12, "add_bias_linear": False},
}

HYBRID = {
    **{"architecture": "mamba", "num_layers": 3, "hybrid_override_pattern": "M*M", "mamba_state_dim": 8},
    **{"mamba_head_dim": 16, "mamba_num_groups": 2},
}


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Prefix of 72 short conversations of bytes: what begins with a letter is answered with that letter."""
    return conversations(tmp_path_factory.mktemp("chats"), {"a": "AAA", "b": "BBB"})


@pytest.fixture(scope="module")
def source(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    job = tiny_job("source", model=MODEL, schedule={"train_iters": 1, "lr_warmup_iters": 0})
    return ranks.must_train(make_run(tmp_path_factory.mktemp("runs"), job), job, inject=WEIGHTS_ALONE)


def chat_job(name: str, chats: str, source: RunDir | None, steps: int = STEPS, **sections: Any) -> Any:
    more = dict(sections)
    chat = more.pop("chat", {})
    data = {"random_tokens": False, "blend": [{"path": chats}], "split": "80,20,0", "chat": chat}
    return tiny_job(
        name,
        model={**MODEL, **more.pop("model", {})},
        data=data,
        checkpoint={} if source is None else {"pretrained": str(source.path)},
        **{
            "batch": {"micro_batch_size": 4},
            "schedule": {"train_iters": steps, "lr_decay_iters": STEPS, "lr_warmup_iters": 1},
            "evaluation": {"eval_interval": 100, "eval_iters": 1, "eval_at_end": True, "eval_at_start": True},
            **more,
        },
    )


KINDS: dict[str, dict[str, Any]] = {
    "rope": {"num_query_groups": 2},
    "learned-capped": {"position_embedding_type": "learned_absolute", "attention_logit_softcapping": 5.0},
    "latents": {"kv_lora_rank": 16, "qk_head_dim": 12, "qk_pos_emb_head_dim": 4, "v_head_dim": 8},
    "delta": DELTA,
    "hybrid": HYBRID,
}


@pytest.fixture(scope="module")
def measured(
    request: pytest.FixtureRequest, ranks: Ranks, chats: str, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[tuple[str, bool]]:
    """Each kind of model with packing and without."""
    folder = tmp_path_factory.mktemp("measured")
    (folder / "inject.py").write_text(INSTALL + MEASURED)
    jobs = {
        (kind, packing): chat_job("measured", chats, None, chat={"packing": packing}, model=KINDS[kind])
        for kind in selected(request, "kind")
        for packing in (True, False)
    }
    return TrainedTogether(ranks, folder, jobs, folder / "inject.py")


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_has_the_same_loss_alone_and_among_others(
    kind: str, measured: TrainedTogether[tuple[str, bool]]
) -> None:
    found = {}
    for packing in (True, False):
        [found[packing]] = events(measured[kind, packing], "measured")
    assert found[True]["sequences"] < 0.6 * found[False]["sequences"]
    assert len(found[True]["losses"]) == len(found[False]["losses"]) > 50
    for (tokens, packed), (alone_tokens, alone) in zip(
        sorted(found[True]["losses"]), sorted(found[False]["losses"]), strict=True
    ):
        assert tokens == alone_tokens
        assert packed == pytest.approx(alone, rel=1e-5)


STATES = ("delta", "hybrid")
"""Kinds whose tokens share a state."""
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
LAYOUTS: dict[str, dict[str, Any]] = {
    "tp2-sp": {"parallelism": layout(tp=2, sequence_parallel=True)},
    "pp2-dp2": {
        **{"parallelism": layout(pp=2, dp=2), "batch": {"micro_batch_size": 1}},
        "runtime": {"recompute_granularity": "selective"},
    },
    "tp2-pp2-vp2": {"parallelism": layout(tp=2, pp=2, vp=2), "runtime": RECOMPUTED},
}


@pytest.fixture(scope="module")
def spread(ranks: Ranks, chats: str, tmp_path_factory: pytest.TempPathFactory) -> TrainedTogether[str]:
    """Alone and at each layout; and so with linear attention, and with state space layers."""
    folder = tmp_path_factory.mktemp("spread")
    (folder / "inject.py").write_text(INSTALL)
    jobs = {
        name: chat_job(name, chats, None, steps=3, model=FOUR, **sections)
        for name, sections in {"alone": {}, **LAYOUTS}.items()
    }
    for kind in STATES:
        for name, sections in (("alone", {}), ("spread", {**LAYOUTS["tp2-sp"], "runtime": RECOMPUTED})):
            jobs[f"{kind}-{name}"] = chat_job(name, chats, None, steps=2, model=KINDS[kind], **sections)
    return TrainedTogether(ranks, folder, jobs, folder / "inject.py", UNSAVED)


def test_every_layout_learns_the_same(spread: TrainedTogether[str]) -> None:
    alone = spread["alone"]
    for name in LAYOUTS:
        for key in ("train/loss", "train/grad_norm", "validation/loss"):
            assert values(spread[name], key) == pytest.approx(values(alone, key), rel=5e-5), (name, key)


@pytest.mark.parametrize("states", STATES)
def test_states_learn_the_same_on_two_ranks(states: str, spread: TrainedTogether[str]) -> None:
    """Recomputed as a whole there: each layer is told again which conversation a token is of."""
    for key in ("train/loss", "train/grad_norm", "validation/loss"):
        found, expected = (values(spread[f"{states}-{name}"], key) for name in ("spread", "alone"))
        assert found == pytest.approx(expected, rel=1e-5), key


def test_answers_are_learnt_and_then_others_with_adapters(
    ranks: Ranks, tmp_path: Path, chats: str, source: RunDir
) -> None:
    schedule = {"train_iters": 50, "lr_decay_iters": 50, "lr_warmup_iters": 2}
    sections: dict[str, Any] = {"schedule": schedule, "optimizer": {"lr": 1e-2}, "batch": {"micro_batch_size": 8}}
    full = chat_job("full", chats, source, **sections)
    tuned = ranks.must_train(make_run(tmp_path, full), full, inject=WEIGHTS_ALONE)
    start, end = values(tuned, "validation/loss").values()
    assert start > 5.0
    assert end < 0.6
    assert losses(tuned)[50] < 0.6

    others = conversations(tmp_path, {"a": "ABA", "b": "BAB"})
    model = {"lora": {"rank": 8, "alpha": 16.0}}
    job = chat_job("adapted", others, tuned, **sections, model=model)
    adapted = ranks.must_train(make_run(tmp_path, job), job, inject=UNSAVED)
    start, end = values(adapted, "validation/loss").values()
    assert start > 1.0
    assert end < start / 2


def test_it_resumes_bitwise(ranks: Ranks, tmp_path: Path, chats: str, source: RunDir) -> None:
    """In another epoch than it began in, under TP2 with sequence parallelism and dropout."""
    sections = {
        "parallelism": layout(tp=2, sequence_parallel=True),
        "model": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    }
    whole, half = (chat_job("resumed", chats, source, steps, **sections) for steps in (STEPS, STEPS // 2))
    trained = TrainedTogether(ranks, tmp_path, {"whole": whole, "half": half})
    resumed = ResumedTogether(ranks, trained, {"half": whole})["half"]
    assert losses(resumed) == losses(trained["whole"])
    assert len(losses(resumed)) == STEPS
