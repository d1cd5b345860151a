"""What is planned for a decoder that sees images: parameters, FLOPs, memory and time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from orchestrator.planning.flops import formula, model_flops
from orchestrator.planning.forecast import checkpoint_bytes
from orchestrator.planning.hardware import device_named
from orchestrator.planning.memory import Memory, estimate_memory
from orchestrator.planning.parameters import parameters
from orchestrator.planning.parameters.vision import encoder_parameters
from orchestrator.planning.time import StepTime, estimate_time, step_timeline
from orchestrator.planning.time.communication import group_of
from orchestrator.planning.time.families.vision import images_of
from orchestrator.planning.time.kernels.accesses import kernels_of
from orchestrator.planning.time.setting import setting_of
from orchestrator.planning.vision import encoder_job
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

VOCAB = 384
DECODER = {"num_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "seq_length": 32}
SMALL = {
    **{"image_size": 12, "patch_size": 4, "num_layers": 3, "hidden_size": 32, "num_attention_heads": 4},
    **{"ffn_hidden_size": 80},
}
"""Nine patches of an image."""


def seeing(make_job: Any, vision: dict[str, Any] | None = None, **sections: Any) -> JobSpec:
    model = {**DECODER, "vision": {**SMALL, **(vision or {})}, **sections.pop("model", {})}
    job: JobSpec = make_job(model=model, **sections)
    return job


def blind(make_job: Any, **sections: Any) -> JobSpec:
    job: JobSpec = make_job(model={**DECODER, **sections.pop("model", {})}, **sections)
    return job


V, F, P, LAYERS, H = 32, 80, 10, 3, 64
WHOLE = 3 * 4 * 4 * V + V + P * V + 2 * V + LAYERS * (4 * V + V + V) + H
"""Numbers that every tensor-parallel rank has: patches, the class token, positions and the norm behind them; of each
layer two norms, and the biases of what is added to the stream, as of the projector's second matrix."""
SPLIT = LAYERS * (3 * V * V + 3 * V + V * V + F * V + F + V * F) + H * V + H + H * H


@pytest.mark.parametrize("tp", [1, 2, 4])
@pytest.mark.parametrize(("pp", "vp"), [(1, None), (2, None), (2, 2), (4, None)])
def test_the_first_stage_holds_the_encoder(make_job: Any, tp: int, pp: int, vp: int | None) -> None:
    degrees = {
        "tensor_model_parallel_size": tp,
        "pipeline_model_parallel_size": pp,
        "virtual_pipeline_model_parallel_size": vp,
    }
    with_images = parameters(seeing(make_job, parallelism=degrees), VOCAB)
    without = parameters(blind(make_job, parallelism=degrees), VOCAB)
    assert with_images.vision == with_images.total - without.total == WHOLE + SPLIT
    more = {
        (one.tp, one.pp): one.parameters - other.parameters
        for one, other in zip(with_images.per_rank, without.per_rank, strict=True)
    }
    assert more == {(t, p): WHOLE + SPLIT // tp if p == 0 else 0 for t in range(tp) for p in range(pp)}


LLAVA = "{name: x, model: {preset: llava1.5-7b%s}, batch: {micro_batch_size: %d, num_micro_batches: %d}, \
data: {random_tokens: true}, optimizer: {lr: 1e-4}, schedule: {train_iters: 1}%s}"


def llava(model: str = "", sections: str = "", *, micro: int = 2, count: int = 8) -> JobSpec:
    return load_text(LLAVA % (model, micro, count, sections)).job


def test_llava_has_as_many_as_transformers_builds() -> None:
    """Its last CLIP layer left out, as LLaVA leaves what that gives, and with it the norm behind it."""
    vision = CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_attention_heads=16,
        num_hidden_layers=23,
        image_size=336,
        patch_size=14,
    )
    text = LlamaConfig(vocab_size=32064)  # Llama 7B's by default
    with torch.device("meta"):
        built = LlavaForConditionalGeneration(LlavaConfig(vision_config=vision, text_config=text))
    counts = {name: weight.numel() for name, weight in built.named_parameters() if "post_layernorm" not in name}
    of_images = sum(count for name, count in counts.items() if "language_model" not in name and "lm_head" not in name)
    counted = parameters(llava(), 32064)
    assert counted.vision == of_images
    assert counted.total == sum(counts.values())
    projector = sum(count for name, count in counts.items() if "projector" in name)
    model = llava().model
    assert model.vision is not None
    assert encoder_parameters(model.vision, 1) == of_images - projector


