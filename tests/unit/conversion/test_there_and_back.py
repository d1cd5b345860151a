"""From transformers and back to it: models that are of several families, and those whose layers are all alike."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from support.refused import refused

from orchestrator import plain_megatron  # noqa: F401 - before anything that imports megatron-core
from orchestrator.cli.main import main
from orchestrator.conversion.hugging_face.config_json import to_model
from orchestrator.conversion.hugging_face.families.registry import family_of_type
from orchestrator.conversion.hugging_face.hf_export import export
from orchestrator.run_directory.rundir import RunDir
from orchestrator.spec.loading import load_resolved
from tests.unit.conversion import families
from tests.unit.conversion.families_configurations import LATENT, LLAMA4, LLAMA4_ROPE, SEEN, SIZES
from tests.unit.conversion.published_configurations import PUBLISHED

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


LLAMA4_TEXT = {**SIZES, **LLAMA4, "num_hidden_layers": 4, "interleave_moe_layer_step": 2}
LLAMA4_SEEN = {**SEEN, "intermediate_size": 96, "projector_input_dim": 16, "projector_output_dim": 16}


def save_llama4(folder: Path, **more: Any) -> torch.Tensor:
    """As Llama 4 is published, with an encoder of images; what it says of text."""
    with families.transformers_alone():
        config = transformers.Llama4Config(
            text_config={**LLAMA4_TEXT, "rope_parameters": LLAMA4_ROPE, **more},
            vision_config={**LLAMA4_SEEN, "vision_output_dim": 16},
        )
        theirs = transformers.Llama4ForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
        with torch.no_grad():
            for parameter in theirs.language_model.parameters():
                parameter.copy_(float(parameter.dim() == 1) + 0.2 * torch.randn_like(parameter))
            said: torch.Tensor = theirs(families.ids()).logits
        theirs.save_pretrained(folder)
    return said


def test_the_decoder_of_a_llama4_with_images(tmp_path: Path) -> None:
    """Its weights, bitwise, and what it says of text, as a Llama 4 that takes text alone."""
    theirs, out = tmp_path / "llama4" / "theirs", tmp_path / "out"
    said = save_llama4(theirs)
    run = families.import_saved(tmp_path / "llama4")
    job = load_resolved(run.resolved())
    assert job.model.vision is None
    export(run.checkpoint(0), job, out, most_bytes=10**9, dtype=None, tokenizer="no", threads=1)
    begin = "language_model."
    came = {key.removeprefix(begin): each for key, each in families.weights(theirs).items() if key.startswith(begin)}
    went = families.weights(out)
    assert came.keys() == went.keys()
    assert all(torch.equal(came[key], went[key]) for key in came)
    with families.transformers_alone():
        loaded = transformers.AutoModelForCausalLM.from_pretrained(out, attn_implementation="eager").eval()
    assert type(loaded) is transformers.Llama4ForCausalLM
    assert torch.equal(families.logits(loaded), said)


def test_the_command_names_what_it_leaves_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_llama4(tmp_path / "theirs")
    assert main(["checkpoint", "import", str(tmp_path / "theirs"), "--runs-dir", str(tmp_path / "runs")]) == 0
    told = capsys.readouterr().err
    assert "vision_config is left out" in told
    assert "multi_modal_projector.linear_1.weight" in told


@pytest.mark.parametrize(
    ("place", "more", "refusal"),
    [
        (
            "text_config",
            {"attention_bias": True},
            ("unsupported_config_value", "attention_bias of text_config"),
        ),
        ("text_config", {"mm_layers": 2}, ("unknown_config_keys", "mm_layers of text_config")),
        ("text_config", {"tie_word_embeddings": True}, ("conflicting_config_values", "tie_word_embeddings")),
        (None, {"vision_projection": 2}, ("unknown_config_keys", "vision_projection")),
        (None, {"text_config": []}, ("config_value_not_an_object", "text_config")),
        (None, {"quantization_config": {"quant_method": "compressed-tensors"}}, ("quantized_weights",)),
    ],
)
def test_what_is_said_beside_images_and_of_text_is_refused_by_key(
    place: str | None, more: dict[str, Any], refusal: tuple[str, ...]
) -> None:
    config = copy.deepcopy(PUBLISHED["llama-4-scout"])
    family = family_of_type("llama4")
    assert to_model(config, family)["num_layers"] == 48
    (config if place is None else config[place]).update(more)
    with refused(*refusal):
        to_model(config, family)
