"""From transformers and back to it: models that are of several families, and those whose layers are all alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion import families
from tests.unit.conversion.families_configurations import LATENT, SIZES

with families.transformers_alone():
    import transformers

ROTATED = {**SIZES, "pad_token_id": 0}
ALL_FULL = {**SIZES, "head_dim": 16, "layer_types": ["full_attention"] * 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    # Llamas, Mistrals and a DeepSeek V2 too, by what they compute.
    "phi-3": ("Phi3Config", {**ROTATED, "sliding_window": 5}),
    "phi-4": ("Phi3Config", ROTATED),
    "deepseek-v3-dense": ("DeepseekV3Config", {**LATENT, "first_k_dense_replace": 2}),
    "mistral-without-window": ("MistralConfig", {**SIZES, "sliding_window": None}),
    # Without a window, of which transformers asks for the width.
    "gemma2": ("Gemma2Config", ALL_FULL),
    "gemma3": ("Gemma3TextConfig", ALL_FULL),
    "ministral": ("MinistralConfig", ALL_FULL),
    "gpt-oss": ("GptOssConfig", {**ALL_FULL, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0}),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_comes_back_as_what_it_was(name: str, tmp_path: Path) -> None:
    """Bitwise, and transformers computes what it did."""
    kind, said = MODELS[name]
    with families.transformers_alone():
        config = getattr(transformers, kind)(**said)
    families.make(tmp_path, models={name: config})
    run, theirs, out = RunDir(tmp_path / name / "run"), tmp_path / name / "theirs", tmp_path / "out"
    job = load_resolved(run.resolved())
    export(run.checkpoint(0), job, out, most_bytes=10**9, dtype=None, tokenizer="no", threads=1)
    came, went = families.weights(theirs), families.weights(out)
    assert came.keys() == went.keys()
    assert all(torch.equal(came[key], went[key]) for key in came)
    with families.transformers_alone():
        loaded = families.auto(config).from_pretrained(out, attn_implementation="eager").eval()
    assert type(loaded.config) is type(config)
    assert torch.equal(families.logits(loaded), torch.load(tmp_path / name / "logits.pt"))
