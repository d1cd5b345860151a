"""What is planned for a decoder that sees images of any size."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.matrix import FAMILIES
from support.training import tiny_job
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.vision import encoder_parameters
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text
from orchestrator.spec.rules.kernels.cuda_graphs import obstacles

VOCAB = 384
DECODER = {
    **{"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 64, "add_bias_linear": False},
    **{"normalization": "RMSNorm", "activation": "swiglu", "ffn_hidden_size": 96, "num_query_groups": 2},
    **{"untie_embeddings_and_output_weights": True, "add_qkv_bias": True},
}
VISION: dict[str, Any] = {
    **{"image_size": 48, "patch_size": 4, "num_layers": 3, "hidden_size": 32, "num_attention_heads": 4},
    **{
        "type": "qwen2.5",
        "ffn_hidden_size": 40,
        "native_resolution": {"attention_window_size": 16, "full_attention_layers": [1]},
    },
}
"""144 patches of an image, 36 tokens; windows of 16 patches."""


def seeing(
    make_job: Any, vision: dict[str, Any] | None = None, more: dict[str, Any] | None = None, **sections: Any
) -> JobSpec:
    model = {**DECODER, "mrope_section": [2, 3, 3], "vision": {**VISION, **(vision or {})}, **(more or {})}
    job: JobSpec = make_job(model=model, **sections)
    return job


def blind(make_job: Any, **sections: Any) -> JobSpec:
    job: JobSpec = make_job(model=DECODER, **sections)
    return job


def test_parameters_are_those_of_transformers(make_job: Any) -> None:
    text = {
        **{"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4},
        **{"num_attention_heads": 4, "num_key_value_heads": 2, "rope_parameters": {"mrope_section": [2, 3, 3]}},
    }
    sight = {
        **{"depth": 3, "hidden_size": 32, "num_heads": 4, "intermediate_size": 40, "patch_size": 4},
        **{"window_size": 16, "fullatt_block_indexes": [1], "out_hidden_size": 64},
    }
    with torch.device("meta"):
        built = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=text, vision_config=sight))
    counts = {name: weight.numel() for name, weight in built.named_parameters()}
    counted = parameters(seeing(make_job), VOCAB)
    assert counted.total == sum(counts.values())
    assert counted.vision == sum(count for name, count in counts.items() if ".visual." in name)
    merger = sum(count for name, count in counts.items() if ".merger.mlp." in name)
    vision = seeing(make_job).model.image_encoder
    assert encoder_parameters(vision, 1) == counted.vision - merger


@pytest.mark.parametrize("images", [1, 3])
def test_flops_are_those_of_every_product(make_job: Any, images: int) -> None:
    """Of windows in two of three layers."""
    n, m, v, f, u, h, w = 144, 36, 32, 40, 128, 64, (144 + 2 * 16) / 3
    patches, products = n * 48 * v, 3 * n * (4 * v * v + 3 * v * f)
    scores, first, second = 3 * 2 * n * w * v, m * u * u, m * u * h
    trained = 2 * (2 * patches + 3 * (products + scores + first + second))  # images have no gradient
    frozen = 2 * (patches + products + scores + 2 * first + 3 * second)
    without = model_flops(blind(make_job), 5 * 64, VOCAB)
    for freeze, each in ((False, trained), (True, frozen)):
        job = seeing(make_job, {"freeze": freeze, "images_per_sequence": images}, batch={})
        assert model_flops(job, 5 * 64, VOCAB) - without == pytest.approx(5 * images * each, rel=1e-12)
        names = {"T": 5 * 64, "s": 64, "I": images, "n": n, "m": m, "p": 4, "v": v, "u": u, "w": w, "f_": f, "L_": 3}
        said = formula(job).split("plus ")[1].split(";")[0].replace("'", "_")
        assert eval(said, {**names, "h": h}) == pytest.approx(5 * images * each, rel=1e-12)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_activations_are_those_of_every_tensor(device: str, make_job: Any) -> None:
    """In bf16, of two more images in each of two sequences."""

    def more(freeze: bool) -> int:
        jobs = (
            seeing(
                make_job,
                {"freeze": freeze, "images_per_sequence": images},
                {"seq_length": 128},
                precision={"dtype": "bf16"},
                runtime={"device": device},
            )
            for images in (1, 3)
        )
        few, many = (estimate_memory(job, VOCAB, "torch").stages[0].parts["activations"] for job in jobs)
        return many - few

    patches, tokens, numbers, v, u, f = 4 * 144, 4 * 36, 4 * 3 * 48 * 48, 32, 128, 40
    assert more(freeze=True) == numbers + patches * 2 * v + tokens * 2 * 2 * u
    norm = 2 * v + 4  # input and deviation
    # The projection's output, in which a kernel rotates queries and keys; else these beside it.
    projected = 6 * v if device == "cuda" else 6 * v + 4 * v
    layer = 2 * (norm + 2 * v) + projected + 2 * v + 4 * 4 + 2 * 3 * f
    kept = more(freeze=False) - more(freeze=True) - (2 * numbers + patches * norm)
    assert kept == patches * 3 * layer


SECTIONS = "batch: {micro_batch_size: 1, num_micro_batches: 8}, data: {random_tokens: true}, \
optimizer: {lr: 1e-4}, schedule: {train_iters: 1}"


def test_windows_save_time() -> None:
    """Of an image of 4900 patches, where attention to all of them is most of the time."""

    def seconds(native: str) -> float:
        model = f"{{preset: qwen2.5-vl-3b, vision: {{native_resolution: {native}}}}}"
        job = load_text(f"{{name: x, model: {model}, {SECTIONS}}}").job
        return estimate_time(job, 151936, "torch", device_named("H100")).step_seconds

    all_layers = [*range(32)]
    assert seconds("{}") < 0.97 * seconds(f"{{full_attention_layers: {all_layers}}}")
    assert seconds("{full_attention_layers: []}") < seconds("{}")


def test_graphs_are_of_images_of_one_size() -> None:
    """The host reads the sizes of others, and starts other kernels for each micro-batch."""
    against = {
        family: [
            field for field, _ in obstacles(tiny_job("graphs", model=FAMILIES[family], runtime={"device": "cuda"}))
        ]
        for family in ("vision", "gemma3-images", "native")
    }
    assert against == {"vision": [], "gemma3-images": [], "native": ["model.vision.type"]}