@pytest.mark.parametrize("images", [1, 3])
def test_flops_are_those_of_every_product(make_job: Any, images: int) -> None:
    n = P - 1
    patches, products = n * 48 * V, LAYERS * P * (4 * V * V + 2 * V * F)
    scores, first, second = LAYERS * 2 * P * P * V, n * V * H, n * H * H
    trained = 2 * (2 * patches + 3 * (products + scores + first + second))  # images have no gradient
    frozen = 2 * (patches + products + scores + 2 * first + 3 * second)
    without = model_flops(blind(make_job), 5 * 32, VOCAB)
    for freeze, each in ((False, trained), (True, frozen)):
        job = seeing(make_job, {"freeze": freeze, "images_per_sequence": images})
        assert model_flops(job, 5 * 32, VOCAB) - without == 5 * images * each
        names = {"T": 5 * 32, "s": 32, "I": images, "n": n, "N": P, "p": 4, "v": V, "f_": F, "L_": LAYERS, "h": H}
        said = formula(job).split("plus ")[1].split(";")[0].replace("'", "_")
        assert eval(said, names) == 5 * images * each


def test_a_frozen_encoder_has_weights_alone(make_job: Any) -> None:
    degrees = {"pipeline_model_parallel_size": 2, "use_distributed_optimizer": False}
    free, frozen = (seeing(make_job, {"freeze": freeze}, parallelism=degrees) for freeze in (False, True))
    held, less = (estimate_memory(job, VOCAB, "torch").stages for job in (free, frozen))
    encoder = WHOLE + SPLIT - (H * V + H + H * H + H)
    first, of_first = held[0].parts, less[0].parts
    assert of_first["weights"] == first["weights"]
    assert first["gradients"] - of_first["gradients"] == 4 * encoder
    assert first["optimizer"] - of_first["optimizer"] == 12 * encoder
    assert held[1] == less[1]
    total = parameters(free, VOCAB).total
    assert checkpoint_bytes(free, total) - checkpoint_bytes(frozen, total) == 12 * encoder


def activations(memory: Memory) -> int:
    return memory.stages[0].parts["activations"]


