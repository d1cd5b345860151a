"""What is planned for Gemma 3 with images: FLOPs, memory, masks and time of means of patches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.matrix import FAMILIES
from support.training import tiny_job
from transformers import Gemma3Config, Gemma3ForConditionalGeneration, Gemma3TextConfig, SiglipVisionConfig

from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.vision import encoder_parameters
from orchestrator.planning.time import estimate_time
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

VOCAB, H, V, F = 256, 32, 16, 64
PATCHES, TOKENS, LAYERS, IMAGES = 16, 4, 2, 2
MODEL = FAMILIES["gemma3-images"]


def job_of(vision: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
    sight = None if vision is None else {**MODEL["vision"], **vision}
    return tiny_job("seen", model={**MODEL, "vision": sight}, **sections)


PRESET = (
    "{name: x, model: {preset: gemma3-4b-vision%s}, batch: {}, data: {random_tokens: true}, optimizer: {lr: 1e-4}, \
schedule: {train_iters: 1}}"
)


def test_the_parts_of_the_published_model() -> None:
    """The encoder and the projector each, and no number more where the text model is alone."""
    job, text = (load_text(PRESET % more).job for more in ("", ", vision: null"))
    vision = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27}
    with torch.device("meta"):
        built = Gemma3ForConditionalGeneration(
            Gemma3Config(
                vision_config=SiglipVisionConfig(**vision, image_size=896, patch_size=14, vision_use_head=False),
                text_config=Gemma3TextConfig(hidden_size=2560, intermediate_size=10240, num_hidden_layers=34),
            )
        )
    counts = {name: weight.numel() for name, weight in built.named_parameters()}
    counted, encoder = parameters(job, 262208), job.model.vision
    assert encoder is not None
    assert (encoder.patches, encoder.tokens_per_image, encoder.positions) == (4096, 256, 4096)
    assert encoder_parameters(encoder, 1) == sum(n for name, n in counts.items() if "vision_tower" in name)
    assert counted.total == sum(counts.values())
    assert counted.total - counted.vision == parameters(text, 262208).total


@pytest.mark.parametrize("freeze", [False, True])
def test_flops_are_those_of_every_product(freeze: bool) -> None:
    patches, products = PATCHES * 48 * V, LAYERS * PATCHES * (4 * V * V + 2 * V * F)
    scores, projected = LAYERS * 2 * PATCHES * PATCHES * V, TOKENS * V * H
    job, length = job_of({"freeze": freeze}), MODEL["seq_length"]
    once = patches + products + scores
    each = 2 * (once + 2 * projected) if freeze else 2 * (2 * patches + 3 * (products + scores + projected))
    more = model_flops(job, 5 * length, VOCAB) - model_flops(job_of(), 5 * length, VOCAB)
    assert more == 5 * IMAGES * each
    names = {"T": 5 * length, "s": length, "I": IMAGES, "n": PATCHES, "m": TOKENS, "p": 4, "v": V, "f_": F}
    said = formula(job).split("plus ")[1].split(";")[0].replace("'", "_")
    assert eval(said, {**names, "L_": LAYERS, "h": H}) == more


def test_memory_of_means_of_patches() -> None:
    """In bf16, of a micro-batch's images: a frozen encoder leaves what the norm and the matrix read, in fp32 and bf16,
    and the pixels; masks of layers with a window and of others take a score of each pair beside the usual one."""
    sections: dict[str, Any] = {"precision": {"dtype": "bf16"}, "batch": {"micro_batch_size": 2}}
    frozen, blind = job_of({"freeze": True}, **sections), job_of(**sections)
    held, less = (estimate_memory(job, VOCAB, "torch").stages[0].parts for job in (frozen, blind))
    images, pairs = 2 * IMAGES, MODEL["seq_length"] ** 2
    kept = images * (3 * 16 * 16 + TOKENS * (V * (4 + 2) + 4))
    heads = 2 * MODEL["seq_length"] * 2 * (2 * 2 * 8 * 2)  # keys and values for each query head, in both layers
    assert held["activations"] - less["activations"] == kept + heads
    assert held["buffers"] - less["buffers"] == 2 * 2 * pairs * 2


def test_more_tokens_and_more_patches_take_longer() -> None:
    """And a frozen encoder less than one that is trained."""
    device = device_named("H100")

    def seconds(more: str) -> float:
        return estimate_time(load_text(PRESET % more).job, 262208, "transformer_engine", device).step_seconds

    plain, text = seconds(""), seconds(", vision: null")
    assert text < seconds(", vision: {freeze: true}") < plain
    assert plain < min(
        seconds(", vision: {pooled_tokens: 1024}"), seconds(", vision: {image_size: 1120, pooled_tokens: 400}")
    )
