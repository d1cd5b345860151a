"""What a job in MXFP8 and NVFP4 takes by closed forms, and which GPUs it may be planned for."""

from __future__ import annotations

import pytest
from support.problems import codes

from orchestrator.planning.forecast import forecast
from orchestrator.planning.hardware import device_named, shipped_names
from orchestrator.planning.hardware.devices import Device
from orchestrator.planning.memory import estimate_memory
from orchestrator.planning.plan import make_plan
from orchestrator.planning.time import estimate_time
from orchestrator.planning.time.kernels.gemm import gemm_seconds
from orchestrator.planning.warnings import judge
from orchestrator.spec.job import JobSpec
from orchestrator.spec.loading import load_text

MXFP8, NVFP4, TENSORWISE = "precision.fp8.recipe=mxfp8", "precision.fp4.recipe=nvfp4", "precision.fp8.recipe=tensorwise"
BYTES = {MXFP8: 1 + 1 / 32, NVFP4: 1 / 2 + 1 / 16}
LAYERS, HIDDEN, FFN, LENGTH, MICRO = 8, 1024, 4096, 2048, 2
JOB = f"""
name: row
model: {{num_layers: {LAYERS}, hidden_size: {HIDDEN}, ffn_hidden_size: {FFN}, num_attention_heads: 8,
  seq_length: {LENGTH}, vocab_size: 256, position_embedding_type: rope, activation: gelu, add_bias_linear: false}}
batch: {{micro_batch_size: {MICRO}, num_micro_batches: 4}}
data: {{random_tokens: true}}
optimizer: {{lr: 1.0e-4}}
schedule: {{train_iters: 10}}
launch: {{gpu: B200}}
"""


def job(*overrides: str) -> JobSpec:
    return load_text(JOB, overrides=overrides).job


def parts(*overrides: str) -> dict[str, int]:
    [stage] = estimate_memory(job(*overrides), 256, "transformer_engine").stages
    return dict(stage.parts)


def device() -> Device:
    return device_named("B200")


@pytest.mark.parametrize("narrow", [MXFP8, NVFP4])
def test_weights_have_a_copy_in_each_order_with_scales_of_its_own(narrow: str) -> None:
    name = "fp4_weights" if narrow == NVFP4 else "fp8_weights"
    matrices = LAYERS * (4 * HIDDEN * HIDDEN + 2 * HIDDEN * FFN)
    norms = LAYERS * 2 * 2 * HIDDEN
    copies = parts(narrow)[name]
    assert copies == pytest.approx(2 * BYTES[narrow] * matrices, abs=2 * BYTES[narrow] * norms)
    assert parts()["weights"] == parts(narrow)["weights"], "they stay in bf16"
    half = f"precision.{'fp4' if narrow == NVFP4 else 'fp8'}.num_layers_at_end_in_bf16={LAYERS // 2}"
    assert parts(narrow, half)[name] == copies // 2


@pytest.mark.parametrize("narrow", [MXFP8, NVFP4])
def test_inputs_of_three_of_four_matrices_are_kept_in_one_order(narrow: str) -> None:
    """The output of attention is kept by the attention itself, in bf16."""
    tokens = LENGTH * MICRO
    inputs = LAYERS * tokens * (2 * HIDDEN + FFN)
    words = 1 << 17  # whose logits make theirs the fullest moment, at which all layers hold what they keep
    found, plain = (estimate_memory(job(*each), words, "transformer_engine").stages[0] for each in ((narrow,), ()))
    assert found.moment == plain.moment == "output layer"
    assert plain.parts["activations"] - found.parts["activations"] == pytest.approx(
        (2 - BYTES[narrow]) * inputs, rel=1e-6
    )