def test_activations_are_those_of_every_tensor(make_job: Any) -> None:
    """In bf16, of two sequences with three images each, all of whose tokens every rank has."""
    precision = {"precision": {"dtype": "bf16"}}
    without = activations(estimate_memory(blind(make_job, **precision), VOCAB, "torch"))
    tokens, patches, numbers = 6 * P, 6 * (P - 1), 6 * 3 * 12 * 12
    norm = 2 * V + 8  # input, mean and deviation
    layer = 2 * (norm + 2 * V) + 6 * V + 2 * V + 4 * 4 + 2 * 2 * F
    frozen = numbers + tokens * 2 * V + patches * 2 * 2 * H
    trained = frozen + 2 * numbers + tokens * (norm + LAYERS * layer)
    for freeze, more in ((True, frozen), (False, trained)):
        job = seeing(make_job, {"freeze": freeze, "images_per_sequence": 3}, **precision)
        assert activations(estimate_memory(job, VOCAB, "torch")) - without == more
    attention = LAYERS * tokens * 4 * 4
    runtime: dict[str, Any] = {"recompute_granularity": "selective"}
    job = seeing(make_job, {"images_per_sequence": 3}, runtime=runtime, **precision)
    saved = activations(estimate_memory(blind(make_job, runtime=runtime, **precision), VOCAB, "torch"))
    assert activations(estimate_memory(job, VOCAB, "torch")) - saved == trained - attention
    for method, count in (("uniform", 2), ("block", 1)):
        runtime = {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": count}
        job = seeing(make_job, {"images_per_sequence": 3}, runtime=runtime, **precision)
        saved = activations(estimate_memory(blind(make_job, runtime=runtime, **precision), VOCAB, "torch"))
        inputs = trained - tokens * LAYERS * (layer - 2 * V)
        assert activations(estimate_memory(job, VOCAB, "torch")) - saved == inputs, method


def test_as_many_micro_batches_as_the_first_stage_has_in_flight(make_job: Any) -> None:
    degrees = {"pipeline_model_parallel_size": 4}
    job, without = seeing(make_job, parallelism=degrees), blind(make_job, parallelism=degrees)
    one = activations(estimate_memory(seeing(make_job), VOCAB, "torch"))
    one -= activations(estimate_memory(blind(make_job), VOCAB, "torch"))
    held, less = (estimate_memory(each, VOCAB, "torch").stages for each in (job, without))
    assert held[0].parts["activations"] - less[0].parts["activations"] == 4 * one
    assert held[1:] == less[1:]


def test_a_large_encoder_sets_the_peak(make_job: Any) -> None:
    """Behind a small decoder: a frozen one by what a layer of it makes, a trained one by its backward pass."""
    huge = {"image_size": 336, "patch_size": 14, "hidden_size": 1024, "num_attention_heads": 16}
    for freeze in (False, True):
        job = seeing(
            make_job, {**huge, "ffn_hidden_size": 4096, "freeze": freeze}, model={"seq_length": 1024, "num_layers": 1}
        )
        [stage] = estimate_memory(job, VOCAB, "torch").stages
        assert stage.moment == "backward"
        assert stage.parts["temporary"] > 2 * (2 * 577 * 1024 * 2)  # the stream of two images


H100 = device_named("H100")


def time_of(job: JobSpec) -> StepTime:
    assert job.model.vocab_size is not None
    return estimate_time(job, job.model.vocab_size, "torch", H100)


def peak(job: JobSpec) -> int:
    return estimate_memory(job, 32256, "torch").peak_bytes


@pytest.mark.parametrize(
    ("more", "sections"),
    [
        ("vision: {images_per_sequence: 2}", ""),
        ("vision: {image_size: 448}", ""),
        ("vision: {num_layers: 24}", ""),
        ("vision: {hidden_size: 1280}", ""),
        ("vision: {}", ", parallelism: {tensor_model_parallel_size: 2}"),
        ("vision: {}", ", runtime: {recompute_granularity: selective}"),
    ],
)
def test_more_to_see_takes_more(more: str, sections: str) -> None:
    """And a frozen encoder less than one that is trained."""
    job, plain = llava(f", {more}", sections), llava("", sections)
    frozen = llava(f", {more[:-1]}{', ' if more[-2] != '{' else ''}freeze: true}}", sections)
    assert plain.model.vision is not None
    without = plain.model_copy(update={"model": plain.model.model_copy(update={"vision": None})})
    for measure in (lambda job: time_of(job).step_seconds, peak, lambda job: model_flops(job, 2048, 32256)):
        assert measure(without) < measure(frozen) < measure(job)
        if job != plain:
            assert measure(plain) < measure(job)


def test_a_larger_micro_batch_has_more_images() -> None:
    """Their activations grow with it, and nothing else of theirs."""
    sizes = [llava(micro=size) for size in (1, 2, 4)]
    kept = []
    for job in sizes:
        without = job.model_copy(update={"model": job.model.model_copy(update={"vision": None})})
        kept.append(
            activations(estimate_memory(job, 32256, "torch")) - activations(estimate_memory(without, 32256, "torch"))
        )
    assert kept[2] == pytest.approx(2 * kept[1]) == pytest.approx(4 * kept[0])
    times = [time_of(job).step_seconds for job in sizes]
    assert times == sorted(times)


def test_what_tensor_parallel_ranks_send_for_images() -> None:
    """Two sums of each layer's forward pass and one of the projector's. Under sequence parallelism of the decoder each
    rank has all patches and places those of its own part, and their gradients are summed.
    """
    forward, backward = {}, {}
    for sequence_parallel in (False, True):
        degrees = f"{{tensor_model_parallel_size: 2, sequence_parallel: {str(sequence_parallel).lower()}}}"
        job = llava("", f", parallelism: {degrees}")
        setting = setting_of(job, 32256, kernels_of(job, "torch"), H100)
        images = images_of(setting)
        assert images is not None
        forward[sequence_parallel] = images.passes.forward["tensor_parallel"]
        backward[sequence_parallel] = images.passes.backward["tensor_parallel"]
    group = group_of(job, H100, 2, 1)
    whole = 46 * group.reduce_seconds(2 * 577 * 1024 * 2) + group.reduce_seconds(2 * 576 * 4096 * 2)
    assert forward[False] == forward[True] == pytest.approx(whole)
    assert backward[True] - backward[False] == pytest.approx(group.reduce_seconds(2 * 576 * 4096 * 2))


def test_recomputation_does_the_encoder_again() -> None:
    full = ", runtime: {recompute_granularity: full, recompute_method: block, recompute_num_layers: 1}"
    for sections, parts in ((full, None), (", runtime: {recompute_granularity: selective}", "attention")):
        job = llava("", sections)
        setting = setting_of(job, 32256, kernels_of(job, "torch"), H100)
        images = images_of(setting)
        assert images is not None
        again, forward = images.passes.backward["recompute"], images.passes.forward
        assert 0 < again < sum(forward.values())
        assert again == pytest.approx(forward[parts]) if parts else again > 0.8 * sum(forward.values())
        frozen = images_of(replace(setting, job=job, model=llava(", vision: {freeze: true}").model))
        assert frozen is not None
        assert "recompute" not in frozen.passes.backward


def test_the_host_starts_the_encoder_s_kernels_too() -> None:
    """Of small micro-batches it holds up the GPU."""
    stages = ", parallelism: {pipeline_model_parallel_size: 8}"
    trained, frozen = (llava(model, stages, micro=1) for model in ("", ", vision: {freeze: true}"))
    assert time_of(trained).parts["host"] > time_of(frozen).parts["host"] > 0


def test_only_the_first_stage_takes_longer() -> None:
    job = llava("", ", parallelism: {pipeline_model_parallel_size: 4}")
    without = job.model_copy(update={"model": job.model.model_copy(update={"vision": None})})
    with_images, plain = (step_timeline(each, 32256, "torch", H100).spans for each in (job, without))
    for stage, (one, other) in enumerate(zip(with_images, plain, strict=True)):
        seconds = [sum(span.end - span.start for span in spans) for spans in (one, other)]
        assert seconds[0] > 1.05 * seconds[1] if stage == 0 else seconds[0] == pytest.approx(seconds[1])


def test_the_encoder_s_job_runs_on_as_many_processes(make_job: Any) -> None:
    """So that its tensor-parallel groups lie on the machines as the decoder's do."""
    degrees = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2, "sequence_parallel": True}
    job = seeing(
        make_job, {"images_per_sequence": 3}, parallelism={**degrees, "data_parallel_size": 4}, launch={"nodes": 2}
    )
    assert job.model.vision is not None
    own = encoder_job(job, job.model.vision)
    assert own.processes_per_node == job.processes_per_node == 8
    assert (own.batch.micro_batch_size, own.model.seq_length) == (6, P)
    assert not own.parallelism.uses_sequence_parallel
