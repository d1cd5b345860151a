"""Models that see, on GPUs: layer backends agree, and what is split over GPUs; what they take is what was planned."""

from __future__ import annotations

from typing import Any

import pytest
from support.measured import Measured, Meter, asked_of, has_layers, largest_differences, needs_layers, padded_vocab
from support.training import four_layer_job, layout

from orchestrator.planning.memory import estimate_memory
from orchestrator.spec.job import JobSpec

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(580)]

MODEL: dict[str, Any] = {
    **{"hidden_size": 512, "num_attention_heads": 8, "seq_length": 256, "vocab_size": 1000, "activation": "swiglu"},
    **{"normalization": "RMSNorm", "add_bias_linear": False, "init_method_std": 0.05},
    "vision": {
        **{"image_size": 112, "patch_size": 14, "num_layers": 4, "hidden_size": 256, "num_attention_heads": 4},
        "images_per_sequence": 2,
    },
}
STEPS = 12
LIMITS = {
    ("bf16", "torch"): (4e-3, 1e-2),
    ("bf16", "transformer_engine"): (4e-3, 1e-2),
    ("fp32", "torch"): (1e-4, 1e-3),
    ("fp32", "transformer_engine"): (1e-3, 1e-2),
}
"""Largest relative differences of losses and of gradient norms, those of experts (test_experts.py)."""
LAYOUTS: dict[str, dict[str, Any]] = {
    "one": {},
    "tp2": {"tp": 2},
    "tp2-sp": {"tp": 2, "sequence_parallel": True},
    "pp2": {"pp": 2},
    "dp2": {"dp": 2, "use_distributed_optimizer": True},
}


def seeing_job(name: str, layers: str, dtype: str) -> JobSpec:
    return four_layer_job(
        f"{name}-{layers}-{dtype}".replace("_", "-"),
        model=MODEL,
        parallelism=layout(**LAYOUTS[name]),
        precision={"dtype": dtype},
        runtime={"layers": layers},
        optimizer={"lr": 1e-4},
        schedule={"train_iters": STEPS, "lr_decay_style": "constant"},
    )


def large_job(layers: str, *, freeze: bool) -> JobSpec:
    """Llama 3.2 1B behind LLaVA's encoder."""
    return four_layer_job(
        f"large-{layers}-{freeze}".lower().replace("_", "-"),
        model={
            **{"preset": "llama3.2-1b", "seq_length": 2048, "vocab_size": 128256, "vision": {"freeze": freeze}},
            **{"num_layers": 16, "hidden_size": 2048, "num_attention_heads": 32},
        },
        batch={"micro_batch_size": 4, "global_batch_size": 8},
        precision={"dtype": "bf16"},
        runtime={"layers": layers},
        schedule={"train_iters": 8},
    )


def jobs(text: str) -> list[JobSpec]:
    """Every job of this file, which needs no text."""
    spread = [seeing_job(name, layers, dtype) for dtype, layers in LIMITS for name in LAYOUTS]
    return [*spread, *(large_job(layers, freeze=freeze) for _, layers in LIMITS for freeze in (False, True))]


@pytest.fixture(scope="module")
def trained(request: pytest.FixtureRequest, trainer: Meter) -> dict[str, Measured]:
    """What this session asks for and the layers that there are can train, by the jobs' names."""
    asked = asked_of(request, "name", "layers", "dtype")
    asked |= {("one", layers, dtype) for _, layers, dtype in asked}
    return trainer.measure_all(seeing_job(*each) for each in sorted(asked) if has_layers(each[1]))


@pytest.mark.parametrize(("dtype", "layers"), LIMITS)
@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "one"])
def test_layouts_agree(name: str, dtype: str, layers: str, trained: dict[str, Measured]) -> None:
    needs_layers(layers)
    one, found = (trained[seeing_job(each, layers, dtype).name] for each in ("one", name))
    for each in (one, found):
        assert each.outcome == "measured", each.message
    losses, norms = largest_differences(one, found)
    print(f"\nRESULT vision {name} {layers} {dtype} against one GPU: losses {losses:.1e} norms {norms:.1e}")
    most = LIMITS[dtype, layers]
    assert losses < most[0]
    assert norms < most[1]


def test_backends_agree(trainer: Meter) -> None:
    needs_layers("transformer_engine")
    one, other = (trainer.measure(seeing_job("one", layers, "bf16")) for layers in ("torch", "transformer_engine"))
    losses, norms = largest_differences(one, other)
    print(f"\nRESULT vision torch against transformer_engine: losses {losses:.1e} norms {norms:.1e}")
    assert losses < 1e-2
    assert norms < 5e-2


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("layers", ["torch", "transformer_engine"])
def test_peak_memory_is_predicted(layers: str, freeze: bool, trainer: Meter) -> None:
    needs_layers(layers)
    job = large_job(layers, freeze=freeze)
    measured = trainer.measure(job)
    assert measured.outcome == "measured", measured.message
    predicted = estimate_memory(job, padded_vocab(job), measured.layers).stages[0].peak_bytes  # type: ignore[arg-type]
    error = predicted / measured.peak_bytes[0] - 1
    print(f"\nRESULT {job.name}: {measured.step_seconds * 1e3:.1f} ms, peak predicted within {error:+.2%}")
    assert abs(error) < 0.05
