"""LLaVA in and out by the command line: what comes along with the weights, other layouts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image
from support.faults import CommandLine, Ranks
from support.training import events, layout, make_run, tiny_job
from tokenizers import Tokenizer, models

from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_job
from tests.unit.conversion import families

pytestmark = [pytest.mark.distributed, pytest.mark.slow("imports, trains at two layouts, reshapes and exports")]


@families.transformers_alone()
def read_by_transformers(folder: Path, *text: str) -> dict[str, Any]:
    """What transformers makes of an export, and with `text` of an image of 16 pixels as well."""
    model, found = transformers.AutoModelForImageTextToText.from_pretrained(folder, output_loading_info=True)
    answer: dict[str, Any] = {"wrong": [*found["missing_keys"], *found["unexpected_keys"], *found["mismatched_keys"]]}
    if not text:
        return answer
    pixels = np.arange(16 * 16 * 3, dtype=np.uint8).reshape(16, 16, 3)
    processor = transformers.AutoProcessor.from_pretrained(folder)
    given = processor(images=[Image.fromarray(pixels)], text=[*text], return_tensors="pt")
    answer["ids"] = given["input_ids"][0].tolist()
    colours = (processor.image_processor.image_mean, processor.image_processor.image_std)
    mean, deviation = (torch.tensor(values).view(3, 1, 1) for values in colours)
    seen = given["pixel_values"][0] * deviation + mean
    answer["pixels"] = (seen * 255 - torch.from_numpy(pixels).permute(2, 0, 1)).abs().max().item()
    answer["finite"] = model(**given).logits.isfinite().all().item()
    return answer


def with_tokenizer(folder: Path) -> Path:
    """A tokenizer of 100 characters, and of a token for images."""
    tokenizer = Tokenizer(models.BPE(vocab={chr(ord("a") + number): number for number in range(100)}, merges=[]))
    tokenizer.add_special_tokens(["<image>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_imported_trained_and_exported(ranks: Ranks, orchestrator: CommandLine) -> None:
    """Also from a checkpoint of another layout, bit for bit."""
    home = orchestrator.folder
    families.make(home, "llava")
    theirs = with_tokenizer(home / "llava" / "theirs")
    said = orchestrator("checkpoint", "import", theirs, "--name", "llava", "-o", "tune.yaml")
    assert said.code == 0, said.err
    assert "unused weights are left out: vision_tower.vision_model.encoder.layers.2.layer_norm1.bias" in said.err
    assert "and 14 more" in said.err
    assert orchestrator("checkpoint", "verify", "llava").code == 0
    assert "#   chat: {packing: false}\n" in (home / "tune.yaml").read_text()
    tune = load_job(
        [home / "tune.yaml"],
        [
            *("schedule.train_iters=1", "tracking.mlflow=false", "runtime.device=cpu", "optimizer.lr=0.01"),
            *("parallelism.tensor_model_parallel_size=2", "parallelism.pipeline_model_parallel_size=2"),
        ],
    ).job
    run = ranks.must_train(make_run(home / "runs", tune), tune)
    assert len(events(run, "pretrained")) == 1
    said = orchestrator("checkpoint", "reshape", run.path, "--tp", "1", "--pp", "1", "-o", "whole")
    assert said.code == 0, said.err
    for checkpoint, out in ((run.path, "out"), (home / "whole", "again"), ("llava", "untrained")):
        said = orchestrator("checkpoint", "export", checkpoint, out, "--to", "hf", "--max-shard-size", "1GB")
        assert said.code == 0, said.err
        assert said.err.count("warning") == 0
    out, again, untrained = (home / name / "model.safetensors" for name in ("out", "again", "untrained"))
    assert out.read_bytes() == again.read_bytes() != untrained.read_bytes()
    assert json.loads((home / "out" / "config.json").read_text())["image_token_index"] == 100
    read = read_by_transformers(home / "out", "b<image>a")
    assert (read["wrong"], read["ids"], read["finite"]) == ([], [1, *[100] * 4, 0], True)
    assert read["pixels"] < 1e-3


@pytest.fixture
def trained(ranks: Ranks, tmp_path: Path) -> RunDir:
    """A run of bytes, without a token for images, exported while it trained."""
    sight = {"image_size": 16, "patch_size": 8, "num_layers": 1, "hidden_size": 32, "num_attention_heads": 4}
    llama = {"activation": "swiglu", "normalization": "RMSNorm", "add_bias_linear": False, "vocab_size": 261}
    sections: dict[str, Any] = {
        "checkpoint": {"save_interval": 1, "export": {"interval": 1}},
        "schedule": {"train_iters": 1, "lr_warmup_iters": 0},
        "parallelism": layout(tp=2),
    }
    job = tiny_job("seeing", model={"num_layers": 2, **llama, "vision": sight}, **sections)
    return ranks.must_train(make_run(tmp_path / "runs", job), job)


def test_without_a_token_for_images(orchestrator: CommandLine, trained: RunDir) -> None:
    """The tokenizer stays behind, and the last id stands for images; for Megatron-LM there is no way at all."""
    refused = orchestrator("checkpoint", "export", trained.path, "out", "--to", "hf")
    assert (refused.code, refused.out) == (2, "")
    assert "the tokenizer has no token <image>" in refused.err
    said = orchestrator("checkpoint", "export", trained.path, "out", "--to", "hf", "--no-tokenizer")
    assert said.code == 0, said.err
    [(_, exported)] = trained.export_dirs("hf")
    out = orchestrator.folder / "out"
    assert {path.name for path in exported.iterdir()} == {path.name for path in out.iterdir()}
    for path in exported.iterdir():
        assert path.read_bytes() == (out / path.name).read_bytes(), path.name
    assert not (out / "tokenizer.json").exists()
    assert json.loads((out / "config.json").read_text())["image_token_index"] == 260
    assert read_by_transformers(out) == {"wrong": []}
    refused = orchestrator("checkpoint", "export", trained.path, "for-megatron", "--to", "megatron-lm")
    assert (refused.code, refused.out) == (2, "")
    assert "has images (model.vision)" in refused.err
