"""Low-rank adapters on GPUs in bf16: they learn another text, and the weights beside them stay as they were."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from support.faults import Ranks
from support.fixtures import real_text
from support.measured import gpu_count
from support.training import events, four_layer_job, layout, make_run, values
from torch.distributed import checkpoint

from orchestrator.run_directory.checkpoints.commit_markers import committed
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.job import JobSpec

__all__ = ["real_text"]

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

MODEL = {"hidden_size": 256, "num_attention_heads": 4, "num_query_groups": 2, "seq_length": 256, "vocab_size": 512}


def text_job(name: str, prefix: str, model: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
    return four_layer_job(
        name,
        model={**MODEL, "activation": "swiglu", "normalization": "RMSNorm", **(model or {})},
        data={"blend": [{"path": prefix}], "random_tokens": False, "split": "90,10,0"},
        precision={"dtype": "bf16"},
        evaluation={"eval_interval": 100, "eval_iters": 4, "eval_at_start": True, "eval_at_end": True},
        schedule={"train_iters": 100, "lr_warmup_iters": 5},
        **sections,
    )


def source_job(prefix: str) -> JobSpec:
    return text_job("source", prefix)


def adapted_job(prefix: str, source: str, gpus: int) -> JobSpec:
    return text_job(
        "adapted",
        prefix,
        {"lora": {"rank": 8}},
        parallelism=layout(tp=2, sequence_parallel=True) if gpus > 1 else {},
        checkpoint={"pretrained": source},
        optimizer={"lr": 3e-3},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file; `text` is the prefix of a data set."""
    return [source_job(text), *(adapted_job(text, "runs/source", gpus) for gpus in (1, 2))]


def weights(run: RunDir) -> dict[str, torch.Tensor]:
    """The network in a run's newest checkpoint, without what the optimizer keeps."""
    reader = checkpoint.FileSystemReader(committed(run)[-1].path)
    found = {
        key: torch.empty(entry.size, dtype=entry.properties.dtype)
        for key, entry in reader.read_metadata().state_dict_metadata.items()
        if hasattr(entry, "size") and not key.startswith(("optimizer.", "rng"))
    }
    checkpoint.load(found, storage_reader=reader, no_dist=True)
    return found


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_adapters_learn_and_nothing_else_does(ranks: Ranks, real_text: list[str], tmp_path: Path) -> None:
    """On two GPUs, where there are, from a checkpoint of one."""
    first, second = real_text
    before = source_job(first)
    source = ranks.must_train(make_run(tmp_path, before), before)
    job = adapted_job(second, str(source.path), gpu_count())
    run = ranks.must_train(make_run(tmp_path, job), job)
    start, end = values(run, "validation/loss").values()
    learned = values(source, "validation/loss")
    print(
        f"\nRESULT adapters on {job.world_size} GPUs: the source {learned[0]:.3f} to {learned[100]:.3f} on its text, "
        f"another one {start:.3f} to {end:.3f}"
    )
    assert [event["from_iteration"] for event in events(run, "pretrained")] == [100]
    assert start < learned[0] - 1, "it begins where the source ended"
    assert end < start - 0.01
    of_source, of_run = weights(source), weights(run)
    adapters = of_run.keys() - of_source.keys()
    assert all(".lora." in key for key in adapters)
    assert len(adapters) == 2 * 4, "two matrices beside each of four; layers are stacked"
    assert {key for key in of_source if not torch.equal(of_source[key], of_run[key])} == set()
    assert all(of_run[key].any() for key in adapters)
