"""Each family learns on the CPU what a network cannot know that learns nothing, or sees no more than one token."""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support.examples import write_race
from support.faults import Ranks
from support.learning import learned
from support.matrix import FAMILIES, matrix_job
from support.pictures import talk, written
from support.trained_together import TrainedTogether, selected
from support.training import tiny_job, values

from orchestrator.data.missing_datasets import prepare
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.distributed, pytest.mark.slow("each family trains for some steps")]

STEPS = 28
LAST = range(STEPS - 3, STEPS + 1)
CIRCUIT = "abdbcdac"
"""Again and again: two letters follow each as often, and which one, the letter before it tells. So who knows how often
each comes has ln 4 at best, and who sees the last one alone half of it, ln 2.
"""
SENTENCES = tuple(f"{one * 12}. {other * 12}." for one, other in ("AB", "CD"))
"""Of each document, so that what is hidden, and which sentence is the first, is seen at the others' letters."""
ANSWERS = "abcd"
"""Each to an image of its own, and to nothing else."""
TEMPLATE = (
    "{% for turn in messages %}{% if turn.role == 'user' %}{{ turn.content }}{% else %}"
    "{% generation %}{{ turn.content }}{% endgeneration %}{% endif %}{% endfor %}"
)
OF_ITS_OWN: dict[str, dict[str, Any]] = {
    # Caps that the matrix has to see them work leave 2 nats.
    "gemma2": {"model": {"attention_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}},
    # As text before and behind an image is written, in bytes.
    "native": {"model": {"seq_length": 64}},
    "gemma3-images": {"model": {"seq_length": 64}},
    # Outputs are multiplied by half, and by 1 / sqrt(32).
    "granite": {"model": {"init_method_std": 0.3}},
    "t5": {"model": {"init_method_std": 0.3}, "optimizer": {"lr": 5e-2}},
}
PARTLY = {
    # Looked up for letters and distances that are there; those of 4 of 384 tokens are 0.01.
    r"(embeddings|relative_attention_bias)\.weight$|^output_layer\.": 0.01,
    # What moves all scores of a query alike is no matter to their softmax: biases of keys that are not rotated.
    r"linear_(qkv|kv)\.bias$": 0.5,
    # Nor what moves all options of a question.
    r"^task_head\.bias$": 0.0,
}
"""Weights of which some elements have no gradient, by their names, and the share of elements that have."""
MOST_OF_IT = 0.9
"""The same of all others: an activation may shut a unit from the start. A head or a part of a matrix is more."""
AT_MOST = {"t5": 2 / 3}
"""Of the entropy of what is asked for, where it is not half: where a span ends was drawn, and nobody knows."""


def learning_job(family: str, folder: Path) -> JobSpec:
    """Of what `folder` has for the family's task; its data set is made."""
    given = matrix_job(family, "fp32", str(folder / "sentences"), {}, FAMILIES[family]["num_layers"])
    sections = given.model_dump(exclude_unset=True)
    own = OF_ITS_OWN.get(family, {})
    model = {**sections["model"], "init_method_std": 0.1, **own.get("model", {})}
    data = {**sections["data"], "random_tokens": False, **({} if given.has_task else {"split": "1,0,0"})}
    if given.model.has_vision:
        data |= {
            "blend": [{"path": str(folder / family), "text": str(folder / "chats.jsonl")}],
            "chat": {"packing": False, "template": str(folder / "template.jinja")},
        }
    elif not given.has_task:
        name = "sentences" if given.model.reads_sentences else "circuits"
        data["blend"] = [{"path": str(folder / name), "text": str(folder / f"{name}.jsonl"), "append_eod": False}]
    size = 16 if given.model.reads_sentences else 8  # few of a sample's tokens are asked for
    job = tiny_job(
        **{
            **sections,
            "name": family,
            "model": {**model, "vocab_size": max(given.model.vocab_size or 0, 261)},
            "data": data,
            "evaluation": None,
            "batch": {"micro_batch_size": size, "global_batch_size": size},
            "schedule": {"train_iters": STEPS, "lr_warmup_iters": 4},
            "optimizer": {**sections["optimizer"], "lr": 1e-2, "weight_decay": 0.0, **own.get("optimizer", {})},
        }
    )
    if not job.has_task:
        prepare(job.data, 1, str, sentences=job.model.reads_sentences, vision=job.model.vision)
    return job


@pytest.fixture(scope="module")
def trained(
    request: pytest.FixtureRequest, ranks: Ranks, tmp_path_factory: pytest.TempPathFactory
) -> TrainedTogether[str]:
    folder = tmp_path_factory.mktemp("learning")
    documents = {"circuits": [CIRCUIT * 40] * 8, "sentences": [*SENTENCES] * 16}
    for name, texts in documents.items():
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    for seed, letter in enumerate(ANSWERS):
        pixels = np.random.RandomState(seed).randint(0, 256, (16, 16, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{letter}.png")
    written(folder, *(talk("<image>", letter, images=[f"{letter}.png"]) for letter in ANSWERS))
    (folder / "template.jinja").write_text(TEMPLATE)
    write_race(folder / "sentences-race", 12)
    inject = folder / "inject.py"
    tests = Path(__file__).parents[1]
    inject.write_text(
        f"import sys\nsys.path.append({str(tests)!r})\n"
        "from support import learning, mamba_stub\nmamba_stub.install()\nlearning.install()\n"
    )
    jobs = {family: learning_job(family, folder) for family in selected(request, "family")}
    return TrainedTogether(ranks, folder / "runs", jobs, inject)


FROM_THE_START = [family for family, model in FAMILIES.items() if "lora" not in model]
"""Adapters alone begin with weights that have learned already (test_block_adapters.py)."""


@pytest.mark.parametrize("family", FROM_THE_START)
def test_it_learns(family: str, trained: TrainedTogether[str]) -> None:
    run = trained[family]
    shares, entropy = learned(run)
    bars = {f"train/loss/{part}" if len(entropy) > 1 else "train/loss": nats for part, nats in entropy.items()}
    further = FAMILIES[family].get("mtp_num_layers", 0)
    bars |= {f"train/mtp/loss_{number + 1}": entropy["lm"] for number in range(further)}
    for name, nats in bars.items():
        curve = values(run, name)
        assert mean(curve[step] for step in LAST) < nats * AT_MOST.get(family, 1 / 2), name
    untrained = {
        name: share
        for name, share in shares.items()
        if share < next((least for pattern, least in PARTLY.items() if re.search(pattern, name)), MOST_OF_IT)
    }
    assert untrained == {}
