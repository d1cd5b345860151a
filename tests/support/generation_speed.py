"""Greedy decoding of one network by us and by transformers with its static cache, on this machine's GPU.

    python -m support.generation_speed FOLDER [gpt2] [llama]      # with tests/ on PYTHONPATH

Makes transformers' models of 1.7B parameters with random weights in bf16 in FOLDER (once), imports them, and prints a
line of JSON for each model and batch: seconds of a call that continues PROMPT tokens by NEW, as median of REPEATS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from orchestrator.inference import load

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from orchestrator.conversion.hugging_face.config_json import read_config, to_model
    from orchestrator.conversion.hugging_face.families.registry import family_of_type
    from orchestrator.conversion.hugging_face.hf_import import import_weights
    from orchestrator.run_directory.rundir import RunDir
    from orchestrator.spec.job import JobSpec
    from orchestrator.spec.loading import dump_resolved

PROMPT, NEW, BATCHES, WARM_UP, REPEATS = 128, 256, (1, 32), 2, 3
VOCAB = 51200
CONFIGURATIONS: dict[str, Callable[[], Any]] = {
    # The preset gpt-1.7b's sizes.
    "gpt2": lambda: transformers.GPT2Config(
        **{"vocab_size": VOCAB, "n_embd": 2304, "n_layer": 24, "n_head": 24, "n_positions": 2048, "eos_token_id": None}
    ),
    "llama": lambda: transformers.LlamaConfig(
        **{"vocab_size": VOCAB, "hidden_size": 2048, "num_hidden_layers": 32, "num_attention_heads": 32},
        **{"intermediate_size": 5632, "num_key_value_heads": 8, "max_position_embeddings": 2048, "eos_token_id": None},
    ),
}


def job_of(name: str, folder: Path, runtime: dict[str, Any]) -> JobSpec:
    """The job of a run that holds the weights in a folder."""
    found = read_config(folder)
    return JobSpec.model_validate(
        {
            **{"name": name, "model": to_model(found, family_of_type(found["model_type"]))},
            **{"data": {"random_tokens": True}, "batch": {"global_batch_size": 1}, "optimizer": {"lr": 1e-5}},
            **{"schedule": {"train_iters": 1}, "precision": {"dtype": "bf16"}, "runtime": runtime},
        }
    )


def made(folder: Path, name: str) -> tuple[Path, RunDir]:
    """The folder of transformers' model, and the run of ours with the same weights."""
    theirs, run = folder / name / "theirs", RunDir(folder / name / "run")
    if not run.checkpoint(0).exists():
        torch.manual_seed(1)
        with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
            model = transformers.AutoModelForCausalLM.from_config(CONFIGURATIONS[name](), dtype=torch.bfloat16)
        model.save_pretrained(theirs)
        del model
        job = job_of(name, theirs, {})
        run.path.mkdir(parents=True, exist_ok=True)
        run.path.joinpath("resolved.json").write_text(dump_resolved(job))
        import_weights(theirs, job, family_of_type(read_config(theirs)["model_type"]), run.checkpoint(0), threads=4)
    return theirs, run


def prompts(batch: int) -> torch.Tensor:
    """[b, PROMPT]."""
    return torch.randint(0, VOCAB, (batch, PROMPT), generator=torch.Generator().manual_seed(2))


def seconds(call: Callable[[], Any], warm_up: int = WARM_UP, repeats: int = REPEATS) -> tuple[dict[str, Any], Any]:
    """Of a call, after it was made often enough for everything to be compiled; and what it returned last."""
    times = []
    for number in range(warm_up + repeats):
        _synchronize()
        began = time.perf_counter()
        found = call()
        _synchronize()
        if number >= warm_up:
            times.append(time.perf_counter() - began)
    return {"seconds": statistics.median(times), "spread": [min(times), max(times)]}, found


def _synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def ours(run: RunDir) -> dict[int, dict[str, Any]]:
    """By batch."""
    found = {}
    options = {"max_new_tokens": NEW, "temperature": 0}
    with load(run.path) as model:
        for batch in BATCHES:
            lists = prompts(batch).tolist()
            found[batch], texts = seconds(partial(model.generate, lists, options, ends=[]))
            found[batch]["tokens"] = texts[0].tokens[:16]
    return found


@torch.no_grad()
def theirs_of(folder: Path, *, compiles: bool) -> dict[int, dict[str, Any]]:
    """By batch; `compiles`: as `generate` does by itself with a static cache."""
    found = {}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device).eval()
    fixed: dict[str, Any] = {
        **{"do_sample": False, "max_new_tokens": NEW, "min_new_tokens": NEW, "pad_token_id": 0},
        **{"cache_implementation": "static", "disable_compile": not compiles},
    }
    for batch in BATCHES:
        ids = prompts(batch).to(device)
        mask = torch.ones_like(ids)
        call = partial(model.generate, input_ids=ids, attention_mask=mask, **fixed)
        found[batch], tokens = seconds(call) if compiles else seconds(call, 1, 1)  # which takes the longest by far
        found[batch]["tokens"] = tokens[0, PROMPT:][:16].tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=list(CONFIGURATIONS))
    arguments = parser.parse_args()
    for name in arguments.names:
        folder, run = made(arguments.folder, name)
        measured = {
            "static": theirs_of(folder, compiles=False),
            "compiled": theirs_of(folder, compiles=True),
            "ours": ours(run),
        }
        for batch in BATCHES:
            entry = {who: found[batch] for who, found in measured.items()}
            print(json.dumps({"model": name, "batch": batch, **entry}), flush=True)


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    main()