def test_large_products_are_as_fast_as_the_datasheet_says_of_the_same_share() -> None:
    size = 16384
    seconds = {each: gemm_seconds(size, size, size, device(), each) for each in ("bf16", "fp8", "mxfp8", "nvfp4")}
    assert seconds["mxfp8"] == seconds["fp8"]
    assert seconds["fp8"] / seconds["nvfp4"] == pytest.approx(9000 / 4500, rel=0.03)
    rate = 9000e12 * device().fitted.gemm.fp8_of_bf16 * device().efficiency.gemm_at_power_limit
    assert seconds["nvfp4"] == pytest.approx(2 * size**3 / rate, rel=0.05)


def test_products_that_wait_for_memory_read_the_bytes_of_their_elements() -> None:
    rows, side = 16, 1 << 16
    bandwidth = device().memory_bandwidth * device().efficiency.memory
    for each, size in (("mxfp8", BYTES[MXFP8]), ("nvfp4", BYTES[NVFP4])):
        taken = gemm_seconds(rows, side, side, device(), each)
        assert taken == pytest.approx((size * (rows * side + side * side) + 2 * rows * side) / bandwidth)


def test_a_step_is_faster_the_narrower_it_multiplies_where_products_are_large() -> None:
    wide = ("model.hidden_size=8192", "model.ffn_hidden_size=32768", "model.num_attention_heads=64")
    taken = {
        each: estimate_time(job(*each, *wide), 256, "transformer_engine", device()).step_seconds
        for each in ((), (TENSORWISE,), (MXFP8,), (NVFP4,))
    }
    assert taken[(NVFP4,)] < taken[(MXFP8,)] < taken[()]
    assert taken[(MXFP8,)] < taken[(TENSORWISE,)], "a block's largest value is looked for as it is cast"
    some = (NVFP4, "precision.fp4.num_layers_at_end_in_bf16=2", *wide)
    between = estimate_time(job(*some), 256, "transformer_engine", device()).step_seconds
    assert taken[(NVFP4,)] < between < taken[()]


@pytest.mark.parametrize("narrow", [MXFP8, NVFP4])
@pytest.mark.parametrize(
    ("gpu", "able"),
    [("B200", True), ("GB200", True), ("B300", True), ("H200", False), ("L40S", False), ("A100", False)],
)
def test_a_gpu_that_cannot_is_a_stop(narrow: str, gpu: str, able: bool) -> None:
    plan = make_plan(job(narrow, f"launch.gpu={gpu}"))
    found = judge(plan, forecast(plan), None)
    path = f"precision.{'fp4' if narrow == NVFP4 else 'fp8'}.recipe"
    assert codes(found.stops) == ([] if able else [f"gpu_without_microscaling {path}"])
    assert (f"untimed_products {path}" in codes(found.warnings)) == able


def test_the_table_of_gpus_says_which_can() -> None:
    gpus = [device_named(name) for name in shipped_names()]
    assert {gpu.name for gpu in gpus if gpu.has_microscaling} == {"B200", "GB200", "B300"}
    assert {gpu.name for gpu in gpus if "fp4" in gpu.peak_flops} == {"B200", "GB200", "B300"}
    assert all(gpu.compute_capability for gpu in gpus if not gpu.is_cpu and "CDNA" not in str(gpu.generation))


def test_other_recipes_were_timed_and_are_planned_for_any_gpu_that_has_fp8() -> None:
    plan = make_plan(job(TENSORWISE))
    found = judge(plan, forecast(plan), None)
    assert not any(
        each.startswith(("untimed_products", "gpu_without")) for each in codes((*found.stops, *found.warnings))
    )


def test_what_is_assumed_can_multiply_them() -> None:
    for each, name in ((NVFP4, "B200"), (MXFP8, "B200"), (TENSORWISE, "H100")):
        found = forecast(make_plan(job(each, "launch.gpu=null")))
        assert (found.device.name, found.choice.is_assumed) == (name, True)


def test_the_plan_as_data_says_which_format_it_is() -> None:
    told = forecast(make_plan(job(NVFP4))).to_dict()["time"]
    assert (told["in_fp8"], told["in_fp4"], told["cuda_graphs"], told["tp_comm_overlap"]) == (False, True, False, False)
    assert forecast(make_plan(job(MXFP8))).to_dict()["time"]["in_fp8"]
